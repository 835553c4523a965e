// The collectives whose blocks are equally large: a row of a table each, and
// one way from the arguments to the call.
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "moeccl/moeccl.h"
#include "src/api/arguments.h"
#include "src/base/text.h"
#include "src/comm/launch.h"
#include "src/model/cluster.h"

namespace moeccl {
namespace {

// How sendbuff and recvbuff may be one: not at all, at the same address, or as
// block i of the larger one, where i is the root, or the rank itself where
// there is none.
enum class InPlace { no, same, inRecvbuff, inSendbuff };

struct Row {
  const char* function;
  Collective collective;
  const char* count;  // its argument's name
  InPlace inPlace;
};

constexpr Row kAllToAll = {"moecclAllToAll", Collective::allToAll, "count", InPlace::no};
constexpr Row kAllGather = {"moecclAllGather", Collective::allGather, "sendCount",
                            InPlace::inRecvbuff};
constexpr Row kReduceScatter = {"moecclReduceScatter", Collective::reduceScatter, "recvCount",
                                InPlace::inSendbuff};
constexpr Row kAllReduce = {"moecclAllReduce", Collective::allReduce, "count", InPlace::same};
constexpr Row kBroadcast = {"moecclBroadcast", Collective::broadcast, "count", InPlace::same};
constexpr Row kReduce = {"moecclReduce", Collective::reduce, "count", InPlace::same};
constexpr Row kGather = {"moecclGather", Collective::gather, "sendCount", InPlace::inRecvbuff};
constexpr Row kScatter = {"moecclScatter", Collective::scatter, "recvCount", InPlace::inSendbuff};
constexpr Row kTpAllToAll = {"moecclTpAllToAll", Collective::tpAllToAll, "count", InPlace::no};
constexpr Row kDispatch = {"moecclDispatch", Collective::dispatch, "count", InPlace::no};
constexpr Row kCombine = {"moecclCombine", Collective::combine, "count", InPlace::no};
constexpr Row kCombineAllGather = {"moecclCombineAllGather", Collective::combineAllGather, "count",
                                   InPlace::no};
constexpr Row kSplitDispatch = {"moecclSplitDispatch", Collective::splitDispatch, "count",
                                InPlace::no};

struct Buffers {
  const void* sendbuff;
  void* recvbuff;
  std::size_t count;
  moecclDataType_t datatype;
};

struct Problem {
  std::optional<moecclRedOp_t> op = {};
  std::optional<int> root = {};
  Grid grid = {};
  int experts = 1;
};

void requireRoot(int root, int ranks) {
  if (root < 0 || root >= ranks)
    throw Error(moecclInvalidArgument,
                stringf("root is %d; it must be a rank, 0 to %d", root, ranks - 1));
}

// Plans number the pieces of all blocks: a slice for each shard of each chunk.
void requireExperts(int experts, const Grid& grid, int ranks) {
  if (experts < 1)
    throw Error(moecclInvalidArgument,
                stringf("nExpertsPerRank is %d; it must be at least 1", experts));
  const int most = std::numeric_limits<int>::max() / ranks / grid.mp / grid.esp / kMaxChunks;
  if (experts > most)
    throw Error(moecclInvalidArgument,
                stringf("nExpertsPerRank is %d; with %d ranks at most %d are possible", experts,
                        ranks, most));
}

// `own`: whose block the smaller buffer may be.
void requireApart(const Row& row, const Buffers& buffers, const Bytes& sent, const Bytes& received,
                  int own, const char* ownName) {
  if (!overlap(buffers.sendbuff, sent.buffer, buffers.recvbuff, received.buffer)) return;
  const auto* const from = static_cast<const std::byte*>(buffers.sendbuff);
  const auto* const to = static_cast<const std::byte*>(buffers.recvbuff);
  const std::size_t at = sent.block * static_cast<std::size_t>(own);
  std::string right;
  switch (row.inPlace) {
    case InPlace::no:
      invalid("sendbuff and recvbuff overlap; it does not work in place");
    case InPlace::same:
      if (from == to) return;
      right = "sendbuff == recvbuff";
      break;
    case InPlace::inRecvbuff:
      if (from == to + at) return;
      right = "sendbuff == recvbuff + ";
      break;
    case InPlace::inSendbuff:
      if (to == from + at) return;
      right = "recvbuff == sendbuff + ";
      break;
  }
  if (row.inPlace != InPlace::same) right += std::string(ownName) + " * " + row.count;
  invalid("sendbuff and recvbuff overlap; in place means " + right);
}

void start(const Row& row, const HeldComm& comm, const Buffers& buffers, const Problem& problem,
           moecclStream_t stream) {
  const Communicator& communicator = communicatorOf(comm);
  const int ranks = communicator.ranks(), rank = communicator.rank();
  const int root = problem.root.value_or(0);
  // As the root, whose buffers are the largest; then as this rank.
  Contract contract{row.collective, ranks, problem.grid, problem.experts, rank};
  Bytes sent = bytesOf(buffers.count, row.count, buffers.datatype, contract.inputBlocks(rank));
  Bytes received = bytesOf(buffers.count, row.count, buffers.datatype, contract.outputBlocks(rank));
  if (problem.op) requireOp(*problem.op, buffers.datatype);
  if (problem.root) requireRoot(root, ranks);
  contract.root = root;
  if (contract.inputBlocks(rank) == 0) sent.buffer = 0;
  if (contract.outputBlocks(rank) == 0) received.buffer = 0;
  require(buffers.sendbuff != nullptr || sent.buffer == 0,
          "sendbuff is NULL while there is something to send");
  require(buffers.recvbuff != nullptr || received.buffer == 0,
          "recvbuff is NULL while there is something to receive");
  requireApart(row, buffers, sent, received, problem.root.value_or(rank),
               problem.root ? "root" : "rank");
  CollectiveCall call{{buffers.sendbuff, buffers.recvbuff, sent.block, buffers.datatype},
                      row.collective};
  call.choice.parameters.grid = problem.grid;
  call.choice.parameters.experts = problem.experts;
  call.choice.parameters.root = root;
  call.op = problem.op.value_or(moecclSum);
  launch(comm.comm, comm.communicator, {std::move(call)}, stream);
}

moecclResult_t run(const Row& row, moecclComm_t comm, const Buffers& buffers,
                   const Problem& problem, moecclStream_t stream) {
  const HeldComm held = hold(comm);
  return boundary(row.function, lastErrorOf(held),
                  [&] { start(row, held, buffers, problem, stream); });
}

// Runs a collective on the communicator of a grid.
moecclResult_t run(const Row& row, moecclGrid_t grid, int experts, const Buffers& buffers,
                   moecclStream_t stream) {
  const HeldComm held = holdWorld(grid);
  return boundary(row.function, lastErrorOf(held), [&] {
    const Grid shape = asGrid(gridOf(grid).shape);
    requireExperts(experts, shape, communicatorOf(held).ranks());
    start(row, held, buffers, {.grid = shape, .experts = experts}, stream);
  });
}

}  // namespace
}  // namespace moeccl

