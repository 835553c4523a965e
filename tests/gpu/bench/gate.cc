// Times of gates, forward and backward.
#include <span>
#include <string>

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
  Problem(Bench& bench, const gates::Config& config, moecclDataType_t datatype = moecclBfloat16)
      : bench_(bench),
        sizes_{config.batchTokens, config.embedding, config.experts, gates::width(config)},
        config_(config),
        elementBytes_(datatype == moecclBfloat16 ? 2 : 4),
        gate_(config_, datatype, sizes_.tokens, 1),
        turns_(bench.turnsOf(static_cast<std::size_t>(productBytes()))),
        input_(turns_, elementBytes_ * sizes_.tokens * sizes_.embedding),
        weights_(turns_, elementBytes_ * sizes_.embedding * sizes_.experts),
        noise_(noisy() ? turns_ : 1, elementBytes_ * sizes_.embedding * sizes_.experts),
        logits_(turns_, sizes_.tokens * gates::logitsPerToken(config_)),
        memory_(gate_.workspaceBytes()),
        sums_(std::vector<double>(static_cast<std::size_t>(gates::sumsSize(config_)))),
        dSums_(sums_.size()),
        loss_(1),
        chosen_(static_cast<std::size_t>(sizes_.tokens * sizes_.choices)),
        choiceWeights_(chosen_.size()),
        factors_(static_cast<std::size_t>(sizes_.tokens)),
        used_(static_cast<std::size_t>(sizes_.experts)),
        slots_(chosen_.size()) {}

  void product(const std::string& name) {
    const double flops = 2 * static_cast<double>(sizes_.tokens * sizes_.embedding) *
                         static_cast<double>(gates::logitsPerToken(config_));
    bench_.measure({name, sizes_, productBytes(), flops}, turns_,
                   [&](int turn, cudaStream_t stream) {
                     gate_.computeLogits(parameters(turn), part(turn), logits_.of(turn), stream);
                   });
  }
  // What other measurements need.
  void choose() {
    choose(0, sums_.data(), nullptr);
    place(nullptr);
    loss(nullptr);
    cuda(cudaDeviceSynchronize(), "choosing");
  }
  // With sums where they are wanted for a loss or a bias.
  void choose(const std::string& name, bool withSums = false) {
    bench_.measure({name, sizes_, choiceBytes()}, turns_, [&](int turn, cudaStream_t stream) {
      choose(turn, withSums ? sums_.data() : nullptr, stream);
    });
  }
  // Times places for what has been chosen before.
  void place(const std::string& name) {
    const double bytes = 20.0 * static_cast<double>(chosen_.size());
    bench_.measure({name, sizes_, bytes}, 1, [&](int, cudaStream_t stream) { place(stream); });
  }
  void loss(const std::string& name) {
    bench_.measure({name, sizes_}, 1, [&](int, cudaStream_t stream) { loss(stream); });
  }
  void allAfterLogits() {
    bench_.measure({"gate after logits", sizes_, choiceBytes()}, turns_,
                   [&](int turn, cudaStream_t stream) {
                     choose(turn, sums_.data(), stream);
                     place(stream);
                     loss(stream);
                   });
  }
  void backward(const std::string& name) {
    Device<std::byte> blasMemory(kBlasBytes);
    moeccl::cuda::Blas blas({blasMemory.data(), blasMemory.size()});
    Turns<std::byte> dWeights(1, elementBytes_ * sizes_.tokens * sizes_.choices);
    Turns<std::byte> dGate(1, elementBytes_ * sizes_.embedding * sizes_.experts);
    Turns<std::byte> dInput(1, elementBytes_ * sizes_.tokens * sizes_.embedding);
    const double flops = 4 * static_cast<double>(sizes_.tokens * sizes_.embedding) * sizes_.experts;
    Case what{name, sizes_, productBytes(), flops};
    what.captured = false;  // cuBLAS may not be
    what.type = elementBytes_ == 2 ? "bfloat16" : "float32";
    bench_.measure(what, 1, [&](int, cudaStream_t stream) {
      gate_.backward(parameters(0), part(0), logits_.of(0), chosen_.data(),
                     {slots_.data(), choiceWeights_.data(), factors_.data()}, dWeights.of(0),
                     dSums_.data(), {dGate.of(0), nullptr, dInput.of(0)}, blas, space(), stream);
    });
  }

 private:
  bool noisy() const { return config_.kind == gates::Kind::noisy; }
  double productBytes() const {
    const std::int64_t logits = gates::logitsPerToken(config_);
    return static_cast<double>(elementBytes_ * (sizes_.tokens + logits) * sizes_.embedding +
                               8 * sizes_.tokens * logits);
  }
  double choiceBytes() const {
    return 8.0 * static_cast<double>(sizes_.tokens) *
           static_cast<double>(gates::logitsPerToken(config_) + sizes_.choices);
  }
  gates::Parameters<void> parameters(int turn) {
    return {weights_.of(turn), noise_.of(noisy() ? turn : 0)};
  }
  // Random, as in training.
  gates::Part<void> part(int turn) { return {input_.of(turn), sizes_.tokens, 0, gates::Draw{}}; }
  std::span<std::byte> space() { return {memory_.data(), memory_.size()}; }
  void choose(int turn, double* sums, cudaStream_t stream) {
    gate_.choose(parameters(turn), part(turn),
                 {logits_.of(turn), chosen_.data(), choiceWeights_.data()}, sums, space(), stream);
  }
  void place(cudaStream_t stream) {
    gate_.place(sizes_.tokens, 1, chosen_.data(), choiceWeights_.data(), used_.data(),
                slots_.data(), factors_.data(), sums_.data(), space(), stream);
  }
  void loss(cudaStream_t stream) {
    gate_.loss(sums_.data(), 1, dSums_.data(), loss_.data(), stream);
  }

  Bench& bench_;
  const Sizes sizes_;
  const gates::Config config_;
  const std::int64_t elementBytes_;
  const moeccl::cuda::Gate gate_;
  const int turns_;
  Turns<std::byte> input_, weights_, noise_;
  Turns<double> logits_;
  Device<std::byte> memory_;
  Device<double> sums_, dSums_, loss_;
  Device<std::int32_t> chosen_;
  Device<float> choiceWeights_;
  Device<double> factors_;
  Device<std::int64_t> used_, slots_;
};

