// The kernels beside the plain loops of plain.h, by Google Benchmark:
//
//     kernels_bench [TEXT]    only the cases with TEXT in their name, such as "bfloat16 sum"
#include <benchmark/benchmark.h>

#include <string>

#include "tests/kernels/cases.h"

namespace moeccl {
namespace {

// One table of what is run in several turns.
class OneTable final : public benchmark::ConsoleReporter {
 public:
  bool ReportContext(const Context& context) override {
    return shown_ || (shown_ = ConsoleReporter::ReportContext(context));
  }

 private:
  bool shown_ = false;
};

void measure(const KernelCase& timed, OneTable& table) {
  benchmark::ClearRegisteredBenchmarks();
  for (const auto& [name, call] : {std::pair("plain", &timed.plain), {"fast", &timed.fast}})
    benchmark::RegisterBenchmark(
        (timed.name() + ", " + name).c_str(), [&timed, call = call](benchmark::State& state) {
          for (auto _ : state) (*call)();
          state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(timed.bytes));
        });
  benchmark::RunSpecifiedBenchmarks(&table);
}

}  // namespace
}  // namespace moeccl

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::string text = argc > 1 ? argv[1] : "";
  moeccl::OneTable table;
  moeccl::forEachCase([&](const moeccl::KernelCase& test) {
    if (test.timed && test.name().find(text) != std::string::npos) moeccl::measure(test, table);
  });
}
