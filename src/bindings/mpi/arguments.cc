// Translates MPI's types and operators to moeccl's, and checks arguments by asking MPI itself.
// Elements with gaps are packed and unpacked by MPI.
#include "arguments.h"

#include <algorithm>
#include <climits>

namespace moeccl::mpi {
namespace {

// MPI counts packed bytes by an int.
constexpr std::size_t kMostPacked = std::size_t{1} << 30;

// Calls piece(first element, elements, first byte, bytes) for pieces of `count` elements.
template <typename Function>
bool inPieces(std::size_t size, int count, Function piece) {
  const int most = static_cast<int>(std::clamp<std::size_t>(kMostPacked / size, 1, INT_MAX));
  for (int first = 0; first < count;) {
    const int elements = std::min(most, count - first);
    if (!piece(first, elements, static_cast<std::size_t>(first) * size,
               static_cast<int>(static_cast<std::size_t>(elements) * size)))
      return false;
    first += elements;
  }
  return true;
}

template <typename Integer>
moecclDataType_t integer() {
  constexpr bool kSigned = static_cast<Integer>(-1) < Integer{};
  switch (sizeof(Integer)) {
    case 1:
      return kSigned ? moecclInt8 : moecclUint8;
    case 2:
      return kSigned ? moecclInt16 : moecclUint16;
    case 4:
      return kSigned ? moecclInt32 : moecclUint32;
    default:
      return kSigned ? moecclInt64 : moecclUint64;
  }
}

}  // namespace

MPI_Comm ownComm() {
  static const MPI_Comm once = [] {
    MPI_Comm made = MPI_COMM_NULL;
    PMPI_Comm_dup(MPI_COMM_SELF, &made);
    PMPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    return made;
  }();
  return once;
}

bool isUsable(MPI_Datatype type) {
  if (type == MPI_DATATYPE_NULL) return false;
  if (typeOf(type)) return true;
  // MPI looks at the type even where there is nothing to pack.
  char nothing;
  int position = 0;
  return PMPI_Pack(&nothing, 0, type, &nothing, sizeof nothing, &position, ownComm()) ==
         MPI_SUCCESS;
}

bool isSound(int count, MPI_Datatype type) { return count >= 0 && isUsable(type); }

bool areSound(const int* counts, int parts, MPI_Datatype type) {
  if (std::any_of(counts, counts + parts, [](int count) { return count < 0; })) return false;
  return isUsable(type) ||
         (type == MPI_DATATYPE_NULL &&
          std::all_of(counts, counts + parts, [](int count) { return count == 0; }));
}

bool lacksMemory(const void* buffer, std::size_t count, MPI_Datatype type) {
  return buffer == nullptr && count > 0 && isContiguous(type);
}

bool takesNoType() {
  static const bool once = [] {
    int none = 0, here;
    return PMPI_Alltoallv(&here, &none, &none, MPI_DATATYPE_NULL, &here, &none, &none, MPI_INT,
                          ownComm()) == MPI_SUCCESS;
  }();
  return once;
}

std::size_t sizeOf(MPI_Datatype type) {
  MPI_Count bytes = 0;
  if (type != MPI_DATATYPE_NULL) PMPI_Type_size_x(type, &bytes);
  return bytes < 0 ? 0 : static_cast<std::size_t>(bytes);
}

std::ptrdiff_t extentOf(MPI_Datatype type) {
  MPI_Aint lowest = 0, extent = 0;
  if (type != MPI_DATATYPE_NULL) PMPI_Type_get_extent(type, &lowest, &extent);
  return extent;
}

bool isContiguous(MPI_Datatype type) {
  if (type == MPI_DATATYPE_NULL) return true;
  int integers, addresses, types, combiner;
  return PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) == MPI_SUCCESS &&
         combiner == MPI_COMBINER_NAMED &&
         extentOf(type) == static_cast<std::ptrdiff_t>(sizeOf(type));
}

std::optional<moecclDataType_t> typeOf(MPI_Datatype type) {
  // Handles are no constants everywhere, so this is no table.
  if (type == MPI_DOUBLE) return moecclFloat64;
  if (type == MPI_FLOAT) return moecclFloat32;
  if (type == MPI_INT) return integer<int>();
  if (type == MPI_LONG) return integer<long>();
  if (type == MPI_LONG_LONG_INT) return integer<long long>();
  if (type == MPI_SHORT) return integer<short>();
  if (type == MPI_SIGNED_CHAR) return moecclInt8;
  if (type == MPI_UNSIGNED_CHAR || type == MPI_BYTE) return moecclUint8;
  if (type == MPI_UNSIGNED_SHORT) return integer<unsigned short>();
  if (type == MPI_UNSIGNED) return integer<unsigned>();
  if (type == MPI_UNSIGNED_LONG) return integer<unsigned long>();
  if (type == MPI_UNSIGNED_LONG_LONG) return integer<unsigned long long>();
  if (type == MPI_INT8_T) return moecclInt8;
  if (type == MPI_INT16_T) return moecclInt16;
  if (type == MPI_INT32_T) return moecclInt32;
  if (type == MPI_INT64_T) return moecclInt64;
  if (type == MPI_UINT8_T) return moecclUint8;
  if (type == MPI_UINT16_T) return moecclUint16;
  if (type == MPI_UINT32_T) return moecclUint32;
  if (type == MPI_UINT64_T) return moecclUint64;
  return std::nullopt;
}

