// Passes around a caller's gate and experts, in every datatype.
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

#include "tests/moe/own_numbers.h"
#include "tests/moe/own_pass_run.h"

namespace moeccl::test {
namespace {

class Host final : public DeviceMemory {
 public:
  unsigned char* allocate(std::size_t bytes) override { return new unsigned char[bytes]; }
  void free(unsigned char* memory) noexcept override { delete[] memory; }
  void put(unsigned char* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void get(void* to, const unsigned char* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void synchronize(moecclStream_t stream) override { check(moecclStreamSynchronize(stream)); }
};

void expectExact(const OwnProblem& own) {
  SCOPED_TRACE(own.problem.text() + ", " + nameOf(own.schedule));
  runJob(jobOf(own.problem), [&](moecclComm_t comm, int rank) {
    Host host;
    moecclGrid_t grid = makeGrid(comm, own.problem.grid);
    runOwnPass(host, own.problem, own.schedule, grid, rank, nullptr);
    check(moecclGridDestroy(grid));
  });
}

TEST(OwnPasses, AreExactInEveryDatatype) {
  const moecclDataType_t datatypes[] = {moecclFloat32, moecclFloat64, moecclFloat16,
                                        moecclBfloat16};
  for (const OwnProblem& own : ownProblems(datatypes)) {
    expectExact(own);
    if (HasFailure()) return;
  }
}

TEST(OwnPasses, AreWholeWhereADroplessLayerHadChunks) {
  const moecclDataType_t datatypes[] = {moecclFloat32};
  for (OwnProblem own : ownProblems(datatypes)) {
    if (!own.problem.dropless || own.schedule == moecclSchedulePpMoe) continue;
    own.problem.chunks = 2;
    for (const std::int64_t tokenRouting : {-1, 1}) {
      own.problem.tokenRouting = tokenRouting;
      expectExact(own);
      if (HasFailure()) return;
    }
  }
}

// A layer's memory soon serves another one.
TEST(OwnPasses, AreRefusedOnceTheirLayerIsDestroyed) {
  Problem problem;
  problem.training = true;
  const OwnNumbers own(problem, 0);
  runJob(jobOf(problem), [&](moecclComm_t comm, int) {
    moecclGrid_t grid = makeGrid(comm, problem.grid);
    const moecclMoeConfig_t config = ownConfig(problem);
    const moe_reference::Elements input = moe_reference::encode(problem.datatype, own.tokens);
    const moe_reference::Elements given = moe_reference::encode(problem.datatype, own.weights);
    moe_reference::Elements output = input;
    moecclMoeRouting_t routing = MOECCL_MOE_ROUTING_INITIALIZER;
    routing.experts = own.experts.data();
    routing.weights = given.data();
    for (int i = 0; i < 50; ++i) {
      moecclMoeLayer_t layer = nullptr;
      check(moecclMoeLayerCreate(grid, &config, &layer));
      moecclMoePass_t pass = nullptr;
      moecclMoeRows_t rows = MOECCL_MOE_ROWS_INITIALIZER;
      check(moecclMoeBegin(layer, input.data(), &routing, nullptr, &pass, &rows));
      check(moecclMoeLayerDestroy(layer));
      check(moecclMoeLayerCreate(grid, &config, &layer));
      checkError(moecclMoeEnd(pass, output.data(), nullptr), moecclInvalidArgument, nullptr,
                 {"moecclMoeEnd", "the layer of pass was destroyed"});
      check(moecclMoePassDestroy(pass));
      check(moecclMoeLayerDestroy(layer));
    }
    check(moecclGridDestroy(grid));
  });
}

}  // namespace
}  // namespace moeccl::test
