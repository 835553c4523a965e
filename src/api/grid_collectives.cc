// The collectives of a grid: calls on its communicator.
#include <limits>

#include "moeccl/moeccl.h"
#include "src/api/arguments.h"
#include "src/api/group.h"

namespace moeccl {
namespace {

struct Problem {
  Collective collective;
  moecclGrid_t grid;
  int experts;
  size_t count;
  moecclDataType_t datatype;
};

moecclResult_t run(const char* function, const Problem& problem, const void* sendbuff,
                   void* recvbuff, moecclStream_t stream) {
  const auto state = holdWorld(problem.grid);
  return boundary(function, lastErrorOf(state), [&] {
    const Grid grid = asGrid(gridOf(problem.grid).shape);
    Communicator& communicator = communicatorOf(state);
    if (problem.experts < 1)
      throw Error(moecclInvalidArgument, "nExpertsPerRank is " + std::to_string(problem.experts) +
                                             "; it must be at least 1");
    // Plans number the pieces of all blocks: a slice for each shard of each chunk.
    const int most =
        std::numeric_limits<int>::max() / communicator.ranks() / grid.mp / grid.esp / kMaxChunks;
    if (problem.experts > most)
      throw Error(moecclInvalidArgument, "nExpertsPerRank is " + std::to_string(problem.experts) +
                                             "; with " + std::to_string(communicator.ranks()) +
                                             " ranks at most " + std::to_string(most) +
                                             " are possible");
    const Contract contract{problem.collective, communicator.ranks(), grid, problem.experts};
    const int rank = communicator.rank();
    const Bytes in = bytesOf(problem.count, "count", problem.datatype, contract.inputBlocks(rank));
    const Bytes out =
        bytesOf(problem.count, "count", problem.datatype, contract.outputBlocks(rank));
    requireBuffers(sendbuff, recvbuff, problem.count);
    require(!overlap(sendbuff, in.buffer, recvbuff, out.buffer),
            "sendbuff and recvbuff overlap; it does not work in place");
    requireStream(communicator, stream);
    launch(state,
           {choose(*state, problem.collective, in.block, grid, problem.experts), sendbuff, recvbuff,
            in.block, problem.datatype},
           stream);
  });
}

}  // namespace
}  // namespace moeccl

moecclResult_t moecclTpAllToAll(const void* sendbuff, void* recvbuff, size_t count,
                                moecclDataType_t datatype, moecclGrid_t grid,
                                moecclStream_t stream) {
  return moeccl::run("moecclTpAllToAll", {moeccl::Collective::tpAllToAll, grid, 1, count, datatype},
                     sendbuff, recvbuff, stream);
}

moecclResult_t moecclDispatch(const void* sendbuff, void* recvbuff, size_t count,
                              int nExpertsPerRank, moecclDataType_t datatype, moecclGrid_t grid,
                              moecclStream_t stream) {
  return moeccl::run("moecclDispatch",
                     {moeccl::Collective::dispatch, grid, nExpertsPerRank, count, datatype},
                     sendbuff, recvbuff, stream);
}

moecclResult_t moecclCombine(const void* sendbuff, void* recvbuff, size_t count,
                             int nExpertsPerRank, moecclDataType_t datatype, moecclGrid_t grid,
                             moecclStream_t stream) {
  return moeccl::run("moecclCombine",
                     {moeccl::Collective::combine, grid, nExpertsPerRank, count, datatype},
                     sendbuff, recvbuff, stream);
}

moecclResult_t moecclCombineAllGather(const void* sendbuff, void* recvbuff, size_t count,
                                      int nExpertsPerRank, moecclDataType_t datatype,
                                      moecclGrid_t grid, moecclStream_t stream) {
  return moeccl::run("moecclCombineAllGather",
                     {moeccl::Collective::combineAllGather, grid, nExpertsPerRank, count, datatype},
                     sendbuff, recvbuff, stream);
}

moecclResult_t moecclSplitDispatch(const void* sendbuff, void* recvbuff, size_t count,
                                   int nExpertsPerRank, moecclDataType_t datatype,
                                   moecclGrid_t grid, moecclStream_t stream) {
  return moeccl::run("moecclSplitDispatch",
                     {moeccl::Collective::splitDispatch, grid, nExpertsPerRank, count, datatype},
                     sendbuff, recvbuff, stream);
}