moecclResult_t moecclAllToAll(const void* sendbuff, void* recvbuff, size_t count,
                              moecclDataType_t datatype, moecclComm_t comm, moecclStream_t stream) {
  return run(moeccl::kAllToAll, comm, {sendbuff, recvbuff, count, datatype}, {}, stream);
}

moecclResult_t moecclAllGather(const void* sendbuff, void* recvbuff, size_t sendCount,
                               moecclDataType_t datatype, moecclComm_t comm,
                               moecclStream_t stream) {
  return run(moeccl::kAllGather, comm, {sendbuff, recvbuff, sendCount, datatype}, {}, stream);
}

moecclResult_t moecclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvCount,
                                   moecclDataType_t datatype, moecclRedOp_t op, moecclComm_t comm,
                                   moecclStream_t stream) {
  return run(moeccl::kReduceScatter, comm, {sendbuff, recvbuff, recvCount, datatype}, {.op = op},
             stream);
}

moecclResult_t moecclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                               moecclDataType_t datatype, moecclRedOp_t op, moecclComm_t comm,
                               moecclStream_t stream) {
  return run(moeccl::kAllReduce, comm, {sendbuff, recvbuff, count, datatype}, {.op = op}, stream);
}

moecclResult_t moecclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                               moecclDataType_t datatype, int root, moecclComm_t comm,
                               moecclStream_t stream) {
  return run(moeccl::kBroadcast, comm, {sendbuff, recvbuff, count, datatype}, {.root = root},
             stream);
}

