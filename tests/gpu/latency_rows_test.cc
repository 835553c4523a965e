// The kernels of routes in latency mode, against plain loops.
#include "kernels/latency_rows.h"

#include <cstring>
#include <memory>
#include <numeric>

#include "kernels/reduce.h"
#include "kernels/reduce_ops.h"
#include "kernels/weigh.h"
#include "tests/gpu/check.h"

namespace moeccl::gpu {
namespace {

// A rank of a cluster whose relays are the sources themselves, or the ranks of its node that have
// the same number there; all that has come to it before each step.
struct Route {
  std::int32_t nodes, ranksOfNode, shards, experts, choices;
  bool relays;

  std::int32_t ranks() const { return nodes * ranksOfNode; }
};

template <typename T>
std::vector<std::byte> bytesOf(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Memory of a name, here and on the GPU.
struct Twin {
  explicit Twin(std::vector<std::byte> bytes)
      : host(std::move(bytes)), device(std::make_unique<Device<std::byte>>(host)) {}
  void expectEqual(const std::string& what) const { expectSame(device->get(what), host, what); }

  std::vector<std::byte> host;
  std::unique_ptr<Device<std::byte>> device;
};

class Machine {
 public:
  template <typename Format>
  Machine(Random& random, Format, moecclDataType_t datatype, const Route& route,
          std::int64_t bucket, std::int64_t tokens, std::int64_t embedding)
      : rank_(static_cast<std::int32_t>(random() % static_cast<unsigned>(route.ranks()))) {
    using Bits = typename Format::Bits;
    LatencyRows& it = here_;
    it.ranks = route.ranks();
    it.nodes = route.nodes;
    it.rank = rank_;
    it.choices = route.choices;
    it.experts = route.experts;
    it.shards = route.shards;
    it.positions = route.ranks() / route.shards;
    const std::int32_t position = rank_ / route.shards;
    const std::int32_t share = it.experts / it.positions, longer = it.experts % it.positions;
    it.firstExpert = position * share + std::min(position, longer);
    it.localExperts = share + (position < longer ? 1 : 0);
    it.weighted = random() % 2 == 0;
    it.datatype = datatype;
    it.combineBytes = static_cast<std::size_t>(embedding) * sizeof(Bits);
    it.rowBytes = it.combineBytes;
    it.bucket = bucket;
    it.tokens = tokens;
    const auto aligned = [](std::size_t bytes) { return (bytes + 15) / 16 * 16; };
    it.headerBytes = aligned(static_cast<std::size_t>(bucket * it.choices) * 8);
    it.regionBytes = it.headerBytes + aligned(static_cast<std::size_t>(bucket) * it.rowBytes);

    std::vector<std::int32_t> slots(static_cast<std::size_t>(it.ranks)), holders(slots.size()),
        nodesOf, sources, sumNodes, indices;
    std::iota(holders.begin(), holders.end(), 0);
    for (std::int32_t rank = 0; rank < it.ranks; ++rank)
      nodesOf.push_back(rank / route.ranksOfNode);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random);
    const std::int32_t own = rank_ / route.ranksOfNode;
    std::vector<std::int64_t> termFirst(slots.size(), 0);
    for (std::int32_t node = 0; node < route.nodes; ++node) {
      std::vector<std::int32_t> relayed;
      if (!route.relays)
        relayed = {rank_};
      else if (node == own)
        for (std::int32_t other = 0; other < route.nodes; ++other)
          relayed.push_back(other * route.ranksOfNode + rank_ % route.ranksOfNode);
      for (std::size_t i = 0; i < relayed.size(); ++i) {
        sources.push_back(relayed[i]);
        sumNodes.push_back(node);
        indices.push_back(static_cast<std::int32_t>(i));
      }
      for (std::int32_t local = 0; local < route.ranksOfNode; ++local) {
        const std::int32_t holder = node * route.ranksOfNode + local;
        if (holder == rank_) continue;
        termFirst[static_cast<std::size_t>(holder)] = it.termRows;
        it.termRows += std::ssize(relayed) * it.mostAt(holder / route.shards);
      }
    }
    it.sums = static_cast<std::int32_t>(sources.size());

    there_ = here_;
    const auto add = [&](auto LatencyRows::*member, std::vector<std::byte> bytes) {
      memory_.push_back(std::make_unique<Twin>(std::move(bytes)));
      using Pointer = std::remove_reference_t<decltype(here_.*member)>;
      here_.*member = reinterpret_cast<Pointer>(memory_.back()->host.data());
      there_.*member = reinterpret_cast<Pointer>(memory_.back()->device->data());
    };
    add(&LatencyRows::slotOf, bytesOf(slots));
    add(&LatencyRows::holders, bytesOf(holders));
    add(&LatencyRows::nodeOf, bytesOf(nodesOf));
    add(&LatencyRows::sumSource, bytesOf(sources));
    add(&LatencyRows::sumNode, bytesOf(sumNodes));
    add(&LatencyRows::sumIndex, bytesOf(indices));
    add(&LatencyRows::termFirst, bytesOf(termFirst));
    const std::int64_t runs = it.localExperts * it.ranks;
    const auto zeros = [](std::int64_t count, std::size_t bytes) {
      return std::vector<std::byte>(static_cast<std::size_t>(count) * bytes);
    };
    add(&LatencyRows::places, zeros(it.ranks * bucket * it.choices, 4));
    add(&LatencyRows::counts, zeros(runs, 8));
    add(&LatencyRows::firsts, zeros(runs, 8));
    add(&LatencyRows::begins, zeros(it.localExperts + 1, 8));
    add(&LatencyRows::loads, zeros(it.experts + 1, 8));
    const auto numbers = [&](std::int64_t rows) {
      std::vector<Bits> values;
      for (std::int64_t i = 0; i < rows * embedding; ++i)
        values.push_back(Format::encode(std::ldexp(static_cast<float>(random() % 2047) - 1023,
                                                   static_cast<int>(random() % 12) - 12)));
      return bytesOf(values);
    };
    add(&LatencyRows::regions, regionsOf(random, numbers(it.ranks * bucket)));
    add(&LatencyRows::stage, numbers(it.ranks * bucket * it.most()));
    add(&LatencyRows::terms, numbers(it.termRows * bucket));
    add(&LatencyRows::sumRows, numbers(it.sums * bucket));
    add(&LatencyRows::back, numbers(it.nodes * bucket));
    const std::int64_t mostRows = it.ranks * bucket * it.most();
    add(&LatencyRows::input, numbers(mostRows));
    add(&LatencyRows::output, numbers(std::max(mostRows, tokens)));
    std::vector<std::int32_t> chosen;
    std::vector<float> weights;
    for (std::int64_t i = 0; i < tokens * it.choices; ++i) {
      // Some are none, some are there twice.
      chosen.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(it.experts + 2)) -
                       1);
      weights.push_back(std::ldexp(1.0f, static_cast<int>(random() % 5) - 2));
    }
    add(&LatencyRows::chosen, bytesOf(chosen));
    add(&LatencyRows::weights, bytesOf(weights));
  }