std::optional<moecclRedOp_t> operatorOf(MPI_Op op) {
  if (op == MPI_SUM) return moecclSum;
  if (op == MPI_PROD) return moecclProd;
  if (op == MPI_MAX) return moecclMax;
  if (op == MPI_MIN) return moecclMin;
  if (op == MPI_BAND) return moecclBitAnd;
  if (op == MPI_BOR) return moecclBitOr;
  if (op == MPI_BXOR) return moecclBitXor;
  return std::nullopt;
}

bool isExact(moecclDataType_t type, moecclRedOp_t op) {
  const bool real = type == moecclFloat32 || type == moecclFloat64;
  return !real || op == moecclMax || op == moecclMin;
}

Parts Parts::equal(MPI_Datatype type, int count, int parts) {
  Parts made{type, std::vector<int>(static_cast<std::size_t>(parts), count), {}};
  for (int i = 0; i < parts; ++i) made.displs.push_back(std::ptrdiff_t{count} * i);
  return made;
}

Parts Parts::unequal(MPI_Datatype type, const int* counts, const int* displs, int parts) {
  return {type, {counts, counts + parts}, {displs, displs + parts}};
}

bool Parts::canBePacked() const {
  const bool any = std::ranges::any_of(counts, [](int count) { return count > 0; });
  return !any || isContiguous(type) || sizeOf(type) <= kMostPacked;
}

Flat::Flat(const void* buffer, const Parts& parts, bool alwaysCopies)
    : data_(static_cast<std::byte*>(const_cast<void*>(buffer))), parts_(&parts) {
  layOut(alwaysCopies || !isContiguous(parts.type));
  if (copy_.empty()) return;
  eachPiece([&](std::size_t i, std::ptrdiff_t at, int elements, std::size_t byte, int bytes) {
    int position = 0;
    return PMPI_Pack(static_cast<const std::byte*>(buffer) + at, elements, parts.type,
                     data_ + displs_[i] + byte, bytes, &position, ownComm()) == MPI_SUCCESS &&
           position == bytes;
  });
}

Flat::Flat(void* buffer, const Parts& parts)
    : data_(static_cast<std::byte*>(buffer)), buffer_(data_), parts_(&parts) {
  layOut(!isContiguous(parts.type));
}

void Flat::layOut(bool copies) {
  const std::size_t size = sizeOf(parts_->type);
  std::ptrdiff_t lowest = 0;
  for (std::ptrdiff_t displ : parts_->displs) lowest = std::min(lowest, displ);
  std::size_t total = 0;
  for (std::size_t i = 0; i < parts_->counts.size(); ++i) {
    counts_.push_back(static_cast<std::size_t>(parts_->counts[i]) * size);
    displs_.push_back(copies ? total : static_cast<std::size_t>(parts_->displs[i] - lowest) * size);
    total += counts_.back();
  }
  if (copies) {
    copy_.resize(std::max<std::size_t>(total, 1));
    data_ = copy_.data();
  } else {
    data_ += lowest * static_cast<std::ptrdiff_t>(size);
  }
}

template <typename Function>
void Flat::eachPiece(Function piece) {
  const std::ptrdiff_t extent = extentOf(parts_->type);
  const std::size_t size = sizeOf(parts_->type);
  for (std::size_t i = 0; i < counts_.size(); ++i)
    if (counts_[i] > 0)
      good_ =
          inPieces(size, parts_->counts[i],
                   [&](int first, int elements, std::size_t byte, int bytes) {
                     return piece(i, (parts_->displs[i] + first) * extent, elements, byte, bytes);
                   }) &&
          good_;
}

void Flat::store() {
  if (copy_.empty()) return;
  eachPiece([&](std::size_t i, std::ptrdiff_t at, int elements, std::size_t byte, int bytes) {
    int position = 0;
    return PMPI_Unpack(data_ + displs_[i] + byte, bytes, &position, buffer_ + at, elements,
                       parts_->type, ownComm()) == MPI_SUCCESS;
  });
}

}  // namespace moeccl::mpi
