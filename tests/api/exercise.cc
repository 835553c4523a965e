// Fills and checks buffers by the contract of each collective.
#include "tests/api/exercise.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/reduce.h"
#include "kernels/small_float.h"
#include "moeccl/route.h"
#include "tests/api/results.h"

namespace moeccl::test {
namespace {

constexpr unsigned char kPoison = 0xa5;
constexpr size_t kGuard = 64;

std::uint64_t hash(Payload payload, std::uint64_t element, unsigned salt) {
  std::uint64_t h = (static_cast<std::uint64_t>(payload.rank) << 48 ^
                     static_cast<std::uint64_t>(payload.block) << 24 ^ salt) +
                    element;
  h = (h ^ h >> 31) * 0x9e3779b97f4a7c15u;
  h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
  return h ^ h >> 32;
}

// One for each element, small enough that sums of 64 are exact in every type: mostly 0.
using Terms = std::vector<std::uint8_t>;

// Sixteen come of one hash: ranks check the terms of all others too.
Terms termsOf(Payload payload, std::size_t count, moecclRedOp_t op, unsigned salt) {
  constexpr std::size_t kTogether = 16;
  Terms terms(count);
  for (std::size_t first = 0; first < count; first += kTogether) {
    const std::uint64_t h = hash(payload, first / kTogether, salt);
    for (std::size_t i = 0; i < std::min(kTogether, count - first); ++i) {
      const auto four = static_cast<std::uint8_t>(h >> 4 * i & 15);
      // Terms of products are mostly 1, and few 2.
      terms[first + i] = op == moecclSum || op == moecclAvg ? four == 0
                         : op == moecclProd                 ? 1 + (four == 0 && h % 4 == 0)
                                                            : four % 8;
    }
  }
  return terms;
}

void combine(moecclRedOp_t op, const Terms& more, Terms& terms) {
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const std::uint8_t a = terms[i], b = more[i];
    switch (op) {
      case moecclProd:
        terms[i] = static_cast<std::uint8_t>(a * b);
        break;
      case moecclMax:
        terms[i] = std::max(a, b);
        break;
      case moecclMin:
        terms[i] = std::min(a, b);
        break;
      case moecclBitAnd:
        terms[i] = a & b;
        break;
      case moecclBitOr:
        terms[i] = a | b;
        break;
      case moecclBitXor:
        terms[i] = a ^ b;
        break;
      default:
        terms[i] = static_cast<std::uint8_t>(a + b);
    }
  }
}

template <typename T>
void put(unsigned char* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

void store(moecclDataType_t type, unsigned char* to, int value) {
  const auto real = static_cast<float>(value);
  switch (type) {
    case moecclInt8:
    case moecclUint8:
      return put(to, static_cast<std::int8_t>(value));
    case moecclInt16:
    case moecclUint16:
      return put(to, static_cast<std::int16_t>(value));
    case moecclInt32:
    case moecclUint32:
      return put(to, static_cast<std::int32_t>(value));
    case moecclInt64:
    case moecclUint64:
      return put(to, static_cast<std::int64_t>(value));
    case moecclFloat16:
      return put(to, Float16::encode(real));
    case moecclBfloat16:
      return put(to, Bfloat16::encode(real));
    case moecclFloat32:
      return put(to, real);
    case moecclFloat64:
      return put(to, static_cast<double>(value));
    case moecclFloat8e4m3:
      return put(to, Float8e4m3::encode(real));
    case moecclFloat8e5m2:
      return put(to, Float8e5m2::encode(real));
    default:
      throw std::runtime_error("no such type");
  }
}

using Bytes = std::vector<unsigned char>;

// A buffer of a call, in the memory that its communicator works on.
class Buffer {
 public:
  Buffer(Device* device, Bytes first)
      : device_(device),
        first_(std::move(first)),
        host_(device == nullptr ? first_ : Bytes()),
        data_(device == nullptr ? host_.data() : device->allocate(first_.size())) {
    reset();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (device_ != nullptr) device_->free(data_);
  }

  unsigned char* data() { return data_; }
  // As it was in the beginning.
  const Bytes& first() const { return first_; }
  void reset() {
    if (device_ == nullptr)
      std::copy(first_.begin(), first_.end(), data_);
    else
      device_->put(data_, first_.data(), first_.size());
  }
  Bytes get() const {
    if (device_ == nullptr) return host_;
    Bytes bytes(first_.size());
    device_->get(bytes.data(), data_, bytes.size());
    return bytes;
  }

 private:
  Device* const device_;
  const Bytes first_;
  Bytes host_;
  unsigned char* const data_;
};

// What is checked of one call at one rank.
class Check {
 public:
  Check(const Exercise& what, moecclComm_t comm, moecclGrid_t grid)
      : what_(what), comm_(comm), grid_(grid), element_(sizeOf(what.datatype)) {
    int ranks = 0;
    check(moecclCommCount(comm, &ranks), comm);
    check(moecclCommUserRank(comm, &rank_), comm);
    contract_ = {what.collective, ranks, {}, what.experts};
    // Each rank has its turn.
    if (hasRoot(what.collective)) contract_.root = static_cast<int>(what.salt) % ranks;
    if (grid != nullptr) {
      moecclGridShape_t shape;
      check(moecclGridGetShape(grid, &shape));
      contract_.grid = {shape.nMp, shape.nEp, shape.nEsp, shape.order == moecclOrderEspEp};
    }
    sums_ = reduces(what.collective);
  }

  void run(moecclStream_t stream) {
    const bool gathers = this->gathers();
    const std::size_t own =
        (gathers ? recvDispls() : sendDispls())[gathers || scatters() ? rank_ : 0] * element_;
    Buffer send(what_.device, input());
    Buffer recv(what_.device, what_.inPlace && gathers ? inputWithin(own) : poisoned());
    Operands operands{send, recv, send.data(), recv.data()};
    if (what_.inPlace) {
      if (gathers)
        operands.in = recv.data() + own;
      else
        operands.out = send.data() + (scatters() ? own : 0);
    }
    const auto call = [&] { this->call(operands.in, operands.out, stream); };
    once(operands, call, stream);
    if (!what_.inGraph) return;
    const Device::Graph graph = captured(call, stream);
    for (int turn = 0; turn < 2; ++turn)
      once(
          operands, [&] { what_.device->replay(graph, stream); }, stream);
  }

 private:
  struct Operands {
    Buffer &send, &recv;
    unsigned char *in, *out;
  };

  template <typename Start>
  void once(Operands& operands, const Start& start, moecclStream_t stream) {
    operands.send.reset();
    operands.recv.reset();
    start();
    synchronize(stream);
    compare(operands);
  }

  void synchronize(moecclStream_t stream) const {
    if (what_.device != nullptr)
      what_.device->synchronize(stream);
    else if (stream != nullptr)
      check(moecclStreamSynchronize(stream), comm_);
  }

  template <typename Call>
  Device::Graph captured(const Call& call, moecclStream_t stream) const {
    what_.device->beginCapture(stream);
    try {
      call();
    } catch (...) {
      what_.device->endCapture(stream);
      throw;
    }
    return what_.device->endCapture(stream);
  }

  void compare(const Operands& operands) const {
    const Bytes send = operands.send.get(), recv = operands.recv.get(), expected = output();
    const bool inSend = what_.inPlace && !gathers();
    const Bytes& all = inSend ? send : recv;
    const auto begin =
        all.begin() + (operands.out - (inSend ? operands.send : operands.recv).data());
    const auto [at, there] = std::mismatch(expected.begin(), expected.end(), begin);
    if (at != expected.end())
      throw std::runtime_error(textOf(what_) + ": byte " + std::to_string(at - expected.begin()) +
                               " of the output is " + std::to_string(*there) + " instead of " +
                               std::to_string(*at));
    if (what_.inPlace) return;
    checkThat(send == operands.send.first(), textOf(what_) + ": it wrote to sendbuff");
    checkThat(std::all_of(recv.begin() + static_cast<std::ptrdiff_t>(expected.size()), recv.end(),
                          [](unsigned char byte) { return byte == kPoison; }),
              textOf(what_) + ": it wrote past the end of recvbuff");
  }

  bool gathers() const {
    return what_.collective == Collective::allGather || what_.collective == Collective::allGatherv;
  }
  bool scatters() const {
    return what_.collective == Collective::reduceScatter ||
           what_.collective == Collective::reduceScatterv;
  }
  bool isV() const {
    return what_.collective == Collective::allToAllv ||
           what_.collective == Collective::allGatherv ||
           what_.collective == Collective::reduceScatterv;
  }

  // Elements of a payload. Of v-collectives: nothing, a hot rank's all, or anything; what is
  // reduced is as large on all ranks.
  std::size_t sizeOfPayload(Payload payload) const {
    if (!isV()) return what_.count;
    if (what_.collective == Collective::reduceScatterv) payload.rank = 0;
    const std::uint64_t h = hash(payload, 1, what_.salt ^ 0x5a5au);
    if (what_.salt % 3 == 0 && what_.collective == Collective::allGatherv)
      return payload.rank == 0 ? what_.count : 0;
    if (what_.salt % 3 == 0) return payload.block == 0 ? what_.count : 0;
    return h % 3 == 0 ? 0 : h % (what_.count + 1);
  }
  // Parts that have displacements begin at odd places.
  template <typename SizeOf>
  std::vector<std::size_t> displacements(bool displaced, int blocks,
                                         const SizeOf& sizeOfBlock) const {
    const std::size_t gap = displaced ? 3 : 0;
    std::vector<std::size_t> displs{gap};
    for (int block = 0; block < blocks; ++block)
      displs.push_back(displs.back() + sizeOfBlock(block) + gap);
    return displs;
  }
  std::vector<std::size_t> sendDispls() const {
    return displacements(isV() && !gathers(), contract_.inputBlocks(rank_), [&](int block) {
      return sizeOfPayload({rank_, block});
    });
  }
  std::vector<std::size_t> recvDispls() const {
    return displacements(isV() && !scatters(), contract_.outputBlocks(rank_), [&](int block) {
      return sizeOfPayload(contract_.expected(rank_, block)[0]);
    });
  }

  std::vector<std::size_t> recvCounts() const {
    std::vector<std::size_t> counts;
    for (int block = 0; block < contract_.outputBlocks(rank_); ++block)
      counts.push_back(sizeOfPayload(contract_.expected(rank_, block)[0]));
    return counts;
  }

  void fill(unsigned char* to, Payload payload) const {
    const Payload name = contract_.identity(payload);
    if (sums_) return storeAll(termsOf(name, sizeOfPayload(name), what_.op, what_.salt), to);
    const std::size_t bytes = sizeOfPayload(name) * element_;
    for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
      const std::uint64_t bits = hash(name, at / sizeof bits, what_.salt);
      std::memcpy(to + at, &bits, std::min(sizeof bits, bytes - at));
    }
  }

  void storeAll(const Terms& terms, unsigned char* to) const {
    for (std::size_t i = 0; i < terms.size(); ++i)
      store(what_.datatype, to + i * element_, terms[i]);
  }

  Bytes input() const {
    const std::vector<std::size_t> displs = sendDispls();
    Bytes bytes(displs.back() * element_, kPoison);
    for (int block = 0; block < contract_.inputBlocks(rank_); ++block)
      fill(bytes.data() + displs[block] * element_, {rank_, block});
    return bytes;
  }

  Bytes poisoned() const { return Bytes(recvDispls().back() * element_ + kGuard, kPoison); }

  Bytes output() const {
    const std::vector<std::size_t> displs = recvDispls();
    Bytes bytes(displs.back() * element_, kPoison);
    for (int block = 0; block < contract_.outputBlocks(rank_); ++block) {
      const std::vector<Payload> terms = contract_.expected(rank_, block);
      unsigned char* const to = bytes.data() + displs[block] * element_;
      if (!sums_) {
        fill(to, terms[0]);
        continue;
      }
      const std::size_t count = sizeOfPayload(terms[0]);
      Terms result = termsOf(terms[0], count, what_.op, what_.salt);
      for (std::size_t t = 1; t < terms.size(); ++t)
        combine(what_.op, termsOf(terms[t], count, what_.op, what_.salt), result);
      storeAll(result, to);
      if (what_.op == moecclAvg)
        divide(what_.datatype, reinterpret_cast<std::byte*>(to), count * element_, contract_.ranks);
    }
    return bytes;
  }

  // The output buffer, with the input where an all-gather in place has it.
  Bytes inputWithin(std::size_t at) const {
    Bytes bytes = poisoned();
    const Bytes own = input();
    std::copy(own.begin(), own.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
    return bytes;
  }

  void call(const void* in, void* out, moecclStream_t stream) const {
    const std::size_t count = what_.count;
    const moecclDataType_t type = what_.datatype;
    switch (what_.collective) {
      case Collective::allToAll:
        return check(moecclAllToAll(in, out, count, type, comm_, stream), comm_);
      case Collective::allToAllv: {
        std::vector<std::size_t> sendCounts, recvCounts;
        for (int peer = 0; peer < contract_.ranks; ++peer) {
          sendCounts.push_back(sizeOfPayload({rank_, peer}));
          recvCounts.push_back(sizeOfPayload({peer, rank_}));
        }
        if (what_.bounded)
          return check(moecclAllToAllvBounded(in, sendCounts.data(), sendDispls().data(), out,
                                              recvCounts.data(), recvDispls().data(), count, 0,
                                              type, comm_, stream),
                       comm_);
        return check(moecclAllToAllv(in, sendCounts.data(), sendDispls().data(), out,
                                     recvCounts.data(), recvDispls().data(), type, comm_, stream),
                     comm_);
      }
      case Collective::allGather:
        return check(moecclAllGather(in, out, count, type, comm_, stream), comm_);
      case Collective::allGatherv:
        return check(moecclAllGatherv(in, sizeOfPayload({rank_, 0}), out, recvCounts().data(),
                                      recvDispls().data(), type, comm_, stream),
                     comm_);
      case Collective::reduceScatterv: {
        std::vector<std::size_t> counts;
        for (int peer = 0; peer < contract_.ranks; ++peer)
          counts.push_back(sizeOfPayload({rank_, peer}));
        return check(moecclReduceScatterv(in, counts.data(), sendDispls().data(), out, type,
                                          what_.op, comm_, stream),
                     comm_);
      }
      case Collective::reduceScatter:
        return check(moecclReduceScatter(in, out, count, type, what_.op, comm_, stream), comm_);
      case Collective::allReduce:
        return check(moecclAllReduce(in, out, count, type, what_.op, comm_, stream), comm_);
      case Collective::broadcast:
        return check(moecclBroadcast(in, out, count, type, contract_.root, comm_, stream), comm_);
      case Collective::reduce:
        return check(moecclReduce(in, out, count, type, what_.op, contract_.root, comm_, stream),
                     comm_);
      case Collective::gather:
        return check(moecclGather(in, out, count, type, contract_.root, comm_, stream), comm_);
      case Collective::scatter:
        return check(moecclScatter(in, out, count, type, contract_.root, comm_, stream), comm_);
      case Collective::tpAllToAll:
        return check(moecclTpAllToAll(in, out, count, type, grid_, stream), comm_);
      case Collective::dispatch:
        return check(moecclDispatch(in, out, count, what_.experts, type, grid_, stream), comm_);
      case Collective::combine:
        return check(moecclCombine(in, out, count, what_.experts, type, grid_, stream), comm_);
      case Collective::combineAllGather:
        return check(moecclCombineAllGather(in, out, count, what_.experts, type, grid_, stream),
                     comm_);
      case Collective::splitDispatch:
        return check(moecclSplitDispatch(in, out, count, what_.experts, type, grid_, stream),
                     comm_);
    }
  }

  const Exercise what_;
  const moecclComm_t comm_;
  const moecclGrid_t grid_;
  const std::size_t element_;
  int rank_ = 0;
  Contract contract_;
  bool sums_ = false;
};

}  // namespace

bool worksInPlace(Collective collective) {
  return collective == Collective::allGather || collective == Collective::allGatherv ||
         collective == Collective::reduceScatter || collective == Collective::reduceScatterv ||
         collective == Collective::allReduce || collective == Collective::reduce;
}

bool reduces(Collective collective) {
  return collective == Collective::reduceScatter || collective == Collective::reduceScatterv ||
         collective == Collective::allReduce || collective == Collective::reduce ||
         collective == Collective::combine || collective == Collective::combineAllGather;
}

const char* nameOf(moecclDataType_t type) {
  constexpr const char* kNames[] = {"int8",       "uint8",      "int32",   "uint32",  "int64",
                                    "uint64",     "float16",    "float32", "float64", "bfloat16",
                                    "float8e4m3", "float8e5m2", "int16",   "uint16"};
  static_assert(std::size(kNames) == moecclNumTypes);
  return kNames[type];
}

std::string textOf(const Exercise& what) {
  return std::string(nameOf(what.collective)) + (what.inPlace ? " in place" : "") + ", count " +
         std::to_string(what.count) + ", " + nameOf(what.datatype) + ", op " +
         std::to_string(what.op) + ", experts " + std::to_string(what.experts);
}

void exercise(const Exercise& what, moecclComm_t comm, moecclGrid_t grid, moecclStream_t stream) {
  Check(what, comm, grid).run(stream);
}

}  // namespace moeccl::test