moecclResult_t moecclReduce(const void* sendbuff, void* recvbuff, size_t count,
                            moecclDataType_t datatype, moecclRedOp_t op, int root,
                            moecclComm_t comm, moecclStream_t stream) {
  return run(moeccl::kReduce, comm, {sendbuff, recvbuff, count, datatype}, {.op = op, .root = root},
             stream);
}

moecclResult_t moecclGather(const void* sendbuff, void* recvbuff, size_t sendCount,
                            moecclDataType_t datatype, int root, moecclComm_t comm,
                            moecclStream_t stream) {
  return run(moeccl::kGather, comm, {sendbuff, recvbuff, sendCount, datatype}, {.root = root},
             stream);
}

moecclResult_t moecclScatter(const void* sendbuff, void* recvbuff, size_t recvCount,
                             moecclDataType_t datatype, int root, moecclComm_t comm,
                             moecclStream_t stream) {
  return run(moeccl::kScatter, comm, {sendbuff, recvbuff, recvCount, datatype}, {.root = root},
             stream);
}

// An all-gather of nothing: nobody has all messages before everybody has sent.
moecclResult_t moecclBarrier(moecclComm_t comm, moecclStream_t stream) {
  constexpr moeccl::Row kBarrier = {"moecclBarrier", moeccl::Collective::allGather, "count",
                                    moeccl::InPlace::no};
  return run(kBarrier, comm, {nullptr, nullptr, 0, moecclUint8}, {}, stream);
}

moecclResult_t moecclTpAllToAll(const void* sendbuff, void* recvbuff, size_t count,
                                moecclDataType_t datatype, moecclGrid_t grid,
                                moecclStream_t stream) {
  return run(moeccl::kTpAllToAll, grid, 1, {sendbuff, recvbuff, count, datatype}, stream);
}

moecclResult_t moecclDispatch(const void* sendbuff, void* recvbuff, size_t count,
                              int nExpertsPerRank, moecclDataType_t datatype, moecclGrid_t grid,
                              moecclStream_t stream) {
  return run(moeccl::kDispatch, grid, nExpertsPerRank, {sendbuff, recvbuff, count, datatype},
             stream);
}

moecclResult_t moecclCombine(const void* sendbuff, void* recvbuff, size_t count,
                             int nExpertsPerRank, moecclDataType_t datatype, moecclGrid_t grid,
                             moecclStream_t stream) {
  return run(moeccl::kCombine, grid, nExpertsPerRank, {sendbuff, recvbuff, count, datatype},
             stream);
}

moecclResult_t moecclCombineAllGather(const void* sendbuff, void* recvbuff, size_t count,
                                      int nExpertsPerRank, moecclDataType_t datatype,
                                      moecclGrid_t grid, moecclStream_t stream) {
  return run(moeccl::kCombineAllGather, grid, nExpertsPerRank,
             {sendbuff, recvbuff, count, datatype}, stream);
}

moecclResult_t moecclSplitDispatch(const void* sendbuff, void* recvbuff, size_t count,
                                   int nExpertsPerRank, moecclDataType_t datatype,
                                   moecclGrid_t grid, moecclStream_t stream) {
  return run(moeccl::kSplitDispatch, grid, nExpertsPerRank, {sendbuff, recvbuff, count, datatype},
             stream);
}