struct Named {
  gates::Kind kind;
  const char* name;
};
constexpr Named kKinds[] = {{gates::Kind::softmax, "softmax"},
                            {gates::Kind::noisy, "noisy"},
                            {gates::Kind::gshard, "gshard"},
                            {gates::Kind::expertChoice, "expertChoice"},
                            {gates::Kind::sigmoid, "sigmoid"}};

// What one kind of gate does, beside what gate() has of it.
void rulesOf(Bench& bench, const Named& kind, Sizes sizes) {
  if (kind.kind == gates::Kind::gshard) sizes.choices = 2;
  const std::string name = kind.name;
  gates::Config config = configOf(kind.kind, sizes);
  {
    Problem problem(bench, config);
    if (kind.kind == gates::Kind::noisy) problem.product("router product, noisy");
    // gate() has softmax's and sigmoid's.
    if (kind.kind == gates::Kind::noisy || kind.kind == gates::Kind::gshard ||
        kind.kind == gates::Kind::expertChoice)
      problem.choose("choosing by " + name);
    problem.choose("choosing with sums, " + name, true);
    problem.place("placing, " + name);
    if (sizes.tokens == bench.training()) problem.loss("loss of " + name);
  }
  if (gates::Config kept = config; kept.renormalize = true, gates::renormalizedSum(kept) > 0) {
    Problem problem(bench, kept);
    problem.choose();
    problem.place("renormalized, " + name);
  }
  if (sizes.tokens != bench.training()) return;
  // Its products are small beside what is differentiated.
  config.embedding = 16;
  Problem problem(bench, config, moecclFloat32);
  problem.choose();
  problem.backward("differentiating " + name);
}

}  // namespace

void gate(Bench& bench) {
  for (const std::int32_t experts : bench.experts())
    for (const std::int64_t tokens : bench.tokens()) {
      const Sizes sizes{tokens, bench.embedding(), experts, Bench::kChoices};
      {
        Problem problem(bench, configOf(gates::Kind::sigmoid, sizes));
        problem.product("router product");
        problem.choose("choosing");
        problem.allAfterLogits();
        if (tokens == bench.training()) problem.backward("gate backward");
      }
      Problem problem(bench, configOf(gates::Kind::softmax, sizes));
      problem.choose("choosing by softmax");
    }
}

void rules(Bench& bench) {
  for (const std::int32_t experts : bench.experts())
    for (const std::int64_t tokens : bench.tokens())
      for (const Named& kind : kKinds)
        rulesOf(bench, kind, {tokens, bench.embedding(), experts, Bench::kChoices});
}

}  // namespace moeccl::gpu
