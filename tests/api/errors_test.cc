// Every wrong argument of every public function: its result code, and a text that names the
// argument and what would be right. Nothing is sent, and the communicator works afterwards.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/api/ranks.h"
#include "tests/sanitized.h"

namespace moeccl::test {
namespace {

using Parts = std::vector<std::string>;

// A rank that cannot go on ends the calls of its peers on a grid's groups, and the communicator is
// as it was.
TEST(Grids, CanBeAborted) {
  runJob({.ranks = 4, .nodes = {2, 2}, .algorithms = {}}, [](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, {2, 2, 2, moecclOrderEspEp});
    if (rank != 3) {
      for (const moecclGroup_t group : {moecclGroupMp, moecclGroupEp, moecclGroupEsp}) {
        moecclComm_t ranks = nullptr;
        check(moecclGridGetComm(grid, group, &ranks));
        const bool withIt = group == moecclGroupEp ? rank == 1 : rank == 2;
        if (!withIt) continue;
        int in[2] = {}, out[2] = {};
        checkError(moecclAllToAll(in, out, 1, moecclInt32, ranks, nullptr), moecclRemoteError,
                   ranks, {"aborted"});
      }
    }
    check(moecclGridAbort(grid));
    check(moecclGridAbort(nullptr));
    std::vector<int> out(4);
    check(moecclAllGather(&rank, out.data(), 1, moecclInt32, comm, nullptr), comm);
    for (int i = 0; i < 4; ++i) checkThat(out[static_cast<std::size_t>(i)] == i, "data");
  });
}

// A rank that throws in a test does not keep its peers, and what it threw is what the test says.
TEST(Grids, EndWithTheRankThatThrows) {
  const auto begin = std::chrono::steady_clock::now();
  Job job;
  job.ranks = 2;
  job.timeoutMs = 10000;
  const auto function = [](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, {1, 2, 1, moecclOrderEspEp});
    if (rank == 1) throw std::runtime_error("thrown");
    moecclComm_t ranks = nullptr;
    check(moecclGridGetComm(grid, moecclGroupEp, &ranks));
    int both[2] = {};
    check(moecclAllGather(&rank, both, 1, moecclInt32, ranks, nullptr), ranks);
  };
  EXPECT_NONFATAL_FAILURE(runJob(job, function), "rank 1: thrown");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

// A stream may outlive the communicators whose calls failed on it.
TEST(Streams, OutliveAbortedCommunicators) {
  runJob({.ranks = 2, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int rank) {
    moecclComm_t other = nullptr;
    check(moecclCommSplit(comm, 0, rank, &other, nullptr), comm);
    moecclStream_t stream = nullptr;
    check(moecclStreamCreate(comm, &stream), comm);
    int in[2] = {}, out[2] = {};
    if (rank == 0) check(moecclAllToAll(in, out, 1, moecclInt32, other, stream), other);
    check(moecclAllGather(in, out, 1, moecclInt32, comm, nullptr), comm);  // after that
    check(moecclCommAbort(other));
    if (rank == 0) {
      checkThat(moecclStreamSynchronize(stream) != moecclSuccess, "aborted work is complete");
      checkThat(moecclStreamQuery(stream) != moecclSuccess, "and again");
    }
    checkThat((moecclStreamDestroy(stream) == moecclSuccess) == (rank == 1), "result");
  });
}

// A communicator of one rank.
class OneRank : public testing::Test {
 protected:
  void SetUp() override {
    moecclUniqueId id;
    ASSERT_EQ(moecclGetUniqueId(&id), moecclSuccess) << moecclGetLastError(nullptr);
    ASSERT_EQ(moecclCommInitRank(&comm, 1, id, 0), moecclSuccess) << moecclGetLastError(nullptr);
  }
  void TearDown() override {
    int in = 7, out = 0;
    EXPECT_EQ(moecclAllToAll(&in, &out, 1, moecclInt32, comm, nullptr), moecclSuccess)
        << "the communicator is not usable after a wrong argument";
    EXPECT_EQ(out, 7);
    EXPECT_EQ(moecclCommDestroy(comm), moecclSuccess);
  }
  void wrong(moecclResult_t result, const Parts& parts,
             moecclResult_t expected = moecclInvalidArgument, bool ofThread = false) {
    EXPECT_NO_THROW(checkError(result, expected, ofThread ? nullptr : comm, parts));
  }
  void wrongHere(moecclResult_t result, const Parts& parts) {
    wrong(result, parts, moecclInvalidArgument, true);
  }

