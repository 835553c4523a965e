// Counts what each phase of a schedule costs a layer: calls and bytes of its exchange, and features
// of its local work.
#include "src/model/schedule_terms.h"

#include <algorithm>

#include "algorithms/schedules/kinds.h"
#include "src/model/schedule_list.h"

namespace moeccl {
namespace {

using namespace schedules;

constexpr double kSumBytes = 8;  // of one of a part's gate sums, and of a count
// Bytes that ranks tell each other about what tokens chose, by an all-to-all of counts and one of
// lists.
constexpr double kRouteBytes = 36;
constexpr int kRouteCalls = 2;

class Terms {
 public:
  Terms(const Schedule& schedule, const LayerShape& shape)
      : schedule_(schedule),
        shape_(shape),
        sizes_(sizesOf(shape, schedule)),
        embedding_(static_cast<double>(shape.embedding)),
        choices_(static_cast<double>(shape.gate.choices)),
        tokens_(static_cast<double>(shape.tokens)) {
    for (const Phase& phase : schedule.phases) {
      ScheduleTerms::Phase& it = terms_.phases.emplace_back();
      if (phase.kind == Kind::route) it.calls = kRouteCalls;
      if (communicates(phase) && ranksOf(phase.group) > 1) it.exchange = exchange(phase, it.calls);
      if (phase.kind != Kind::exchange) compute(phase, it.local);
    }
  }

  ScheduleTerms take() { return std::move(terms_); }

 private:
  const Table& table(int index) const { return schedule_.tables[static_cast<std::size_t>(index)]; }

  // The size of a dimension. Where only counts tell it, the mean: experts get equally many rows.
  double size(Dim dim) const {
    const double chosen = choices_ * tokens_ / static_cast<double>(shape_.experts);
    switch (dim) {
      case Dim::batchRows:
        return chosen;
      case Dim::partRows:
        return chosen / shape_.grid.nMp;
      case Dim::chunkRows:
        return chosen / shape_.grid.nMp / schedule_.chunks;
      case Dim::batchChunkRows:
        return chosen / schedule_.chunks;
      case Dim::keptRows:
        return shape_.dropless ? chosen : std::min(chosen, static_cast<double>(shape_.capacity()));
      default:
        return static_cast<double>(sizes_.at(dim));
    }
  }
  double count(int index) const {
    return elements(table(index).shape, [this](Dim dim) { return size(dim); });
  }

  std::int64_t ranksOf(GroupKind group) const {
    return sizes_.at(group == GroupKind::world ? Dim::ranks
                     : group == GroupKind::mp  ? Dim::mp
                     : group == GroupKind::ep  ? Dim::ep
                                               : Dim::esp);
  }

  // Calls of one name are one term: they are of different chunks.
  int exchange(const Phase& phase, int calls) {
    std::vector<Exchange>& all = terms_.exchanges;
    const auto known = std::ranges::find(all, std::string_view(phase.name), &Exchange::name);
    const auto index = static_cast<int>(known - all.begin());
    if (known == all.end())
      all.push_back(callOf(phase, calls));
    else
      known->times += calls;
    return index;
  }

  Exchange callOf(const Phase& phase, int calls) const {
    Exchange call{phase.name.c_str(), Collective::allToAll, phase.group, 0, calls};
    if (phase.routed) {
      const bool dispatches = (phase.kind == Kind::permute) != phase.backward;
      const int tokens = dispatches ? phase.reads[0] : phase.writes[0];
      call.routed = dispatches ? Routed::dispatch : Routed::combine;
      call.bytes = tokensOf(table(tokens)) * embedding_ * bytesOf(Element::layer);
      return call;
    }
    const auto ranks = static_cast<double>(ranksOf(phase.group));
    if (phase.kind == Kind::route) {
      call.bytes = kRouteBytes * ranks;
      return call;
    }
    call.collective = carrier(schedule_, phase);
    for (std::size_t i = 0; i < phase.writes.size(); ++i)
      call.bytes += count(phase.reads[i]) * bytesOf(table(phase.reads[i]).element);
    // An all-to-all-v that carries an all-gather sends what all of a group get to each of them.
    if (call.collective != phase.collective && phase.collective == Collective::allGather)
      call.bytes *= ranks;
    return call;
  }

  double bytesOf(Element element) const {
    return element == Element::layer ? static_cast<double>(shape_.elementBytes) : kSumBytes;
  }

  // Tokens of a table of tokens, without padding.
  double tokensOf(const Table& table) const {
    return elements(table.shape, [this](Dim dim) -> double {
      if (dim == Dim::partTokens) return tokens_ / shape_.grid.nMp;
      if (dim == Dim::chunkTokens) return tokens_ / shape_.grid.nMp / schedule_.chunks;
      if (dim == Dim::batchChunkTokens) return tokens_ / schedule_.chunks;
      return dim == Dim::embedding || dim == Dim::choices ? 1.0 : size(dim);
    });
  }

  void compute(const Phase& phase, LocalFeatures& local) const {
    const Signature& kind = signatureOf(phase.kind);
    const int read = phase.reads[0], written = phase.writes[0];
    const Moves moves = phase.backward ? kind.movesBackward : kind.moves;
    if (moves == Moves::written) local[kMoves] = count(written);
    if (moves == Moves::gathered) local[kMoves] = gathered(read, written);
    if (kind.weights == Weights::gate) {
      local[kGate] = tokensOf(table(read)) * embedding_ *
                     static_cast<double>(gates::logitsPerToken(shape_.gate));
    } else if (kind.weights != Weights::none) {
      const bool isExperts = kind.weights == Weights::experts;
      const double hidden = isExperts ? hiddenOfExperts() : static_cast<double>(shape_.residual);
      local[kProducts] = count(read) * hidden;
      local[kActivations] = count(read) / embedding_ * hidden;
      if (isExperts)
        local[kWeights] = size(Dim::localExperts) * embedding_ * hidden / schedule_.chunks;
    }
  }
  // The second matrix has as many rows as there are hidden values, the first may have twice as many
  // columns.
  double hiddenOfExperts() const {
    return static_cast<double>(shape_.localHidden + shape_.innerOf(shape_.localHidden)) / 2;
  }
  // Each token reads its choices; or each row is added to tokens that were cleared.
  double gathered(int rows, int tokens) const {
    const bool listed = has(table(rows), Dim::keptRows);
    return listed ? count(rows) + count(tokens) : choices_ * count(tokens);
  }

  const Schedule& schedule_;
  const LayerShape& shape_;
  const Sizes sizes_;
  const double embedding_, choices_, tokens_;
  ScheduleTerms terms_;
};

}  // namespace

const Schedule& valueOf(const LayerShape& shape, Pass pass) {
  return known(entryOf(shape.schedule), pass,
               {.dropless = shape.dropless,
                .residual = shape.residual > 0,
                .chunks = static_cast<int>(shape.chunks),
                .routed = shape.routed});
}

LocalFeatures ScheduleTerms::local() const {
  LocalFeatures all{};
  all[kLayer] = 1;
  for (const Phase& phase : phases)
    for (std::size_t i = 0; i < kLocalFeatures; ++i) all[i] += phase.local[i];
  return all;
}

ScheduleTerms termsOf(const LayerShape& shape, Pass pass) {
  return Terms(valueOf(shape, pass), shape).take();
}

}  // namespace moeccl