  void run(const std::string& what) {
    choices();
    both(LatencyStep::choices, what + ": choices");
    const std::int64_t runs = here_.localExperts * here_.ranks;
    std::int64_t before = 0;
    for (std::int64_t run = 0; run < runs; ++run) {
      const auto expert = here_.firstExpert + static_cast<std::int32_t>(run / here_.ranks);
      const auto source = static_cast<std::int32_t>(run % here_.ranks);
      here_.firsts[run] = before;
      if (source == 0) here_.begins[run / here_.ranks] = before;
      for (std::int64_t token = 0; token < here_.bucket; ++token)
        if (const std::int32_t choice = here_.find(source, token, expert); choice >= 0)
          here_.places[here_.choiceAt(source, token, choice)] = static_cast<std::int32_t>(before++);
      here_.counts[run] = before - here_.firsts[run];
    }
    here_.begins[here_.localExperts] = before;
    here_.loads[here_.experts] += before;
    for (const LatencyStep step : {LatencyStep::counts, LatencyStep::begins})
      moeccl::cuda::runLatency(step, there_, nullptr);
    both(LatencyStep::places, what + ": places");
    eachRow([&](std::int32_t source, std::int64_t token, std::int32_t, std::int64_t place) {
      std::memcpy(here_.output + at(place), here_.region(source) + here_.headerBytes + at(token),
                  here_.rowBytes);
    });
    both(LatencyStep::rows, what + ": rows");
    eachRow([&](std::int32_t source, std::int64_t token, std::int32_t expert, std::int64_t place) {
      std::memcpy(
          here_.stage + at(here_.stageRow(source, token, here_.before(source, token, expert))),
          here_.input + at(place), here_.combineBytes);
    });
    both(LatencyStep::pack, what + ": packing");
    for (std::int64_t sum = 0; sum < here_.sums; ++sum)
      for (std::int64_t token = 0; token < here_.bucket; ++token) {
        std::vector<const std::byte*> terms;
        std::vector<float> weights;
        std::byte* const to = here_.eachTerm(sum, token, [&](const std::byte* from, float weight) {
          terms.push_back(from);
          weights.push_back(weight);
        });
        if (!terms.empty())
          addWeighted(here_.datatype, to, terms.data(), weights.data(), 1, terms.size(),
                      here_.combineBytes);
      }
    both(LatencyStep::sums, what + ": sums");
    for (std::int64_t token = 0; token < here_.tokens; ++token) {
      std::vector<const std::byte*> terms;
      for (std::int32_t node = 0; node < here_.nodes; ++node)
        if (here_.has(token, node)) terms.push_back(here_.back + at(node * here_.bucket + token));
      const std::vector<float> ones(terms.size(), 1);
      if (terms.empty())
        std::memset(here_.output + at(token), 0, here_.combineBytes);
      else
        addWeighted(here_.datatype, here_.output + at(token), terms.data(), ones.data(), 1,
                    terms.size(), here_.combineBytes);
    }
    both(LatencyStep::finish, what + ": the end");
  }