  moecclComm_t comm = nullptr;
};

int failingAllgather(const void*, void*, size_t, void*) { return 1; }

int aloneAllgather(const void* send, void* recv, size_t bytes, void*) {
  std::memcpy(recv, send, bytes);
  return 0;
}

TEST_F(OneRank, VersionAndStrings) {
  int version = 0;
  EXPECT_EQ(moecclGetVersion(&version), moecclSuccess);
  EXPECT_EQ(version, MOECCL_VERSION);
  wrongHere(moecclGetVersion(nullptr), {"moecclGetVersion", "version is NULL"});
  std::set<std::string> texts;
  for (int result = 0; result < moecclNumResults; ++result)
    texts.insert(moecclGetErrorString(static_cast<moecclResult_t>(result)));
  EXPECT_EQ(texts.size(), static_cast<size_t>(moecclNumResults)) << "two codes share a text";
  EXPECT_STREQ(moecclGetErrorString(static_cast<moecclResult_t>(99)), "unknown result code");
}

TEST_F(OneRank, Creation) {
  moecclUniqueId id;
  ASSERT_EQ(moecclGetUniqueId(&id), moecclSuccess);
  moecclComm_t other = nullptr;
  wrongHere(moecclGetUniqueId(nullptr), {"moecclGetUniqueId", "uniqueId is NULL"});
  wrongHere(moecclCommInitRank(nullptr, 1, id, 0), {"moecclCommInitRank", "comm is NULL"});
  wrongHere(moecclCommInitRank(&other, 0, id, 0), {"nRanks is 0", "at least one"});
  wrongHere(moecclCommInitRank(&other, -3, id, 0), {"nRanks is -3"});
  wrongHere(moecclCommInitRank(&other, 1 << 20, id, 0), {"nRanks is 1048576", "65536"});
  wrongHere(moecclCommInitRank(&other, 4, id, 4), {"rank is 4", "[0, 4)"});
  wrongHere(moecclCommInitRank(&other, 4, id, -1), {"rank is -1", "[0, 4)"});
  moecclUniqueId zero;
  std::memset(&zero, 0, sizeof(zero));
  wrongHere(moecclCommInitRank(&other, 1, zero, 0), {"moecclGetUniqueId"});
  moecclUniqueId damaged = id;
  damaged.internal[0] ^= 1;
  wrongHere(moecclCommInitRank(&other, 1, damaged, 0), {"moecclGetUniqueId"});

  moecclConfig_t config;
  std::memset(&config, 0, sizeof(config));
  wrongHere(moecclCommInitRankConfig(&other, 1, id, 0, &config), {"MOECCL_CONFIG_INITIALIZER"});
  config = MOECCL_CONFIG_INITIALIZER;
  config.algorithms = "alltoall=fastest";
  wrongHere(moecclCommInitRankConfig(&other, 1, id, 0, &config),
            {"algorithms", "fastest", "linear", "pairwise", "hierarchical"});
  config.algorithms = "altoall=linear";
  wrongHere(moecclCommInitRankConfig(&other, 1, id, 0, &config),
            {"altoall", "alltoall", "allgather"});
  config.algorithms = "linear";
  wrongHere(moecclCommInitRankConfig(&other, 1, id, 0, &config), {"linear"});
  moecclConfig_t odd = MOECCL_CONFIG_INITIALIZER;
  odd.progressThread = 2;
  wrongHere(moecclCommInitRankConfig(&other, 1, id, 0, &odd), {"progressThread is 2", "0 or 1"});
  EXPECT_EQ(other, nullptr);

  wrongHere(moecclCommInitEnv(nullptr, nullptr), {"moecclCommInitEnv", "comm is NULL"});
  wrongHere(moecclCommInitEnv(&other, &config), {"linear"});

  moecclOob_t oob = {&aloneAllgather, nullptr};
  wrongHere(moecclCommInitOob(nullptr, 1, 0, &oob, nullptr), {"moecclCommInitOob", "comm is NULL"});
  wrongHere(moecclCommInitOob(&other, 1, 0, nullptr, nullptr), {"oob is NULL"});
  wrongHere(moecclCommInitOob(&other, 0, 0, &oob, nullptr), {"nRanks is 0"});
  wrongHere(moecclCommInitOob(&other, 2, 2, &oob, nullptr), {"rank is 2", "[0, 2)"});
  wrongHere(moecclCommInitOob(&other, 3, -1, &oob, nullptr), {"rank is -1", "[0, 3)"});
  oob.allgather = nullptr;
  wrongHere(moecclCommInitOob(&other, 1, 0, &oob, nullptr), {"allgather"});
  oob.allgather = &failingAllgather;
  wrong(moecclCommInitOob(&other, 1, 0, &oob, nullptr), {"rank 0"}, moecclSystemError, true);
  EXPECT_EQ(other, nullptr);

  // The id was not used up by any of this.
  ASSERT_EQ(moecclCommInitRank(&other, 1, id, 0), moecclSuccess) << moecclGetLastError(nullptr);
  EXPECT_EQ(moecclCommDestroy(other), moecclSuccess);
  oob.allgather = &aloneAllgather;
  ASSERT_EQ(moecclCommInitOob(&other, 1, 0, &oob, nullptr), moecclSuccess)
      << moecclGetLastError(nullptr);
  EXPECT_EQ(moecclCommDestroy(other), moecclSuccess);
}

TEST_F(OneRank, Queries) {
  int value = -1;
  moecclResult_t state = moecclInternalError;
  EXPECT_EQ(moecclCommCount(comm, &value), moecclSuccess);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(moecclCommUserRank(comm, &value), moecclSuccess);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(moecclCommNodeCount(comm, &value), moecclSuccess);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(moecclCommNodeOfRank(comm, 0, &value), moecclSuccess);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(moecclCommGetAsyncError(comm, &state), moecclSuccess);
  EXPECT_EQ(state, moecclSuccess);
  wrongHere(moecclCommCount(nullptr, &value), {"moecclCommCount", "comm is NULL"});
  wrong(moecclCommCount(comm, nullptr), {"nRanks is NULL"});
  wrongHere(moecclCommUserRank(nullptr, &value), {"moecclCommUserRank", "comm is NULL"});
  wrong(moecclCommUserRank(comm, nullptr), {"rank is NULL"});
  wrongHere(moecclCommNodeCount(nullptr, &value), {"comm is NULL"});
  wrong(moecclCommNodeCount(comm, nullptr), {"nNodes is NULL"});
  wrongHere(moecclCommNodeOfRank(nullptr, 0, &value), {"comm is NULL"});
  wrong(moecclCommNodeOfRank(comm, 1, &value), {"rank is 1", "[0, 1)"});
  wrong(moecclCommNodeOfRank(comm, -1, &value), {"rank is -1"});
  wrong(moecclCommNodeOfRank(comm, 0, nullptr), {"node is NULL"});
  wrongHere(moecclCommGetAsyncError(nullptr, &state), {"comm is NULL"});
  wrong(moecclCommGetAsyncError(comm, nullptr), {"asyncError is NULL"});
  EXPECT_EQ(moecclCommDestroy(nullptr), moecclSuccess);
  EXPECT_EQ(moecclCommAbort(nullptr), moecclSuccess);
}

TEST_F(OneRank, Split) {
  moecclComm_t part = nullptr;
  wrongHere(moecclCommSplit(nullptr, 0, 0, &part, nullptr), {"moecclCommSplit", "comm is NULL"});
  wrong(moecclCommSplit(comm, 0, 0, nullptr, nullptr), {"newComm is NULL"});
  wrong(moecclCommSplit(comm, -2, 0, &part, nullptr), {"color is -2", "MOECCL_SPLIT_NOCOLOR"});
  moecclConfig_t config;
  std::memset(&config, 0, sizeof(config));
  wrong(moecclCommSplit(comm, 0, 0, &part, &config), {"MOECCL_CONFIG_INITIALIZER"});
  EXPECT_EQ(moecclCommSplit(comm, MOECCL_SPLIT_NOCOLOR, 0, &part, nullptr), moecclSuccess);
  EXPECT_EQ(part, nullptr);
}

TEST_F(OneRank, Streams) {
  moecclStream_t stream = nullptr;
  wrongHere(moecclStreamCreate(nullptr, &stream), {"moecclStreamCreate", "comm is NULL"});
  wrong(moecclStreamCreate(comm, nullptr), {"stream is NULL"});
  wrongHere(moecclStreamQuery(nullptr), {"moecclStreamQuery", "stream is NULL"});
  EXPECT_EQ(moecclStreamSynchronize(nullptr), moecclSuccess);
  EXPECT_EQ(moecclStreamDestroy(nullptr), moecclSuccess);

  moecclUniqueId id;
  moecclComm_t stranger = nullptr;
  ASSERT_EQ(moecclGetUniqueId(&id), moecclSuccess);
  ASSERT_EQ(moecclCommInitRank(&stranger, 1, id, 0), moecclSuccess);
  ASSERT_EQ(moecclStreamCreate(stranger, &stream), moecclSuccess);
  int in = 1, out = 0;
  wrong(moecclAllToAll(&in, &out, 1, moecclInt32, comm, stream), {"stream", "moecclStreamCreate"});
  EXPECT_EQ(moecclStreamDestroy(stream), moecclSuccess);
  EXPECT_EQ(moecclCommDestroy(stranger), moecclSuccess);
}

TEST_F(OneRank, Collectives) {
  int in[4] = {}, out[4] = {};
  const size_t huge = std::numeric_limits<size_t>::max() / 8;
  const auto noType = static_cast<moecclDataType_t>(99);
  wrongHere(moecclAllToAll(in, out, 1, moecclInt32, nullptr, nullptr),
            {"moecclAllToAll", "comm is NULL"});
  wrong(moecclAllToAll(nullptr, out, 1, moecclInt32, comm, nullptr), {"sendbuff is NULL"});
  wrong(moecclAllToAll(in, nullptr, 1, moecclInt32, comm, nullptr), {"recvbuff is NULL"});
  wrong(moecclAllToAll(in, out, 1, noType, comm, nullptr), {"datatype is 99"});
  wrong(moecclAllToAll(in, out, huge, moecclInt64, comm, nullptr), {"count is", "address space"});
  wrong(moecclAllToAll(in, in, 1, moecclInt32, comm, nullptr), {"overlap"});
  wrong(moecclAllToAll(in, in + 1, 2, moecclInt32, comm, nullptr), {"overlap"});
  EXPECT_EQ(moecclAllToAll(nullptr, nullptr, 0, moecclInt32, comm, nullptr), moecclSuccess);

  wrongHere(moecclAllGather(in, out, 1, moecclInt32, nullptr, nullptr),
            {"moecclAllGather", "comm is NULL"});
  wrong(moecclAllGather(nullptr, out, 1, moecclInt32, comm, nullptr), {"sendbuff is NULL"});
  wrong(moecclAllGather(in, nullptr, 1, moecclInt32, comm, nullptr), {"recvbuff is NULL"});
  wrong(moecclAllGather(in, out, 1, noType, comm, nullptr), {"datatype is 99"});
  wrong(moecclAllGather(in, out, huge, moecclInt64, comm, nullptr),
        {"sendCount is", "address space"});
  wrong(moecclAllGather(in, in + 1, 2, moecclInt32, comm, nullptr), {"overlap", "in place"});
  EXPECT_EQ(moecclAllGather(nullptr, nullptr, 0, moecclInt32, comm, nullptr), moecclSuccess);
  EXPECT_EQ(moecclAllGather(in, in, 2, moecclInt32, comm, nullptr), moecclSuccess);
}

TEST_F(OneRank, RootedCollectives) {
  int in[4] = {};
  using Function = moecclResult_t (*)(const void*, void*, size_t, moecclDataType_t, int,
                                      moecclComm_t, moecclStream_t);
  for (const Function function : {moecclBroadcast, moecclGather, moecclScatter}) {
    wrong(function(in, in + 1, 2, moecclInt32, 0, comm, nullptr), {"overlap", "in place"});
    wrong(function(in + 1, in, 2, moecclInt32, 0, comm, nullptr), {"overlap", "in place"});
    EXPECT_EQ(function(in, in, 2, moecclInt32, 0, comm, nullptr), moecclSuccess);
  }
  wrong(moecclReduce(in, in + 1, 2, moecclInt32, moecclSum, 0, comm, nullptr),
        {"overlap", "in place"});
  EXPECT_EQ(moecclReduce(in, in, 2, moecclInt32, moecclSum, 0, comm, nullptr), moecclSuccess);
}

TEST_F(OneRank, AllToAllv) {
  int in[4] = {}, out[4] = {};
  const size_t huge = std::numeric_limits<size_t>::max() / 8, one = 1, two = 2, zero = 0;
  const auto call = [&](const void* send, const size_t* sendCounts, const size_t* sendDispls,
                        void* recv, const size_t* recvCounts, const size_t* recvDispls,
                        moecclDataType_t type = moecclInt32) {
    return moecclAllToAllv(send, sendCounts, sendDispls, recv, recvCounts, recvDispls, type, comm,
                           nullptr);
  };
  wrongHere(moecclAllToAllv(in, &one, &zero, out, &one, &zero, moecclInt32, nullptr, nullptr),
            {"moecclAllToAllv", "comm is NULL"});
  wrong(call(in, nullptr, &zero, out, &one, &zero), {"sendCounts is NULL", "1 ranks"});
  wrong(call(in, &one, nullptr, out, &one, &zero), {"sendDispls is NULL"});
  wrong(call(in, &one, &zero, out, nullptr, &zero), {"recvCounts is NULL"});
  wrong(call(in, &one, &zero, out, &one, nullptr), {"recvDispls is NULL"});
  wrong(call(nullptr, &one, &zero, out, &one, &zero), {"sendbuff is NULL", "sendCounts[0] is 1"});
  wrong(call(in, &one, &zero, nullptr, &one, &zero), {"recvbuff is NULL", "recvCounts[0] is 1"});
  wrong(call(in, &huge, &zero, out, &huge, &zero, moecclInt64),
        {"sendCounts[0] is", "address space"});
  wrong(call(in, &one, &huge, out, &one, &zero, moecclInt64),
        {"sendDispls[0] is", "address space"});
  wrong(call(in, &one, &zero, out, &two, &zero), {"sendCounts[0] is 1, recvCounts[0] is 2"});
  wrong(call(in, &two, &zero, in, &two, &one), {"overlaps", "in place"});
  wrong(call(in, &one, &zero, out, &one, &zero, static_cast<moecclDataType_t>(99)),
        {"datatype is 99"});
  EXPECT_EQ(call(nullptr, &zero, &one, nullptr, &zero, &one), moecclSuccess);
  // Apart within one array.
  EXPECT_EQ(call(in, &two, &zero, in, &two, &two), moecclSuccess);
}

TEST_F(OneRank, Reductions) {
  int in[4] = {}, out[4] = {};
  const size_t huge = std::numeric_limits<size_t>::max() / 8;
  const auto noType = static_cast<moecclDataType_t>(99);
  using Function = moecclResult_t (*)(const void*, void*, size_t, moecclDataType_t, moecclRedOp_t,
                                      moecclComm_t, moecclStream_t);
  for (const auto& [function, name, count] :
       {std::tuple<Function, const char*, const char*>{moecclReduceScatter, "moecclReduceScatter",
                                                       "recvCount is"},
        {moecclAllReduce, "moecclAllReduce", "count is"}}) {
    wrongHere(function(in, out, 1, moecclInt32, moecclSum, nullptr, nullptr),
              {name, "comm is NULL"});
    wrong(function(nullptr, out, 1, moecclInt32, moecclSum, comm, nullptr),
          {name, "sendbuff is NULL"});
    wrong(function(in, nullptr, 1, moecclInt32, moecclSum, comm, nullptr), {"recvbuff is NULL"});
    wrong(function(in, out, 1, noType, moecclSum, comm, nullptr), {"datatype is 99"});
    wrong(function(in, out, huge, moecclInt64, moecclSum, comm, nullptr), {count, "address space"});
    wrong(function(in, out, 1, moecclInt32, moecclNumOps, comm, nullptr),
          {"op is 8", "moecclSum to moecclBitXor"});
    wrong(function(in, out, 1, moecclFloat32, moecclBitOr, comm, nullptr),
          {"op is 6", "datatype must be one of integers"});
    wrong(function(in, in + 1, 2, moecclInt32, moecclSum, comm, nullptr), {"overlap", "in place"});
    EXPECT_EQ(function(nullptr, nullptr, 0, moecclInt32, moecclSum, comm, nullptr), moecclSuccess);
    EXPECT_EQ(function(in, in, 2, moecclInt32, moecclMax, comm, nullptr), moecclSuccess);
  }
}

TEST_F(OneRank, GridCollectives) {
  int in[4] = {}, out[4] = {};
  const size_t huge = std::numeric_limits<size_t>::max() / 8;
  const auto noType = static_cast<moecclDataType_t>(99);
  moecclGrid_t grid = nullptr;
  ASSERT_EQ(moecclGridCreate(comm, {1, 1, 1, moecclOrderEspEp}, &grid), moecclSuccess);
  using Function = moecclResult_t (*)(const void*, void*, size_t, int, moecclDataType_t,
                                      moecclGrid_t, moecclStream_t);
  // No experts.
  const Function tpAllToAll = [](const void* send, void* recv, size_t count, int,
                                 moecclDataType_t type, moecclGrid_t grid, moecclStream_t stream) {
    return moecclTpAllToAll(send, recv, count, type, grid, stream);
  };
  for (const auto& [function, name] :
       {std::pair<Function, const char*>{tpAllToAll, "moecclTpAllToAll"},
        {moecclDispatch, "moecclDispatch"},
        {moecclCombine, "moecclCombine"},
        {moecclCombineAllGather, "moecclCombineAllGather"},
        {moecclSplitDispatch, "moecclSplitDispatch"}}) {
    wrongHere(function(in, out, 1, 1, moecclInt32, nullptr, nullptr), {name, "grid is NULL"});
    wrong(function(nullptr, out, 1, 1, moecclInt32, grid, nullptr), {name, "sendbuff is NULL"});
    wrong(function(in, nullptr, 1, 1, moecclInt32, grid, nullptr), {"recvbuff is NULL"});
    wrong(function(in, out, 1, 1, noType, grid, nullptr), {"datatype is 99"});
    wrong(function(in, out, huge, 1, moecclInt64, grid, nullptr), {"count is", "address space"});
    wrong(function(in, in, 1, 1, moecclInt32, grid, nullptr), {"overlap", "in place"});
    if (function != tpAllToAll) {
      wrong(function(in, out, 1, 0, moecclInt32, grid, nullptr), {"nExpertsPerRank is 0"});
      wrong(function(in, out, 1, std::numeric_limits<int>::max(), moecclInt32, grid, nullptr),
            {"nExpertsPerRank is 2147483647", "at most"});
    }
    EXPECT_EQ(function(nullptr, nullptr, 0, 1, moecclInt32, grid, nullptr), moecclSuccess);
    in[0] = 5;
    EXPECT_EQ(function(in, out, 1, 1, moecclInt32, grid, nullptr), moecclSuccess);
    EXPECT_EQ(out[0], 5) << name;
  }
  EXPECT_EQ(moecclGridDestroy(grid), moecclSuccess);
}

TEST_F(OneRank, Grids) {
  moecclGrid_t grid = nullptr;
  moecclGridShape_t shape = {1, 1, 1, moecclOrderEspEp};
  wrongHere(moecclGridCreate(nullptr, shape, &grid), {"moecclGridCreate", "comm is NULL"});
  wrong(moecclGridCreate(comm, shape, nullptr), {"grid is NULL"});
  const auto wrongShape = [&](moecclGridShape_t bad, const Parts& parts) {
    wrong(moecclGridCreate(comm, bad, &grid), parts);
    EXPECT_EQ(grid, nullptr);
  };
  wrongShape({0, 1, 1, moecclOrderEspEp}, {"shape.nMp is 0"});
  wrongShape({1, -1, 1, moecclOrderEspEp}, {"shape.nEp is -1"});
  wrongShape({1, 1, 0, moecclOrderEspEp}, {"shape.nEsp is 0"});
  wrongShape({1, 2, 1, moecclOrderEspEp}, {"shape.nEp * shape.nEsp is 2 * 1", "ranks, 1"});
  wrongShape({1, 65536, 65536, moecclOrderEspEp}, {"65536 * 65536"});
  wrongShape({2, 1, 1, moecclOrderEspEp}, {"shape.nMp is 2", "divide"});
  wrongShape({1, 1, 1, static_cast<moecclGridOrder_t>(7)}, {"shape.order is 7"});

  ASSERT_EQ(moecclGridCreate(comm, shape, &grid), moecclSuccess) << moecclGetLastError(comm);
  moecclComm_t group = nullptr;
  wrongHere(moecclGridGetShape(nullptr, &shape), {"moecclGridGetShape", "grid is NULL"});
  wrongHere(moecclGridGetShape(grid, nullptr), {"shape is NULL"});
  wrongHere(moecclGridGetComm(nullptr, moecclGroupEp, &group), {"grid is NULL"});
  wrongHere(moecclGridGetComm(grid, moecclGroupEp, nullptr), {"comm is NULL"});
  wrongHere(moecclGridGetComm(grid, static_cast<moecclGroup_t>(4), &group), {"group is 4"});
  EXPECT_EQ(moecclGridGetComm(grid, moecclGroupWorld, &group), moecclSuccess);
  EXPECT_EQ(group, comm);
  EXPECT_EQ(moecclGridDestroy(grid), moecclSuccess);
  EXPECT_EQ(moecclGridDestroy(nullptr), moecclSuccess);
}

struct Backend {
  const char* name;
  bool processes, ucx;
};

class Disagreement : public testing::TestWithParam<Backend> {
 protected:
  Job job(int ranks) const {
    Job job{.ranks = ranks, .nodes = {}, .algorithms = {}};
    job.processes = GetParam().processes;
    job.ucx = GetParam().ucx;
    return job;
  }
};

// One rank calls with another count: all learn so, with both counts.
TEST_P(Disagreement, AnotherCount) {
  for (const char* algorithm : {"alltoall=linear", "alltoall=pairwise", "alltoall=hierarchical"})
    for (size_t odd : {0, 1, 3, 5000}) {
      Job wanted = job(4);
      wanted.nodes = {2, 2};
      wanted.algorithms = algorithm;
      runJob(wanted, [&](moecclComm_t comm, int rank) {
        std::vector<int> in(4 * 5000), out(4 * 5000);
        const size_t count = rank == 1 ? odd : 2;
        const moecclResult_t result =
            moecclAllToAll(in.data(), out.data(), count, moecclInt32, comm, nullptr);
        const Parts both = {"rank 1 called alltoall", " of 2 x int32",
                            " of " + std::to_string(odd) + " x int32"};
        checkError(result, moecclRemoteError, comm, both);
        // And again, whatever is called.
        checkError(moecclAllGather(in.data(), out.data(), 1, moecclInt32, comm, nullptr),
                   moecclRemoteError, comm, both);
        moecclResult_t state = moecclSuccess;
        check(moecclCommGetAsyncError(comm, &state), comm);
        checkThat(state == moecclRemoteError, "GetAsyncError does not tell");
      });
    }
}

// The library chooses by the count: Bruck's messages for one, of four blocks each, are as large as
// linear's for the other. Nobody takes the one for the other.
TEST_P(Disagreement, AnotherCountAndSoAnotherAlgorithm) {
  runJob(job(16), [&](moecclComm_t comm, int rank) {
    std::vector<int> in(16 * 64, rank), out(16 * 64);
    checkError(
        moecclAllToAll(in.data(), out.data(), rank == 3 ? 64 : 16, moecclInt32, comm, nullptr),
        moecclRemoteError, comm,
        {"rank 3 called alltoall", " of 64 x int32", " of 16 x int32", "the same calls"});
  });
}

// Calls that do not go together: what all ranks but the last make, and what that makes; `texts` of
// both.
struct Mismatched {
  std::string name;
  std::vector<std::string> texts;
  using Calls = std::function<moecclResult_t(moecclComm_t comm, moecclStream_t stream)>;
  Calls most, odd;
  const char* algorithms = "";
};

thread_local int in[512], out[512];  // nobody gets so far that the values matter

std::vector<Mismatched> mismatchedCalls() {
  using Calls = Mismatched::Calls;
  const auto allToAll = [](size_t count, moecclDataType_t type) -> Calls {
    return [=](moecclComm_t comm, moecclStream_t stream) {
      return moecclAllToAll(in, out, count, type, comm, stream);
    };
  };
  const auto allGather = [](size_t count) -> Calls {
    return [=](moecclComm_t comm, moecclStream_t stream) {
      return moecclAllGather(in, out, count, moecclInt32, comm, stream);
    };
  };
  const auto reduce = [](auto function, moecclDataType_t type, moecclRedOp_t op) -> Calls {
    return [=](moecclComm_t comm, moecclStream_t stream) {
      return function(in, out, 4, type, op, comm, stream);
    };
  };
  const auto both = [](const Calls& first, const Calls& second) -> Calls {
    return [=](moecclComm_t comm, moecclStream_t stream) {
      const moecclResult_t result = first(comm, stream);
      return result == moecclSuccess ? second(comm, stream) : result;
    };
  };
  const Calls split = [](moecclComm_t comm, moecclStream_t) {
    moecclComm_t part = nullptr;
    return moecclCommSplit(comm, 0, 0, &part, nullptr);
  };
  const Calls v = [](moecclComm_t comm, moecclStream_t stream) {
    static const size_t counts[4] = {3, 3, 3, 3}, displs[4] = {0, 8, 16, 24};
    return moecclAllToAllv(in, counts, displs, out, counts, displs, moecclInt32, comm, stream);
  };
  const auto broadcast = [](int root) -> Calls {
    return [=](moecclComm_t comm, moecclStream_t stream) {
      return moecclBroadcast(in, out, 4, moecclInt32, root, comm, stream);
    };
  };
  const auto reduceTo = [](int root) -> Calls {
    return [=](moecclComm_t comm, moecclStream_t stream) {
      return moecclReduce(in, out, 4, moecclInt32, moecclSum, root, comm, stream);
    };
  };
  const Calls a = allToAll(2, moecclInt32), g = allGather(2);
  return {
      {"collective", {"alltoall (", "allgather ("}, a, g},
      {"op",
       {"4 x int32, sum", "4 x int32, max"},
       reduce(moecclAllReduce, moecclInt32, moecclSum),
       reduce(moecclAllReduce, moecclInt32, moecclMax)},
      {"hierarchicalOp",
       {"4 x int32, sum", "4 x int32, max"},
       reduce(moecclAllReduce, moecclInt32, moecclSum),
       reduce(moecclAllReduce, moecclInt32, moecclMax),
       "allreduce=hierarchical"},
      {"reductionType",
       {"4 x int32, sum", "4 x float32, sum"},
       reduce(moecclReduceScatter, moecclInt32, moecclSum),
       reduce(moecclReduceScatter, moecclFloat32, moecclSum)},
      {"type", {"2 x int32", "2 x float32"}, a, allToAll(2, moecclFloat32)},
      {"typeAndCount", {"2 x int32", "1 x int64"}, a, allToAll(1, moecclInt64)},
      {"reduction",
       {"allreduce (", "reducescatter ("},
       reduce(moecclAllReduce, moecclInt32, moecclSum),
       reduce(moecclReduceScatter, moecclInt32, moecclSum)},
      {"order", {"alltoall (", "allgather ("}, both(a, g), both(g, a)},
      {"oneMore", {"alltoall (", "allgather ("}, both(a, g), both(a, both(a, g))},
      {"split", {"alltoall (", "inside a split"}, a, split},
      // Those that have the right root are done with it, and wait in their next call.
      {"root",
       {"4 x int32, root 0", "4 x int32, root 1"},
       both(broadcast(0), g),
       both(broadcast(1), g)},
      // Both roots wait, and nobody else does.
      {"rootsThatWait",
       {"4 x int32, sum, root 0", "4 x int32, sum, root 3"},
       both(reduceTo(0), g),
       both(reduceTo(3), g)},
      {"v",
       {"alltoallv (bruck) of int32", "alltoall (bruck) of 3 x int32"},
       v,
       allToAll(3, moecclInt32),
       "alltoall=bruck;alltoallv=bruck"},
  };
}

// All ranks learn it long before the timeout, with what both sides called, blocking and on a
// stream.
TEST_P(Disagreement, AnotherCall) {
  for (const Mismatched& calls : mismatchedCalls())
    for (bool onStream : {false, true}) {
      Job wanted = job(4);
      wanted.nodes = {2, 2};
      wanted.algorithms = calls.algorithms;
      const auto body = [&](moecclComm_t comm, int rank) {
        moecclStream_t stream = nullptr;
        // Not on all ranks: that alone is no mistake.
        if (onStream && rank != 1) check(moecclStreamCreate(comm, &stream), comm);
        const auto began = std::chrono::steady_clock::now();
        moecclResult_t result = (rank == 3 ? calls.odd : calls.most)(comm, stream);
        if (result == moecclSuccess) result = moecclStreamSynchronize(stream);
        checkError(result, moecclRemoteError, nullptr, calls.texts);
        checkThat(std::chrono::steady_clock::now() - began < std::chrono::seconds(20),
                  "only after a long time");
        const std::string text = moecclGetLastError(nullptr);
        checkThat(text.find("rank 3 called") != text.npos && text.find("rank 3", 1) != text.npos,
                  "no ranks in: " + text);
        moecclStreamDestroy(stream);
        // Work on streams takes a rank that has left for the one to blame, so nobody leaves early.
        while (onStream &&
               std::chrono::steady_clock::now() - began < std::chrono::milliseconds(600)) {
          moecclResult_t state = moecclSuccess;
          check(moecclCommGetAsyncError(comm, &state), comm);
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        throw Aborts{};
      };
      SCOPED_TRACE(calls.name + (onStream ? " on a stream" : ""));
      runJob(wanted, body);
    }
}

// Two roots of a broadcast have nothing to wait for, nor have those that each take the other for
// the root of a reduce, and so have whoever calls next. They learn it before long, and what is
// under way then is right.
TEST_P(Disagreement, RootsThatOnlySend) {
  for (const int which : {0, 1, 2, 3}) {
    const bool onStream = which % 2 == 1, reduces = which / 2 == 1;
    const char* const name = reduces ? "reduce (" : "broadcast (";
    SCOPED_TRACE(std::string(name) + (onStream ? " on a stream" : " blocking"));
    runJob(job(2), [&](moecclComm_t comm, int rank) {
      constexpr int kCalls = 400;
      moecclStream_t stream = nullptr;
      if (onStream) check(moecclStreamCreate(comm, &stream), comm);
      moecclResult_t result =
          reduces ? moecclReduce(in, out, 4, moecclInt32, moecclSum, 1 - rank, comm, stream)
                  : moecclBroadcast(in, out, 4, moecclInt32, rank, comm, stream);
      for (int call = 0; call < kCalls && result == moecclSuccess; ++call) {
        const int value = call + rank;
        int sum = 0;
        result = moecclAllReduce(&value, &sum, 1, moecclInt32, moecclSum, comm, stream);
        if (result == moecclSuccess) result = moecclStreamSynchronize(stream);
        if (result == moecclSuccess) checkThat(sum == 2 * call + 1, "a wrong sum");
      }
      checkError(result, moecclRemoteError, nullptr, {name, "root ", "the same calls"});
      moecclStreamDestroy(stream);
      throw Aborts{};
    });
  }
}

// One is so far ahead when the other calls that it knows nothing of its call any more.
TEST_P(Disagreement, RootsOfWhichOneIsLate) {
  runJob(job(2), [&](moecclComm_t comm, int rank) {
    constexpr int kCalls = 400;
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    moecclResult_t result = moecclBroadcast(in, out, 4, moecclInt32, rank, comm, nullptr);
    for (int call = 0; call < kCalls && result == moecclSuccess; ++call)
      result = moecclBroadcast(in, out, 4, moecclInt32, 0, comm, nullptr);
    if (result == moecclSuccess)
      result = moecclAllReduce(in, out, 4, moecclInt32, moecclSum, comm, nullptr);
    checkError(result, moecclRemoteError, nullptr, {"rank 0", "rank 1", "the same calls"});
    throw Aborts{};
  });
}

// Whoever is far ahead has made no mistake: its messages are of calls that have the numbers of
// calls long over.
TEST_P(Disagreement, ARankThatIsFarAheadIsNone) {
  runJob(job(3), [&](moecclComm_t comm, int rank) {
    constexpr int kCalls = 2000;
    // Rank 1 has nothing of rank 2 for most of the calls, whom nobody keeps.
    int value = 0;
    for (int call = 0; call < kCalls; ++call) {
      value = call;
      if (rank == 1 && call % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      const bool all = call % 530 == 529;
      check(all ? moecclBroadcast(&value, &value, 1, moecclInt32, 2, comm, nullptr)
                : moecclReduce(&call, &value, 1, moecclInt32, moecclSum, 0, comm, nullptr),
            comm);
      if (all) checkThat(value == call, "another call's value");
      if (!all && rank == 0) checkThat(value == 3 * call, "a wrong sum");
    }
  });
}

// Ranks may be early or late, on streams or not: nobody takes that for a mistake.
TEST_P(Disagreement, EarlyAndLateCallsAreTheSame) {
  Job wanted = job(3);
  wanted.algorithms = "alltoallv=bruck";
  runJob(wanted, [&](moecclComm_t comm, int rank) {
    constexpr int kCalls = 60;
    const std::vector<size_t> counts(3, 1), displs = {0, 1, 2};
    std::vector<std::vector<int>> out(kCalls, std::vector<int>(3));
    moecclStream_t streams[2] = {};
    if (rank == 1)
      for (moecclStream_t& stream : streams) check(moecclStreamCreate(comm, &stream), comm);
    for (int i = 0; i < kCalls; ++i) {
      if (rank == 0 && i % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
      const moecclStream_t stream = streams[i % 2];
      if (i % 3 == 0)
        check(moecclAllGather(&rank, out[i].data(), 1, moecclInt32, comm, stream), comm);
      else
        check(moecclAllToAllv(std::vector<int>(3, rank).data(), counts.data(), displs.data(),
                              out[i].data(), counts.data(), displs.data(), moecclInt32, comm,
                              nullptr),
              comm);
    }
    for (moecclStream_t stream : streams) {
      check(moecclStreamSynchronize(stream));
      check(moecclStreamDestroy(stream));
    }
    for (const std::vector<int>& each : out)
      for (int i = 0; i < 3; ++i) checkThat(each[i] == i, "data");
  });
}

// A call that failed has done with its buffers, whatever its peers do later.
TEST_P(Disagreement, BuffersAreTheCallersAgain) {
  Job wanted = job(2);
  wanted.timeoutMs = 1500;
  runJob(wanted, [&](moecclComm_t comm, int rank) {
    constexpr size_t kCount = 1 << 20;
    const size_t bytes = 2 * kCount * sizeof(int);
    // The other rank comes when this one has given up.
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(3000));
    void* const in =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void* const out =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const moecclResult_t result = moecclAllToAll(in, out, kCount, moecclInt32, comm, nullptr);
    // Whoever touches them now dies.
    munmap(in, bytes);
    munmap(out, bytes);
    checkThat(result == moecclTimeout || result == moecclRemoteError,
              "ended with " + std::to_string(result));
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2000));
    throw Aborts{};
  });
}

// All-to-all-v: whoever expects something else says so, whether or not others relay, and all hear
// of it: the sender too, in its next call where this one is complete.
class WrongPart : public Disagreement {};

TEST_P(WrongPart, IsToldToBothEndsWithBothSizes) {
  for (const char* algorithm : {"alltoallv=linear", "alltoallv=pairwise", "alltoallv=bruck",
                                "alltoallv=hierarchical", "alltoallv=hierarchical:leaders=1"})
    for (size_t odd : {0, 1, 3, 5000}) {
      Job wanted = job(4);
      wanted.nodes = {2, 2};
      wanted.algorithms = algorithm;
      runJob(wanted, [&](moecclComm_t comm, int rank) {
        std::vector<int> in(4 * 5000), out(4 * 5000);
        std::vector<size_t> sends(4, 2), recvs(4, 2), displs = {0, 5000, 10000, 15000};
        if (rank == 1) sends[2] = odd;
        moecclResult_t result =
            moecclAllToAllv(in.data(), sends.data(), displs.data(), out.data(), recvs.data(),
                            displs.data(), moecclInt32, comm, nullptr);
        checkThat(result != moecclSuccess || rank != 2, "the receiver sees nothing");
        if (result == moecclSuccess) result = moecclBarrier(comm, nullptr);
        checkError(result, moecclRemoteError, comm,
                   {"alltoallv",
                    "rank 1 sends " + std::to_string(4 * odd) + " bytes where rank 2 expects 8"});
      });
    }
}

// One rank does not call at all: the documented timeout, which names it.
TEST_P(Disagreement, NotCalling) {
  Job wanted = job(3);
  wanted.algorithms = "alltoall=linear";
  wanted.timeoutMs = 700;
  runJob(wanted, [&](moecclComm_t comm, int rank) {
    std::vector<int> in(3), out(3);
    if (rank != 2) {
      const moecclResult_t result =
          moecclAllToAll(in.data(), out.data(), 1, moecclInt32, comm, nullptr);
      checkThat(result == moecclTimeout || result == moecclRemoteError,
                "result " + std::to_string(result));
      checkError(result, result, comm, {"alltoall (linear)", "no progress for 700 ms", "rank 2"});
    } else {
      moecclResult_t state = moecclSuccess;
      while (state == moecclSuccess) check(moecclCommGetAsyncError(comm, &state), comm);
      checkThat(state == moecclRemoteError, "state " + std::to_string(state));
    }
  });
}

// Most ranks wait for others that only hand on what that one has not sent, and must not name these
// alone.
TEST_P(Disagreement, NotCallingBehindRelays) {
  Job bruck = job(8), hierarchical = job(8);
  bruck.algorithms = "alltoall=bruck";
  hierarchical.algorithms = "alltoall=hierarchical";
  hierarchical.nodes = {4, 4};
  const auto namesThem = [](Job wanted, const std::string& algorithm, int missing) {
    wanted.timeoutMs = 1200;
    runJob(wanted, [&](moecclComm_t comm, int rank) {
      std::vector<int> in(8), out(8);
      if (rank != missing) {
        const moecclResult_t result =
            moecclAllToAll(in.data(), out.data(), 1, moecclInt32, comm, nullptr);
        checkThat(result == moecclTimeout || result == moecclRemoteError,
                  "result " + std::to_string(result));
        checkError(result, result, comm,
                   {"alltoall (" + algorithm, "no progress for 1200 ms",
                    "for rank " + std::to_string(missing) + ": stuck"});
      } else {
        moecclResult_t state = moecclSuccess;
        while (state == moecclSuccess) check(moecclCommGetAsyncError(comm, &state), comm);
        checkThat(state == moecclRemoteError, "state " + std::to_string(state));
      }
    });
  };
  for (const int missing : {1, 5, 6}) namesThem(bruck, "bruck", missing);
  for (const int missing : {1, 6}) namesThem(hierarchical, "hierarchical", missing);
}

// The harness takes this for the wish to abort.
TEST_P(Disagreement, Abort) {
  runJob(job(3), [&](moecclComm_t comm, int rank) {
    int in[3] = {}, out[3] = {};
    // The others have told that they are through making the communicator, which the abort ends too.
    for (int other = 0; rank == 1 && other < 3; other += 2)
      check(moecclRecv(out, 1, moecclInt32, other, 0, comm, nullptr), comm);
    if (rank == 1) throw Aborts();
    check(moecclSend(in, 1, moecclInt32, 1, 0, comm, nullptr), comm);
    checkError(moecclAllToAll(in, out, 1, moecclInt32, comm, nullptr), moecclRemoteError, comm,
               {"rank 1", "aborted"});
  });
}

TEST_P(Disagreement, Grid) {
  runJob(job(4), [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = nullptr;
    const moecclGridShape_t shape = {rank == 3 ? 2 : 1, 2, 2, moecclOrderEspEp};
    checkError(moecclGridCreate(comm, shape, &grid), moecclInvalidUsage, comm,
               {"different shapes", "shape.nMp is 1 on rank 0 and 2 on rank 3"});
    const moecclGridShape_t other = {1, 2, 2, rank == 3 ? moecclOrderEpEsp : moecclOrderEspEp};
    checkError(moecclGridCreate(comm, other, &grid), moecclInvalidUsage, comm,
               {"shape.order is moecclOrderEspEp on rank 0 and moecclOrderEpEsp on rank 3"});
    checkThat(grid == nullptr, "a grid was made");
    int in[4] = {}, out[4] = {};
    check(moecclAllToAll(in, out, 1, moecclInt32, comm, nullptr), comm);
  });
}

TEST_P(Disagreement, StreamWork) {
  runJob(job(2), [&](moecclComm_t comm, int rank) {
    moecclStream_t stream = nullptr;
    check(moecclStreamCreate(comm, &stream), comm);
    int in[8] = {}, out[8] = {};
    check(moecclAllToAll(in, out, rank == 0 ? 1 : 2, moecclInt32, comm, stream), comm);
    checkError(moecclStreamSynchronize(stream), moecclRemoteError, nullptr, {"alltoall"});
    checkThat(moecclStreamQuery(stream) == moecclRemoteError, "the error did not stay");
    checkThat(moecclStreamDestroy(stream) == moecclRemoteError, "destroy hides the error");
  });
}

// A call that is right, but for which no machine has the memory, fails on all ranks and sends
// nothing.
TEST_P(Disagreement, NoMemory) {
  if (kSanitized) GTEST_SKIP() << "sanitizers end the process instead";
  for (bool progressThread : {false, true})
    for (bool onStream : {false, true}) {
      Job wanted = job(4);
      wanted.nodes = {2, 2};
      wanted.algorithms = "alltoall=hierarchical";
      wanted.progressThread = progressThread;
      runJob(wanted, [&](moecclComm_t comm, int) {
        // Nothing is read or written there.
        constexpr size_t kBytes = size_t{1} << 56;
        const auto* in = reinterpret_cast<const void*>(size_t{4096});
        auto* out = reinterpret_cast<void*>(4 * kBytes + 8192);
        moecclStream_t stream = nullptr;
        if (onStream) check(moecclStreamCreate(comm, &stream), comm);
        moecclResult_t result = moecclAllToAll(in, out, kBytes, moecclUint8, comm, stream);
        const bool queued = result == moecclSuccess;  // else it has heard of another rank's failure
        if (queued) result = moecclStreamSynchronize(stream);
        checkThat(result == moecclSystemError || result == moecclRemoteError,
                  "result " + std::to_string(result));
        checkError(result, result, queued ? nullptr : comm, {"has no memory for"});
        if (onStream)
          checkThat(moecclStreamDestroy(stream) == (queued ? result : moecclSuccess),
                    "destroy does not tell what became of the stream");
        moecclResult_t state = moecclSuccess;
        check(moecclCommGetAsyncError(comm, &state), comm);
        checkThat(state == result, "state " + std::to_string(state));
      });
    }
}

INSTANTIATE_TEST_SUITE_P(Backends, WrongPart,
                         testing::Values(Backend{"loopback", false, false},
                                         Backend{"ucxThreads", false, true},
                                         Backend{"processes", true, false}),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Backends, Disagreement,
                         testing::Values(Backend{"loopback", false, false},
                                         Backend{"ucxThreads", false, true},
                                         Backend{"processes", true, false}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace moeccl::test
