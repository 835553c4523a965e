#include <span>

#include "kernels/gates/gate_cuda.h"
#include "tests/gpu/bench/benches.h"

namespace moeccl::gpu {
namespace {

constexpr std::size_t kBlasBytes = std::size_t{32} << 20;

// As DeepSeek-V3's where there are enough experts.
gates::Config configOf(gates::Kind kind, const Sizes& sizes) {
  gates::Config config{kind, sizes.tokens, sizes.embedding, sizes.experts, sizes.choices};
  config.capacityTokens = sizes.tokens;
  config.capacitySlots =
      (sizes.tokens * sizes.choices + sizes.experts - 1) / sizes.experts * 5 / 4 + 1;
  if (kind != gates::Kind::sigmoid || sizes.experts < 64) return config;
  config.expertGroups = 8;
  config.topGroups = 4;
  config.routingScale = 2.5;
  return config;
}

// A gate with all that it reads and writes, for each turn what it must read from memory.
class Problem {
 public:
  Problem(Bench& bench, gates::Kind kind, const Sizes& sizes)
      : bench_(bench),
        sizes_(sizes),
        config_(configOf(kind, sizes)),
        gate_(config_, moecclBfloat16, sizes.tokens, 1),
        turns_(bench.turnsOf(static_cast<std::size_t>(productBytes()))),
        input_(turns_, sizes.tokens * sizes.embedding),
        weights_(turns_, sizes.embedding * sizes.experts),
        logits_(turns_, sizes.tokens * sizes.experts),
        memory_(gate_.workspaceBytes()),
        sums_(std::vector<double>(static_cast<std::size_t>(gates::sumsSize(config_)))),
        dSums_(sums_.size()),
        loss_(1),
        chosen_(static_cast<std::size_t>(sizes.tokens * sizes.choices)),
        choiceWeights_(chosen_.size()),
        factors_(static_cast<std::size_t>(sizes.tokens)),
        used_(static_cast<std::size_t>(sizes.experts)),
        slots_(chosen_.size()) {}

  void product() {
    const double flops = 2 * static_cast<double>(sizes_.tokens * sizes_.embedding) * sizes_.experts;
    bench_.measure({"router product", sizes_, productBytes(), flops}, turns_,
                   [&](int turn, cudaStream_t stream) {
                     gate_.computeLogits(parameters(turn), part(turn), logits_.of(turn), stream);
                   });
  }
  // Alone, as where nothing is to be balanced; and with places, sums and a loss.
  void choose(const std::string& name) {
    const double bytes =
        8.0 * static_cast<double>(sizes_.tokens) * (sizes_.experts + sizes_.choices);
    bench_.measure({name, sizes_, bytes}, turns_,
                   [&](int turn, cudaStream_t stream) { choose(turn, nullptr, stream); });
    if (name != "choosing") return;
    bench_.measure(
        {"gate after logits", sizes_, bytes}, turns_, [&](int turn, cudaStream_t stream) {
          choose(turn, sums_.data(), stream);
          gate_.place(sizes_.tokens, 1, chosen_.data(), choiceWeights_.data(), used_.data(),
                      slots_.data(), factors_.data(), sums_.data(), space(), stream);
          gate_.loss(sums_.data(), 1, dSums_.data(), loss_.data(), stream);
        });
  }
  void backward() {
    Device<std::byte> blasMemory(kBlasBytes);
    moeccl::cuda::Blas blas({blasMemory.data(), blasMemory.size()});
    Turns<std::uint16_t> dWeights(1, sizes_.tokens * sizes_.choices);
    Turns<std::uint16_t> dGate(1, sizes_.embedding * sizes_.experts);
    Turns<std::uint16_t> dInput(1, sizes_.tokens * sizes_.embedding);
    const double flops = 4 * static_cast<double>(sizes_.tokens * sizes_.embedding) * sizes_.experts;
    Case what{"gate backward", sizes_, productBytes(), flops};
    what.captured = false;  // cuBLAS may not be
    bench_.measure(what, 1, [&](int, cudaStream_t stream) {
      gate_.backward(parameters(0), part(0), logits_.of(0), chosen_.data(),
                     {slots_.data(), choiceWeights_.data(), factors_.data()}, dWeights.of(0),
                     dSums_.data(), {dGate.of(0), nullptr, dInput.of(0)}, blas, space(), stream);
    });
  }

 private:
  double productBytes() const {
    return 2 * static_cast<double>((sizes_.tokens + sizes_.experts) * sizes_.embedding) +
           8 * static_cast<double>(sizes_.tokens) * sizes_.experts;
  }
  gates::Parameters<void> parameters(int turn) { return {weights_.of(turn)}; }
  gates::Part<void> part(int turn) { return {input_.of(turn), sizes_.tokens, 0}; }
  std::span<std::byte> space() { return {memory_.data(), memory_.size()}; }
  void choose(int turn, double* sums, cudaStream_t stream) {
    gate_.choose(parameters(turn), part(turn),
                 {logits_.of(turn), chosen_.data(), choiceWeights_.data()}, sums, space(), stream);
  }

  Bench& bench_;
  const Sizes sizes_;
  const gates::Config config_;
  const moeccl::cuda::Gate gate_;
  const int turns_;
  Turns<std::uint16_t> input_, weights_;
  Turns<double> logits_;
  Device<std::byte> memory_;
  Device<double> sums_, dSums_, loss_;
  Device<std::int32_t> chosen_;
  Device<float> choiceWeights_;
  Device<double> factors_;
  Device<std::int64_t> used_, slots_;
};

}  // namespace

void gate(Bench& bench) {
  for (const std::int32_t experts : bench.experts())
    for (const std::int64_t tokens : bench.tokens()) {
      const Sizes sizes{tokens, bench.embedding(), experts, Bench::kChoices};
      {
        Problem problem(bench, gates::Kind::sigmoid, sizes);
        problem.product();
        problem.choose("choosing");
        if (tokens == bench.training()) problem.backward();
      }
      Problem problem(bench, gates::Kind::softmax, sizes);
      problem.choose("choosing by softmax");
    }
}

}  // namespace moeccl::gpu
