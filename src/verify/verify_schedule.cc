// Runs both passes of a schedule on numbers of a field, and compares outputs, gate sums and
// gradients with what the layer's function says they must be.
#include "src/verify/verify_schedule.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "src/verify/schedule_run.h"

namespace moeccl {
namespace {

using namespace schedules;
using verification::Coefficients;
using verification::Data;
using verification::Number;
using verification::ScheduleRun;

constexpr std::size_t kMost = 16;

std::vector<int> inOrder(const Schedule& schedule) {
  std::vector<int> order(schedule.phases.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

void requireFits(const Schedule& schedule, const RoutedLayer& layer) {
  const Grid& grid = layer.grid;
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
  };
  require(layer.groups * layer.groupTokens >= layer.tokens,
          "verify: capacity groups for fewer tokens");
  require(layer.groups * layer.groupTokens % grid.mp == 0 && layer.capacity() % grid.mp == 0,
          "verify: a batch that the MP group cannot split");
  require(!schedule.needs.wholeGroups || layer.groups % (grid.mp * layer.chunks) == 0,
          "verify: capacity groups that cross parts or chunks");
  require(!schedule.needs.expertsInMp || grid.mp == grid.ranks(),
          "verify: experts outside the MP group");
  require(schedule.chunks == layer.chunks, "verify: another number of chunks");
  require(
      std::ssize(layer.routing) == std::ptrdiff_t{grid.mpGroups()} * layer.tokens * layer.choices,
      "verify: a routing of other tokens");
}

// The layer's function and its gradients, computed straight from the choices of tokens.
class Expected {
 public:
  Expected(const RoutedLayer& layer, bool residual)
      : layer_(layer), numbers_(layer), residual_(residual) {}

  // The factors of all shards of an expert, added up.
  Number expert(int expert) const {
    Number sum;
    for (int shard = 0; shard < layer_.grid.esp; ++shard) sum += numbers_.shard(expert, shard);
    return sum;
  }
  template <typename Function>
  void eachKept(int batch, int token, Function at) const {
    for (int c = 0; c < layer_.choices; ++c)
      if (const auto& choice = layer_.choice(batch, token, c); choice.place >= 0)
        at(c, choice.expert);
  }
  Number factor(int batch, int token) const {
    Number sum;
    eachKept(batch, token,
             [&](int c, int e) { sum += numbers_.weight(batch, token, c) * expert(e); });
    if (residual_) sum += numbers_.residual();
    return sum;
  }
  Number output(int batch, int token) const {
    return factor(batch, token) * numbers_.token(batch, token);
  }
  Number weightGradient(int batch, int token, int e) const {
    return numbers_.outputGradient(batch, token) * expert(e) * numbers_.token(batch, token);
  }
  Number inputGradient(int batch, int token) const {
    Number sum = factor(batch, token) * numbers_.outputGradient(batch, token);
    if (!layer_.gateGradients) return sum;
    eachKept(batch, token, [&](int c, int e) {
      sum += weightGradient(batch, token, e) * numbers_.weightByToken(batch, token, c);
    });
    return sum + numbers_.lossByToken(batch, token);
  }
  Number gateGradient(int batch) const {
    Number sum;
    for (int token = 0; token < layer_.tokens; ++token) {
      eachKept(batch, token, [&](int c, int e) {
        sum += weightGradient(batch, token, e) * numbers_.weightByGate(batch, token, c);
      });
      if (layer_.gateGradients) sum += numbers_.lossByGate(batch, token);
    }
    return sum;
  }
  Number residualGradient(int batch) const {
    Number sum;
    for (int token = 0; token < layer_.tokens; ++token)
      sum += numbers_.token(batch, token) * numbers_.outputGradient(batch, token);
    return sum;
  }
  Number sums(int batch) const {
    Number sum;
    for (int token = 0; token < layer_.tokens; ++token) sum += numbers_.token(batch, token);
    return sum;
  }
  // The gradient of one expert's weights, the same for each shard.
  Number expertGradient(int expert) const {
    Number sum;
    for (int batch = 0; batch < layer_.grid.mpGroups(); ++batch)
      for (int token = 0; token < layer_.tokens; ++token)
        eachKept(batch, token, [&](int c, int e) {
          if (e == expert)
            sum += numbers_.weight(batch, token, c) * numbers_.token(batch, token) *
                   numbers_.outputGradient(batch, token);
        });
    return sum;
  }

 private:
  const RoutedLayer& layer_;
  const Coefficients numbers_;
  const bool residual_;
};

class Passes {
 public:
  Passes(const Schedule& forward, const std::vector<int>& forwardOrder, const Schedule& backward,
         const std::vector<int>& backwardOrder, const RoutedLayer& layer)
      : layer_(layer),
        expected_(layer, hasResidual(forward)),
        forward_(forward, layer, nullptr),
        backward_(backward, layer, &forward_) {
    try {
      forward_.run(forwardOrder);
      const bool right = outputs() && sums();
      backward_.run(backwardOrder);
      if (right) gradients();
    } catch (const ScheduleRun::Wrong& wrong) {
      report(wrong.what);
    }
  }

  std::vector<std::string> wrong() { return std::move(wrong_); }

 private:
  static bool hasResidual(const Schedule& schedule) {
    return std::ranges::any_of(schedule.phases,
                               [](const Phase& phase) { return phase.kind == Kind::residual; });
  }
  void report(const std::string& what) {
    if (wrong_.size() < kMost) wrong_.push_back(what);
  }
  void compare(const std::string& what, Number is, Number right) {
    if (is != right) report(what + (is == Number{} ? " is nothing" : " is not the layer's"));
  }

  // The table of the pass that all ranks have, as the caller's [tokens].
  template <typename Function>
  bool batches(const ScheduleRun& run, const char* what, Function right) {
    const std::size_t before = wrong_.size();
    for (int rank = 0; rank < layer_.grid.ranks(); ++rank) {
      const std::vector<Number>& rows = run.at(run.schedule().output, rank).runs[0];
      const int batch = layer_.grid.mpGroupOf(rank);
      if (std::ssize(rows) != layer_.tokens) {
        report(std::string(what) + " of rank " + std::to_string(rank) + " has other tokens");
        continue;
      }
      for (int token = 0; token < layer_.tokens; ++token)
        compare(std::string(what) + " of token " + std::to_string(token) + " on rank " +
                    std::to_string(rank),
                rows[static_cast<std::size_t>(token)], right(batch, token));
    }
    return wrong_.size() == before;
  }

  bool outputs() {
    return batches(forward_, "the output",
                   [&](int batch, int token) { return expected_.output(batch, token); });
  }

  // Whether the gates' sums are whole on every rank.
  bool sums() {
    const std::size_t before = wrong_.size();
    for (int rank = 0; rank < layer_.grid.ranks(); ++rank) {
      const Data* sums = forward_.find("all sums", 0, rank);
      if (sums == nullptr) sums = forward_.find("sums", 0, rank);
      if (sums == nullptr) return report("nobody makes the gate's sums"), false;
      Number sum;
      for (const std::vector<Number>& run : sums->runs) sum += run[0];
      compare("the gate's sums on rank " + std::to_string(rank), sum,
              expected_.sums(layer_.grid.mpGroupOf(rank)));
    }
    return wrong_.size() == before;
  }

  void gradients() {
    const Grid& grid = layer_.grid;
    batches(backward_, "the input's gradient",
            [&](int batch, int token) { return expected_.inputGradient(batch, token); });
    const bool residual = hasResidual(forward_.schedule());
    for (int rank = 0; rank < grid.ranks(); ++rank) {
      const std::string on = " on rank " + std::to_string(rank);
      const int batch = grid.mpGroupOf(rank);
      single("gradient of gate", "the gate's gradient" + on, rank, expected_.gateGradient(batch));
      if (residual)
        single("gradient of residual branch", "the residual branch's gradient" + on, rank,
               expected_.residualGradient(batch));
      for (int expert = 0; expert < layer_.localExperts; ++expert)
        compare("the gradient of expert " + std::to_string(expert) + on,
                backward_.shardGradient(rank, expert),
                expected_.expertGradient(grid.positionOf(rank) * layer_.localExperts + expert));
    }
    if (!layer_.gateGradients && wrong_.empty()) transpose();
  }

  void single(const char* table, const std::string& what, int rank, Number right) {
    const Data* const data = backward_.find(table, 0, rank);
    if (data == nullptr) return report("nobody makes " + what);
    compare(what, data->runs[0][0], right);
  }

  // <A x, y> = <x, A' y>, with one rank of each MP group.
  void transpose() {
    const Coefficients numbers(layer_);
    Number forward, backward;
    for (int batch = 0; batch < layer_.grid.mpGroups(); ++batch) {
      const int rank = layer_.grid.mpRank(batch, 0);
      for (int token = 0; token < layer_.tokens; ++token) {
        const auto at = static_cast<std::size_t>(token);
        forward += forward_.at(forward_.schedule().output, rank).runs[0][at] *
                   numbers.outputGradient(batch, token);
        backward += backward_.at(backward_.schedule().output, rank).runs[0][at] *
                    numbers.token(batch, token);
      }
    }
    compare("<x, A' y>", backward, forward);
  }

  const RoutedLayer& layer_;
  const Expected expected_;
  ScheduleRun forward_, backward_;
  std::vector<std::string> wrong_;
};

}  // namespace

std::vector<std::string> follow(const Schedule& forward, const std::vector<int>& forwardOrder,
                                const Schedule& backward, const std::vector<int>& backwardOrder,
                                const RoutedLayer& layer) {
  requireFits(forward, layer);
  return Passes(forward, forwardOrder, backward, backwardOrder, layer).wrong();
}

std::vector<std::string> verify(const Schedule& forward, const Schedule& backward,
                                const RoutedLayer& layer) {
  requireFits(forward, layer);
  for (const Schedule* schedule : {&forward, &backward})
    if (std::vector<std::string> wrong = verifyOrder(*schedule); !wrong.empty()) return wrong;
  return follow(forward, inOrder(forward), backward, inOrder(backward), layer);
}

}  // namespace moeccl
