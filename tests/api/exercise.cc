#include "tests/api/exercise.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/reduce.h"
#include "kernels/small_float.h"
#include "tests/api/ranks.h"

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
      terms[first + i] = op == moecclSum ? four == 0 : four % 8;
    }
  }
  return terms;
}

void combine(moecclRedOp_t op, const Terms& more, Terms& terms) {
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const std::uint8_t a = terms[i], b = more[i];
    terms[i] = op == moecclSum   ? static_cast<std::uint8_t>(a + b)
               : op == moecclMax ? std::max(a, b)
                                 : std::min(a, b);
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

// What is checked of one call at one rank.
class Check {
 public:
  Check(const Exercise& what, moecclComm_t comm, moecclGrid_t grid)
      : what_(what), comm_(comm), grid_(grid), element_(sizeOf(what.datatype)) {
    int ranks = 0;
    check(moecclCommCount(comm, &ranks), comm);
    check(moecclCommUserRank(comm, &rank_), comm);
    contract_ = {what.collective, ranks, {}, what.experts};
    if (grid != nullptr) {
      moecclGridShape_t shape;
      check(moecclGridGetShape(grid, &shape));
      contract_.grid = {shape.nMp, shape.nEp, shape.nEsp, shape.order == moecclOrderEspEp};
    }
    sums_ = reduces(what.collective);
  }

  void run(moecclStream_t stream) {
    std::vector<unsigned char> send = input(), recv = poisoned();
    const std::vector<unsigned char> expected = output();
    unsigned char *in = send.data(), *out = recv.data();
    if (what_.inPlace) placeInPlace(send, recv, &in, &out);
    const std::vector<unsigned char> before = send;
    call(in, out, stream);
    if (what_.synchronize != nullptr)
      what_.synchronize(stream);
    else if (stream != nullptr)
      check(moecclStreamSynchronize(stream), comm_);
    if (!expected.empty() && std::memcmp(out, expected.data(), expected.size()) != 0) {
      const auto at = std::mismatch(expected.begin(), expected.end(), out).second - out;
      throw std::runtime_error(describe(at) + ": " + std::to_string(out[at]) + " instead of " +
                               std::to_string(expected[at]));
    }
    if (!what_.inPlace) {
      checkThat(send == before, "it wrote to sendbuff");
      for (std::size_t at = expected.size(); at < recv.size(); ++at)
        checkThat(recv[at] == kPoison, "it wrote past the end of recvbuff");
    }
  }

 private:
  bool isV() const { return what_.collective == Collective::allToAllv; }

  // Elements of a payload. Of allToAllv: nothing, a hot rank's all, or anything.
  std::size_t sizeOfPayload(Payload payload) const {
    if (!isV()) return what_.count;
    const std::uint64_t h = hash(payload, 1, what_.salt ^ 0x5a5au);
    if (what_.salt % 3 == 0) return payload.block == 0 ? what_.count : 0;
    return h % 3 == 0 ? 0 : h % (what_.count + 1);
  }
  // Parts of allToAllv begin at odd places.
  std::size_t gap() const { return isV() ? 3 : 0; }

  template <typename SizeOf>
  std::vector<std::size_t> displacements(int blocks, const SizeOf& sizeOfBlock) const {
    std::vector<std::size_t> displs{gap()};
    for (int block = 0; block < blocks; ++block)
      displs.push_back(displs.back() + sizeOfBlock(block) + gap());
    return displs;
  }
  std::vector<std::size_t> sendDispls() const {
    return displacements(contract_.inputBlocks(rank_), [&](int block) {
      return sizeOfPayload({rank_, block});
    });
  }
  std::vector<std::size_t> recvDispls() const {
    return displacements(contract_.outputBlocks(rank_), [&](int block) {
      return sizeOfPayload(contract_.expected(rank_, block)[0]);
    });
  }

  void fill(unsigned char* to, Payload payload) const {
    const Payload name = contract_.identity(payload);
    if (sums_) return storeAll(termsOf(name, what_.count, what_.op, what_.salt), to);
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

  std::vector<unsigned char> input() const {
    const std::vector<std::size_t> displs = sendDispls();
    std::vector<unsigned char> bytes(displs.back() * element_, kPoison);
    for (int block = 0; block < contract_.inputBlocks(rank_); ++block)
      fill(bytes.data() + displs[block] * element_, {rank_, block});
    return bytes;
  }

  std::vector<unsigned char> poisoned() const {
    return std::vector<unsigned char>(recvDispls().back() * element_ + kGuard, kPoison);
  }

  std::vector<unsigned char> output() const {
    const std::vector<std::size_t> displs = recvDispls();
    std::vector<unsigned char> bytes(displs.back() * element_, kPoison);
    for (int block = 0; block < contract_.outputBlocks(rank_); ++block) {
      const std::vector<Payload> terms = contract_.expected(rank_, block);
      unsigned char* const to = bytes.data() + displs[block] * element_;
      if (!sums_) {
        fill(to, terms[0]);
        continue;
      }
      Terms result = termsOf(terms[0], what_.count, what_.op, what_.salt);
      for (std::size_t t = 1; t < terms.size(); ++t)
        combine(what_.op, termsOf(terms[t], what_.count, what_.op, what_.salt), result);
      storeAll(result, to);
    }
    return bytes;
  }

  void placeInPlace(std::vector<unsigned char>& send, std::vector<unsigned char>& recv,
                    unsigned char** in, unsigned char** out) const {
    const std::size_t block = what_.count * element_, own = block * rank_;
    switch (what_.collective) {
      case Collective::allGather:
        std::copy(send.begin(), send.end(), recv.begin() + own);
        *in = recv.data() + own;
        return;
      case Collective::reduceScatter:
        *out = send.data() + own;
        return;
      case Collective::allReduce:
        *out = send.data();
        return;
      default:
        throw std::runtime_error("not in place");
    }
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
        return check(moecclAllToAllv(in, sendCounts.data(), sendDispls().data(), out,
                                     recvCounts.data(), recvDispls().data(), type, comm_, stream),
                     comm_);
      }
      case Collective::allGather:
        return check(moecclAllGather(in, out, count, type, comm_, stream), comm_);
      case Collective::reduceScatter:
        return check(moecclReduceScatter(in, out, count, type, what_.op, comm_, stream), comm_);
      case Collective::allReduce:
        return check(moecclAllReduce(in, out, count, type, what_.op, comm_, stream), comm_);
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

  std::string describe(std::size_t at) const {
    return std::string(nameOf(what_.collective)) + (what_.inPlace ? " in place" : "") + ", count " +
           std::to_string(what_.count) + ", type " + std::to_string(what_.datatype) + ", op " +
           std::to_string(what_.op) + ", experts " + std::to_string(what_.experts) + ": byte " +
           std::to_string(at) + " of the output is wrong";
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
  return collective == Collective::allGather || collective == Collective::reduceScatter ||
         collective == Collective::allReduce;
}

bool reduces(Collective collective) {
  return collective == Collective::reduceScatter || collective == Collective::allReduce ||
         collective == Collective::combine || collective == Collective::combineAllGather;
}

void exercise(const Exercise& what, moecclComm_t comm, moecclGrid_t grid, moecclStream_t stream) {
  Check(what, comm, grid).run(stream);
}

}  // namespace moeccl::test
