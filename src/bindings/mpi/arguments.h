// What of MPI's arguments moeccl needs to know: sizes, types, operators, and memory without gaps.
#pragma once

#include <moeccl/moeccl.h>
#include <mpi.h>

#include <cstddef>
#include <numeric>
#include <optional>
#include <vector>

namespace moeccl::mpi {

// A communicator of this rank alone, on which errors are returned.
MPI_Comm ownComm();

// Whether a call may use the type: it exists, and has been committed.
bool isUsable(MPI_Datatype type);
// Whether MPI takes elements of it.
bool isSound(int count, MPI_Datatype type);
// The same of parts; without elements MPI_DATATYPE_NULL will do, too.
bool areSound(const int* counts, int parts, MPI_Datatype type);
// Whether `count` elements should be at NULL. A type of the program's own may have addresses.
bool lacksMemory(const void* buffer, std::size_t count, MPI_Datatype type);
// Whether MPI takes MPI_DATATYPE_NULL where there are no elements.
bool takesNoType();

// Bytes of an element's data. Equal on all ranks of a call, whatever datatypes they describe it
// with.
std::size_t sizeOf(MPI_Datatype type);
// From one element to the next.
std::ptrdiff_t extentOf(MPI_Datatype type);
// One of MPI's own types, without gaps.
bool isContiguous(MPI_Datatype type);

// The type and the operator that a reduction needs. None: MPI reduces.
std::optional<moecclDataType_t> typeOf(MPI_Datatype type);
std::optional<moecclRedOp_t> operatorOf(MPI_Op op);
// Sums and products of floats depend on the order of the terms.
bool isExact(moecclDataType_t type, moecclRedOp_t op);

// Parts of a buffer, described as in MPI_Alltoallv, where displacements count elements.
struct Parts {
  MPI_Datatype type;  // MPI_DATATYPE_NULL: there are no elements
  std::vector<int> counts;
  std::vector<std::ptrdiff_t> displs;

  // Equal parts, one after another.
  static Parts equal(MPI_Datatype type, int count, int parts);
  static Parts unequal(MPI_Datatype type, const int* counts, const int* displs, int parts);

  // What a part has in bytes.
  std::size_t bytes(std::size_t part) const {
    return static_cast<std::size_t>(counts[part]) * sizeOf(type);
  }
  std::size_t elements() const { return std::reduce(counts.begin(), counts.end(), std::size_t{}); }
  // Whether MPI can pack them, as it must where they are not contiguous: it counts bytes by an int.
  bool canBePacked() const;
};

// The same parts in memory without gaps, in bytes: in the caller's buffer where that has none, else
// in a copy.
class Flat {
 public:
  // Copies what is there, for a send buffer.
  Flat(const void* buffer, const Parts& parts, bool alwaysCopies = false);
  // A receive buffer; `store` puts into it what has arrived.
  Flat(void* buffer, const Parts& parts);

  std::byte* data() { return data_; }
  const std::size_t* counts() const { return counts_.data(); }
  const std::size_t* displs() const { return displs_.data(); }
  // False: MPI could not.
  bool good() const { return good_; }
  void store();

 private:
  void layOut(bool copies);
  template <typename Function>
  void eachPiece(Function piece);

  std::byte* data_;
  std::byte* buffer_ = nullptr;
  const Parts* parts_;
  std::vector<std::size_t> counts_, displs_;
  std::vector<std::byte> copy_;
  bool good_ = true;
};

}  // namespace moeccl::mpi
