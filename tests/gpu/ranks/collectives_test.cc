// Every collective, by every algorithm: with all types, in and out of place, of sizes from nothing
// to what NCCL cuts into many parts, on both kinds of stream, and in graphs.
#include "tests/api/exercise.h"
#include "tests/gpu/ranks/rank.h"

namespace moeccl::gpu {
namespace {

using test::Exercise;

// NULL is the legacy default stream, and cannot be captured.
moecclStream_t streamFor(const Rank& rank, const Exercise& what) {
  return what.inGraph || what.salt % 2 == 1 ? rank.stream() : nullptr;
}

std::vector<Exercise> callsOf(const Rank& rank, Collective collective) {
  std::vector<Exercise> calls;
  Exercise next{.collective = collective, .device = &rank.device()};
  const auto add = [&](std::size_t count, moecclDataType_t type) {
    for (bool inPlace : {false, true}) {
      if (inPlace && !test::worksInPlace(collective)) continue;
      next.count = count;
      next.datatype = type;
      next.inPlace = inPlace;
      next.inGraph = count == 5;
      next.experts = count % 2 == 0 ? 2 : 1;
      ++next.salt;
      calls.push_back(next);
    }
  };
  constexpr moecclRedOp_t kOps[] = {moecclSum, moecclMax, moecclMin};
  const bool takesOps = test::reduces(collective) && !needsGrid(collective);
  for (int type = 0; type < moecclNumTypes; ++type) {
    if (takesOps) next.op = kOps[type % 3];
    add(type % 2 == 0 ? 333 : 64, static_cast<moecclDataType_t>(type));
  }
  next.op = moecclSum;
  for (std::size_t count : {0, 1, 5}) add(count, moecclFloat32);
  if (!rank.quick()) {
    add(70'001, moecclBfloat16);
    add((1 << 18) + 2, moecclFloat32);
  }
  return calls;
}

void everyAlgorithm(Rank& rank, Collective collective) {
  const std::vector<std::string> names = algorithmsOf(collective);
  for (int turn = 0; turn < static_cast<int>(names.size()); ++turn) {
    const std::string& name = names[static_cast<std::size_t>(turn)];
    for (Exercise what : callsOf(rank, collective)) {
      // Relays of an all-to-all-v need a bound.
      what.bounded =
          collective == Collective::allToAllv && (name == "bruck" || name == "hierarchical");
      rank.step(name + ", " + textOf(what),
                [&] { exercise(what, rank.inTurn(turn), nullptr, streamFor(rank, what)); });
    }
  }
}

// Those that divide the ranks.
std::vector<moecclGridShape_t> shapesOf(int ranks) {
  std::vector<moecclGridShape_t> shapes{{1, ranks, 1, moecclOrderEspEp}};
  if (ranks == 1) return shapes;
  shapes.push_back({ranks, 1, ranks, moecclOrderEspEp});
  shapes.push_back({ranks, ranks, 1, moecclOrderEspEp});
  if (ranks % 2 != 0 || ranks == 2) return shapes;
  shapes.push_back({2, ranks / 2, 2, moecclOrderEspEp});
  shapes.push_back({2, 2, ranks / 2, moecclOrderEpEsp});
  return shapes;
}

void everyAlgorithmOnGrids(Rank& rank, Collective collective) {
  const std::vector<std::string> names = algorithmsOf(collective);
  for (int turn = 0; turn < static_cast<int>(names.size()); ++turn)
    for (const moecclGridShape_t& shape : shapesOf(rank.ranks()))
      for (const Exercise& what : callsOf(rank, collective)) {
        // The first grid has all types and sizes.
        const bool first = shape.nMp == 1 && shape.nEsp == 1;
        if (!first && (what.datatype != moecclFloat32 || what.count > 1000)) continue;
        rank.step(names[static_cast<std::size_t>(turn)] + " on " + std::to_string(shape.nMp) + "x" +
                      std::to_string(shape.nEp) + "x" + std::to_string(shape.nEsp) + ", " +
                      textOf(what),
                  [&] {
                    exercise(what, rank.inTurn(turn), rank.gridInTurn(turn, shape),
                             streamFor(rank, what));
                  });
      }
}

RANKS_TEST(allToAll) { everyAlgorithm(rank, Collective::allToAll); }
RANKS_TEST(allToAllv) { everyAlgorithm(rank, Collective::allToAllv); }
RANKS_TEST(allGather) { everyAlgorithm(rank, Collective::allGather); }
RANKS_TEST(reduceScatter) { everyAlgorithm(rank, Collective::reduceScatter); }
RANKS_TEST(allReduce) { everyAlgorithm(rank, Collective::allReduce); }
RANKS_TEST(allGatherv) { everyAlgorithm(rank, Collective::allGatherv); }
RANKS_TEST(reduceScatterv) { everyAlgorithm(rank, Collective::reduceScatterv); }
RANKS_TEST(broadcast) { everyAlgorithm(rank, Collective::broadcast); }
RANKS_TEST(reduce) { everyAlgorithm(rank, Collective::reduce); }
RANKS_TEST(gather) { everyAlgorithm(rank, Collective::gather); }
RANKS_TEST(scatter) { everyAlgorithm(rank, Collective::scatter); }
RANKS_TEST(tpAllToAll) { everyAlgorithmOnGrids(rank, Collective::tpAllToAll); }
RANKS_TEST(dispatch) { everyAlgorithmOnGrids(rank, Collective::dispatch); }
RANKS_TEST(combine) { everyAlgorithmOnGrids(rank, Collective::combine); }
RANKS_TEST(combineAllGather) { everyAlgorithmOnGrids(rank, Collective::combineAllGather); }
RANKS_TEST(splitDispatch) { everyAlgorithmOnGrids(rank, Collective::splitDispatch); }

}  // namespace
}  // namespace moeccl::gpu
