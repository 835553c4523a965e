#include "tests/moe/own_pass_run.h"

#include <string>
#include <vector>

#include "tests/api/results.h"
#include "tests/moe/on_device.h"
#include "tests/moe/own_numbers.h"

namespace moeccl::test {
namespace {

using moe_reference::decode;
using moe_reference::encode;

// Experts double what they are given: on the first shard alone, as shards' results are added.
void doubleRows(DeviceMemory& device, const Problem& problem, const moecclMoeRows_t& rows,
                const void* from, bool counts, moecclStream_t stream) {
  const std::size_t bytes =
      encode(problem.datatype, {0}).size() *
      static_cast<std::size_t>(rows.begins[problem.experts / problem.grid.nEp] * problem.embedding);
  moe_reference::Elements elements(bytes);
  device.synchronize(stream);
  device.get(elements.data(), static_cast<const unsigned char*>(from), bytes);
  std::vector<double> values = decode(problem.datatype, elements);
  for (double& value : values) value *= counts ? 2 : 0;
  device.put(static_cast<unsigned char*>(rows.results), encode(problem.datatype, values).data(),
             bytes);
}

// So many, as if the layer had chosen them.
void choose(moecclMoeLayer_t layer, std::int64_t chunks) {
  std::size_t bytes = 0;
  check(moecclMoeLayerSaveChoice(layer, nullptr, &bytes));
  std::string text(bytes, '\0');
  check(moecclMoeLayerSaveChoice(layer, text.data(), &bytes));
  const std::string current = "current ";
  const std::size_t end = text.find('\n', text.find(current));
  text.insert(end, ":chunks=" + std::to_string(chunks));
  check(moecclMoeLayerRestoreChoice(layer, text.c_str()));
}

void checkChunks(moecclMoeLayer_t layer, std::int64_t chunks) {
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  check(moecclMoeLayerGetShapes(layer, &shapes));
  checkThat(shapes.chunks == chunks, std::to_string(shapes.chunks) + " chunks");
}

}  // namespace

void runOwnPass(DeviceMemory& device, const Problem& problem, moecclSchedule_t schedule,
                moecclGrid_t grid, int rank, moecclStream_t stream) {
  moecclMoeConfig_t config = ownConfig(problem);
  config.schedule = schedule;
  moecclMoeLayer_t layer = nullptr;
  check(moecclMoeLayerCreate(grid, &config, &layer));
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  check(moecclMoeLayerGetShapes(layer, &shapes));
  const bool counts = shapes.firstHidden == 0;
  if (problem.chunks > 0) {
    choose(layer, problem.chunks);
    checkChunks(layer, problem.chunks);
  }

  const OwnNumbers own(problem, rank / problem.grid.nMp);
  const DeviceElements input(device, encode(problem.datatype, own.tokens));
  const DeviceElements chosen(device, own.experts.data(),
                              own.experts.size() * sizeof own.experts[0]);
  const DeviceElements given(device, encode(problem.datatype, own.weights));
  DeviceElements result(device, encode(problem.datatype, own.gradients));
  const DeviceElements ofWeights(device, encode(problem.datatype, own.weights));
  moecclMoeRouting_t routing = MOECCL_MOE_ROUTING_INITIALIZER;
  routing.experts = static_cast<const std::int32_t*>(chosen.get());
  routing.weights = given.get();
  moecclMoePass_t pass = nullptr;
  moecclMoeRows_t rows = MOECCL_MOE_ROWS_INITIALIZER;
  const auto read = [&](const DeviceElements& elements) {
    device.synchronize(stream);
    return decode(problem.datatype, elements.read());
  };
  const auto outOfTurn = [&](moecclResult_t result, const char* next) {
    checkError(result, moecclInvalidUsage, nullptr, {std::string(next) + " comes next"});
  };
  check(moecclMoeBegin(layer, input.get(), &routing, stream, &pass, &rows));
  outOfTurn(moecclMoeBeginBackward(pass, result.get(), ofWeights.get(), stream), "moecclMoeEnd");
  checkChunks(layer, 1);
  doubleRows(device, problem, rows, rows.rows, counts, stream);
  check(moecclMoeEnd(pass, result.get(), stream));
  outOfTurn(moecclMoeEnd(pass, result.get(), stream), "moecclMoeEndBackward");
  checkThat(read(result) == own.output, "output");
  result.set(encode(problem.datatype, own.gradients).data());
  check(moecclMoeEndBackward(pass, result.get(), stream, &rows));
  outOfTurn(moecclMoeEnd(pass, result.get(), stream), "moecclMoeBeginBackward");
  doubleRows(device, problem, rows, rows.results, counts, stream);
  check(moecclMoeBeginBackward(pass, result.get(), ofWeights.get(), stream));
  checkThat(read(result) == own.inputGradient, "gradient of the input");
  checkThat(read(ofWeights) == own.weightGradients, "gradient of the weights");
  if (rank % 2 == 0) {
    check(moecclMoePassDestroy(pass));
    check(moecclMoeLayerDestroy(layer));
    return;
  }
  check(moecclMoeLayerDestroy(layer));
  checkThat(moecclMoeEnd(pass, result.get(), stream) == moecclInvalidArgument &&
                std::string(moecclGetLastError(nullptr)).find("the layer of pass was destroyed") !=
                    std::string::npos,
            "a pass without its layer");
  check(moecclMoePassDestroy(pass));
}

std::vector<OwnProblem> ownProblems(std::span<const moecclDataType_t> datatypes) {
  std::vector<OwnProblem> all;
  for (const moecclDataType_t datatype : datatypes)
    for (const moecclGridShape_t& grid : {moecclGridShape_t{2, 2, 3, moecclOrderEspEp},
                                          {1, 3, 1, moecclOrderEspEp},
                                          {4, 2, 2, moecclOrderEpEsp},
                                          {1, 1, 1, moecclOrderEspEp}})
      for (const bool dropless : {false, true})
        for (const std::int64_t tokens : {0, 1, 23}) {
          Problem problem{.name = "own experts"};
          problem.grid = grid;
          problem.tokens = tokens;
          problem.experts = 4 * grid.nEp;
          problem.datatype = datatype;
          problem.dropless = dropless;
          for (const moecclSchedule_t schedule : schedulesOf(problem))
            if (schedule != moecclScheduleBaseline || grid.nMp == 1)
              all.push_back({problem, schedule});
          if (dropless) continue;
          problem.chunks = 2;
          problem.capacityGroups = 2 * grid.nMp;
          all.push_back({problem, moecclScheduleS1});
        }
  return all;
}

}  // namespace moeccl::test
