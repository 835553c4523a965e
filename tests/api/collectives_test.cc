// Every algorithm through the public API, with poisoned outputs: tables of backends, placements,
// types and sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "kernels/reduce.h"
#include "tests/api/exercise.h"
#include "tests/api/ranks.h"

namespace moeccl::test {
namespace {

// What `from` has for `to` in call `salt`: no two words of a job are equal.
void fill(unsigned char* block, size_t bytes, int from, int to, unsigned salt) {
  std::uint64_t word =
      (static_cast<std::uint64_t>(from) << 48 ^ static_cast<std::uint64_t>(to) << 32 ^
       static_cast<std::uint64_t>(salt) << 20) *
      0x9e3779b97f4a7c15u;
  for (size_t at = 0; at < bytes; at += sizeof(word), word += 0x9e3779b97f4a7c15u)
    std::memcpy(block + at, &word, std::min(sizeof(word), bytes - at));
}

void expectBlock(const unsigned char* block, size_t bytes, int from, int to, unsigned salt) {
  std::vector<unsigned char> expected(bytes);
  fill(expected.data(), bytes, from, to, salt);
  if (bytes == 0 || std::memcmp(block, expected.data(), bytes) == 0) return;
  size_t at = 0;
  while (block[at] == expected[at]) ++at;
  throw std::runtime_error("byte " + std::to_string(at) + " of " + std::to_string(bytes) +
                           " from rank " + std::to_string(from) + " is wrong");
}

constexpr unsigned char kPoison = 0xa5;
constexpr size_t kGuard = 64;

void allToAll(moecclComm_t comm, int ranks, int rank, size_t count, moecclDataType_t type,
              unsigned salt, moecclStream_t stream = nullptr) {
  const size_t bytes = count * sizeOf(type);
  std::vector<unsigned char> send(bytes * ranks), recv(bytes * ranks + kGuard, kPoison);
  for (int to = 0; to < ranks; ++to) fill(send.data() + to * bytes, bytes, rank, to, salt);
  const std::vector<unsigned char> before = send;
  check(moecclAllToAll(send.data(), recv.data(), count, type, comm, stream), comm);
  if (stream != nullptr) check(moecclStreamSynchronize(stream), comm);
  for (int from = 0; from < ranks; ++from)
    expectBlock(recv.data() + from * bytes, bytes, from, rank, salt);
  for (size_t i = 0; i < kGuard; ++i)
    checkThat(recv[bytes * ranks + i] == kPoison, "wrote past the end of recvbuff");
  checkThat(send == before, "wrote to sendbuff");
}

// Nothing, a block in a piece, one in many pieces, and a megabyte for a job of few ranks.
constexpr size_t kSizes[] = {0, 1, 2, 333, 1021, 1 << 18};

struct Backend {
  const char* name;
  bool processes, ucx;
};
constexpr Backend kBackends[] = {
    {"loopback", false, false}, {"ucxThreads", false, true}, {"processes", true, false}};

using Nodes = std::vector<int>;

// A line of a table: what is run of one collective, with each of its algorithms.
struct Line {
  Collective collective;
  Backend backend;
  Nodes nodes;
  std::vector<moecclDataType_t> types;
  std::vector<size_t> sizes;
};

std::string nameOfLine(const Line& line) {
  std::string name = std::string(nameOf(line.collective)) + "_" + line.backend.name + "_on";
  for (int size : line.nodes) name += "_" + std::to_string(size);
  return name;
}

// What --gtest_list_tests says of it.
void PrintTo(const Line& line, std::ostream* out) {
  *out << nameOf(line.collective) << " by";
  for (const Algorithm& algorithm : algorithms())
    if (algorithm.collective == line.collective) *out << ' ' << algorithm.name;
  *out << " over " << line.backend.name << ", ranks per node";
  for (int size : line.nodes) *out << ' ' << size;
  *out << ", types";
  for (moecclDataType_t type : line.types) *out << ' ' << nameOf(type);
  *out << (reduces(line.collective) ? " by sum, max and min; some types by every operator" : "")
       << ", counts";
  for (size_t size : line.sizes) *out << ' ' << size;
  *out << (worksInPlace(line.collective) ? ", in place too" : "");
}

std::vector<Collective> collectives() {
  std::vector<Collective> some;
  for (const Algorithm& algorithm : algorithms())
    if (!needsGrid(algorithm.collective) &&
        std::ranges::find(some, algorithm.collective) == some.end())
      some.push_back(algorithm.collective);
  return some;
}

std::vector<moecclDataType_t> allTypes() {
  std::vector<moecclDataType_t> types;
  for (int type = 0; type < moecclNumTypes; ++type)
    types.push_back(static_cast<moecclDataType_t>(type));
  return types;
}

// Sizes and types know nothing of nodes: all of them on one placement, an uneven one of five ranks.
std::vector<Line> typesAndSizes() {
  std::vector<Line> table;
  for (Collective collective : collectives())
    for (const Backend& backend : kBackends)
      table.push_back(
          {collective, backend, {3, 2}, allTypes(), {std::begin(kSizes), std::end(kSizes)}});
  return table;
}

// Placements know nothing of types: one type and two sizes. The tests of plans prove all
// topologies; here a run meets one rank, one node, one rank per node, even, uneven, prime and many.
std::vector<Line> placements() {
  std::vector<Line> table;
  for (Collective collective : collectives()) {
    for (const Nodes& nodes :
         {Nodes{1}, {2}, {1, 1}, {2, 1}, {1, 1, 1, 1, 1}, {1, 2, 4}, {4, 4}, {7, 1}, {4, 4, 4, 4}})
      table.push_back({collective, kBackends[0], nodes, {moecclFloat32}, {7, 1021}});
    for (const Backend& backend : kBackends)
      if (backend.processes || backend.ucx)
        for (const Nodes& nodes : {Nodes{1}, {4, 4}})
          table.push_back({collective, backend, nodes, {moecclFloat32}, {7, 1021}});
  }
  return table;
}

// The product of what the tables have, and more jobs.
std::vector<Line> product() {
  std::vector<Line> table;
  for (Collective collective : collectives())
    for (const Backend& backend : kBackends)
      for (const Nodes& nodes : {Nodes{1},
                                 {2},
                                 {1, 1},
                                 {3},
                                 {1, 1, 1},
                                 {2, 1},
                                 {5},
                                 {4, 1},
                                 {1, 1, 1, 1, 1},
                                 {1, 2, 2},
                                 {8},
                                 {4, 4},
                                 {7, 1},
                                 {1, 1, 1, 1, 1, 1, 1, 1},
                                 {1, 2, 5},
                                 {16},
                                 {8, 8},
                                 {15, 1},
                                 {1, 2, 13},
                                 {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}})
        table.push_back(
            {collective, backend, nodes, allTypes(), {std::begin(kSizes), std::end(kSizes)}});
  return table;
}

// Every type at one size and every size in one type, in place too where that is offered.
void call(const Line& line, moecclComm_t comm) {
  Exercise what{.collective = line.collective};
  const auto one = [&](size_t count, moecclDataType_t type, moecclRedOp_t op) {
    what.count = count;
    what.datatype = type;
    what.op = op;
    for (bool inPlace : {false, true}) {
      if (inPlace && !worksInPlace(line.collective)) break;
      what.inPlace = inPlace;
      ++what.salt;
      exercise(what, comm, nullptr, nullptr);
    }
  };
  for (moecclDataType_t type : line.types)
    for (moecclRedOp_t op : {moecclSum, moecclMax, moecclMin})
      if (op == moecclSum || reduces(line.collective)) one(333, type, op);
  if (reduces(line.collective)) {
    for (moecclRedOp_t op : {moecclProd, moecclBitAnd, moecclBitOr, moecclBitXor})
      one(333, moecclInt16, op);
    for (moecclDataType_t type : {moecclFloat32, moecclBfloat16, moecclInt64})
      one(333, type, moecclAvg);
    one(333, moecclFloat32, moecclProd);
  }
  // A small one behind a large one, and nothing between others.
  for (size_t count : line.sizes) one(count, moecclFloat32, moecclSum);
  one(0, moecclFloat64, moecclSum);
  one(1, moecclBfloat16, moecclSum);
}

class EveryAlgorithm : public testing::TestWithParam<Line> {};

// Each algorithm on a communicator of its own; they share the connections.
TEST_P(EveryAlgorithm, KeepsItsPromise) {
  const Line& line = GetParam();
  const Job job{.ranks = std::reduce(line.nodes.begin(), line.nodes.end()),
                .nodes = line.nodes,
                .algorithms = {},
                .processes = line.backend.processes,
                .ucx = line.backend.ucx};
  runJob(job, [&](moecclComm_t comm, int rank) {
    for (const Algorithm& algorithm : algorithms()) {
      if (algorithm.collective != line.collective) continue;
      const std::string name =
          std::string(nameOf(line.collective)) + "=" + std::string(algorithm.name);
      moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
      config.algorithms = name.c_str();
      config.timeoutMs = job.timeoutMs;
      moecclComm_t own = nullptr;
      check(moecclCommSplit(comm, 0, rank, &own, &config), comm);
      try {
        call(line, own);
      } catch (const std::exception& e) {
        throw std::runtime_error(name + ": " + e.what());
      }
      check(moecclCommDestroy(own));
    }
  });
}

const auto nameOfCase = [](const auto& info) { return nameOfLine(info.param); };
INSTANTIATE_TEST_SUITE_P(TypesAndSizes, EveryAlgorithm, testing::ValuesIn(typesAndSizes()),
                         nameOfCase);
INSTANTIATE_TEST_SUITE_P(Placements, EveryAlgorithm, testing::ValuesIn(placements()), nameOfCase);
INSTANTIATE_TEST_SUITE_P(Slow, EveryAlgorithm, testing::ValuesIn(product()), nameOfCase);

// What else an algorithm can be told.
TEST(Parameters, AreObeyed) {
  for (const char* algorithms :
       {"alltoall=hierarchical:leaders=1;alltoallv=hierarchical:leaders=2",
        "alltoall=bruck:radix=3;alltoallv=bruck:radix=4",
        "alltoall=linear:window=1;alltoallv=linear:window=3", "alltoall=hierarchical:leaders=2"}) {
    Job job{.ranks = 7, .nodes = {3, 1, 3}, .algorithms = algorithms};
    runJob(job, [](moecclComm_t comm, int) {
      Exercise what;
      for (what.salt = 1; what.salt < 7; ++what.salt)
        for (Collective collective : {Collective::allToAll, Collective::allToAllv}) {
          what.collective = collective;
          what.count = what.salt * 50;
          exercise(what, comm, nullptr, nullptr);
        }
    });
  }
}

class Streams : public testing::TestWithParam<Backend> {};

// Several streams at once, communicators of one family on them, small calls behind large ones.
TEST_P(Streams, RunInOrderAndAtOnce) {
  for (bool progressThread : {false, true}) {
    Job job{.ranks = 4, .nodes = {2, 2}, .algorithms = "alltoall=hierarchical"};
    job.processes = GetParam().processes;
    job.ucx = GetParam().ucx;
    job.progressThread = progressThread;
    runJob(job, [&](moecclComm_t comm, int rank) {
      moecclComm_t half = nullptr;
      check(moecclCommSplit(comm, rank % 2, rank, &half, nullptr), comm);
      moecclStream_t one = nullptr, two = nullptr;
      check(moecclStreamCreate(comm, &one), comm);
      check(moecclStreamCreate(half, &two), half);
      checkThat(moecclStreamQuery(one) == moecclSuccess, "an empty stream is not complete");
      constexpr int kCalls = 8;
      const size_t sizes[] = {1 << 18, 1, 1000, 0};
      std::vector<std::vector<unsigned char>> sends, recvs;
      for (int i = 0; i < kCalls; ++i) {
        const size_t bytes = sizes[i % 4];
        sends.emplace_back(bytes * 4);
        recvs.emplace_back(bytes * 4, kPoison);
        for (int to = 0; to < 4; ++to) fill(sends.back().data() + to * bytes, bytes, rank, to, i);
      }
      for (int i = 0; i < kCalls; ++i) {
        const bool onHalf = i % 3 == 2;
        check(moecclAllToAll(sends[i].data(), recvs[i].data(), sizes[i % 4], moecclUint8,
                             onHalf ? half : comm, i % 2 == 0 ? one : two),
              comm);
      }
      // A call on the NULL stream overtakes what is queued.
      allToAll(comm, 4, rank, 100, moecclUint8, 77);
      moecclResult_t state;
      while ((state = moecclStreamQuery(one)) == moecclInProgress) {
      }
      check(state);
      check(moecclStreamSynchronize(two));
      for (int i = 0; i < kCalls; ++i) {
        const size_t bytes = sizes[i % 4];
        const bool onHalf = i % 3 == 2;
        for (int from = 0; from < (onHalf ? 2 : 4); ++from)
          expectBlock(recvs[i].data() + from * bytes, bytes, onHalf ? from * 2 + rank % 2 : from,
                      onHalf ? rank / 2 : rank, i);
      }
      check(moecclStreamDestroy(one));
      check(moecclStreamDestroy(two));
      check(moecclCommDestroy(half));
    });
  }
}

// Tags count calls modulo 512. A call that cannot start on rank 0 must not get the data of the one
// 512 later, which has the same tags. So 256 are unfinished at most, as moeccl.h says: one more
// waits, here until the time is up.
TEST_P(Streams, QueuedCallNeverMeetsALaterOne) {
  Job job{.ranks = 2, .nodes = {}, .algorithms = {}};
  job.processes = GetParam().processes;
  job.ucx = GetParam().ucx;
  job.timeoutMs = 1000;
  runJob(job, [&](moecclComm_t comm, int rank) {
    moecclComm_t other = nullptr;
    moecclStream_t held = nullptr, stream = nullptr;
    check(moecclCommSplit(comm, 0, rank, &other, nullptr), comm);
    check(moecclStreamCreate(comm, &held), comm);
    check(moecclStreamCreate(comm, &stream), comm);
    constexpr int kCalls = 600;
    std::vector<std::array<int, 2>> in(kCalls), out(kCalls, {-1, -1});
    for (int call = 0; call < kCalls; ++call) in[call] = {call, call};
    int never[2] = {}, neverOut[2] = {};
    // Only rank 0 makes the call at the head of its queue.
    if (rank == 0) check(moecclAllToAll(never, neverOut, 1, moecclInt32, other, held), other);
    moecclResult_t result = moecclSuccess;
    int made = 0;
    for (; made < kCalls; ++made) {
      result = moecclAllToAll(in[made].data(), out[made].data(), 1, moecclInt32, comm,
                              made == 0 ? held : stream);
      if (result != moecclSuccess) break;
    }
    checkThat(rank != 0 || made == 256, std::to_string(made) + " calls were unfinished at once");
    if (result == moecclSuccess) result = moecclStreamSynchronize(held);
    checkThat(result == moecclTimeout || result == moecclRemoteError,
              "a call that one rank never starts ended with " + std::to_string(result));
    for (int call = 0; call < kCalls; ++call)
      for (int value : out[call])
        checkThat(value == call || value == -1,
                  "call " + std::to_string(call) + " received " + std::to_string(value));
    moecclStreamDestroy(stream);
    moecclStreamDestroy(held);
    moecclCommDestroy(other);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Streams, testing::ValuesIn(kBackends),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace moeccl::test