 private:
  std::size_t at(std::int64_t row) const {
    return static_cast<std::size_t>(row) * here_.combineBytes;
  }
  void both(LatencyStep step, const std::string& what) {
    moeccl::cuda::runLatency(step, there_, nullptr);
    for (const auto& memory : memory_) memory->expectEqual(what);
  }
  // The regions of other ranks, as they come: each token has an expert once.
  std::vector<std::byte> regionsOf(Random& random, const std::vector<std::byte>& rows) const {
    std::vector<std::byte> regions(static_cast<std::size_t>(here_.ranks) * here_.regionBytes);
    const std::size_t of = static_cast<std::size_t>(here_.bucket) * here_.rowBytes;
    for (std::int32_t slot = 0; slot < here_.ranks; ++slot) {
      std::byte* const region = regions.data() + static_cast<std::size_t>(slot) * here_.regionBytes;
      auto* const experts = reinterpret_cast<std::int32_t*>(region);
      auto* const weights = reinterpret_cast<float*>(experts + here_.bucket * here_.choices);
      std::vector<std::int32_t> all(static_cast<std::size_t>(here_.experts + here_.choices), -1);
      std::iota(all.begin(), all.begin() + here_.experts, 0);
      for (std::int64_t token = 0; token < here_.bucket; ++token) {
        std::shuffle(all.begin(), all.end(), random);
        for (std::int32_t c = 0; c < here_.choices; ++c) {
          experts[token * here_.choices + c] = all[static_cast<std::size_t>(c)];
          weights[token * here_.choices + c] = std::ldexp(1.0f, static_cast<int>(random() % 5) - 2);
        }
      }
      if (of > 0)
        std::memcpy(region + here_.headerBytes, rows.data() + static_cast<std::size_t>(slot) * of,
                    of);
    }
    return regions;
  }
  void choices() {
    for (std::int64_t token = 0; token < here_.bucket; ++token) {
      std::vector<std::int32_t> seen;
      for (std::int32_t c = 0; c < here_.choices; ++c) {
        const std::int64_t i = token * here_.choices + c;
        const bool isThere = token < here_.tokens;
        std::int32_t expert = isThere ? here_.chosen[i] : -1;
        if (expert >= here_.experts || std::ranges::count(seen, expert) > 0) expert = -1;
        seen.push_back(expert);
        here_.expertsOf(rank_, token)[c] = expert;
        here_.weightsOf(rank_, token)[c] = here_.weighted && isThere ? here_.weights[i] : 1.0f;
        if (expert >= 0) ++here_.loads[expert];
      }
    }
  }
  template <typename Function>
  void eachRow(const Function& function) const {
    for (std::int32_t source = 0; source < here_.ranks; ++source)
      for (std::int64_t token = 0; token < here_.bucket; ++token)
        for (std::int32_t c = 0; c < here_.choices; ++c)
          if (const std::int32_t expert = here_.expertsOf(source, token)[c]; here_.isOwn(expert))
            function(source, token, expert, here_.places[here_.choiceAt(source, token, c)]);
  }

  const std::int32_t rank_;
  LatencyRows here_{}, there_{};
  std::vector<std::unique_ptr<Twin>> memory_;
};

GPU_TEST(latencyModeDoesWhatPlainLoopsDo) {
  const Route routes[] = {{1, 1, 1, 3, 2, false},
                          {2, 2, 1, 7, 3, true},
                          {2, 2, 2, 5, 2, true},
                          {3, 2, 1, 19, 8, false},
                          {2, 3, 3, 2, 4, false}};
  for (const Route& route : routes)
    for (const std::int64_t bucket : {1, 5, 40})
      for (const std::int64_t embedding : {1, 24, 300}) {
        const std::int64_t tokens = random() % 3 == 0 ? bucket : bucket / 2;
        const std::string what = std::to_string(route.ranks()) + " ranks, " +
                                 std::to_string(bucket) + " tokens of " + std::to_string(embedding);
        Machine(random, Unchanged<float>{}, moecclFloat32, route, bucket, tokens, embedding)
            .run(what);
        Machine(random, Float16{}, moecclFloat16, route, bucket, tokens, embedding).run(what);
        Machine(random, Bfloat16{}, moecclBfloat16, route, bucket, tokens, embedding).run(what);
      }
}

}  // namespace
}  // namespace moeccl::gpu
