#include "src/moe/schedule_terms.h"

#include <algorithm>

#include "src/moe/schedule_list.h"

namespace moeccl {
namespace {

using namespace schedules;

constexpr double kSumBytes = 8;     // of one of a part's gate sums, and of a count
constexpr double kRouteBytes = 36;  // that ranks tell each other of what tokens chose

class Terms {
 public:
  Terms(const Schedule& schedule, const LayerShape& shape)
      : schedule_(schedule),
        shape_(shape),
        sizes_(sizesOf(shape, schedule)),
        embedding_(static_cast<double>(shape.embedding)),
        choices_(static_cast<double>(shape.gate.choices)),
        tokens_(static_cast<double>(shape.tokens)) {
    terms_.local[kLayer] = 1;
    for (const Phase& phase : schedule.phases) {
      ScheduleTerms::Phase& it = terms_.phases.emplace_back();
      if (phase.kind == Kind::exchange)
        it.exchange = exchange(phase);
      else
        compute(phase, it.local);
      if (phase.kind == Kind::route || phase.routed) it.exchange = route(phase);
      for (std::size_t i = 0; i < kLocalFeatures; ++i) terms_.local[i] += it.local[i];
    }
  }

  ScheduleTerms take() { return std::move(terms_); }

 private:
  const Table& table(int index) const { return schedule_.tables[static_cast<std::size_t>(index)]; }

  // Of what only counts tell, the mean: experts get equally many.
  double size(Dim dim) const {
    const double chosen = choices_ * tokens_ / static_cast<double>(shape_.experts);
    switch (dim) {
      case Dim::batchRows:
        return chosen;
      case Dim::partRows:
        return chosen / shape_.grid.nMp;
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

  // Calls of one name are one term: they are of different chunks. The term's place, or -1: none.
  int exchange(const Phase& phase) {
    if (ranksOf(phase.group) == 1) return -1;
    std::vector<Exchange>& all = terms_.exchanges;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (std::string_view(all[i].name) == phase.name) {
        ++all[i].times;
        return static_cast<int>(i);
      }
    double bytes = 0;
    for (std::size_t i = 0; i < phase.writes.size(); ++i)
      bytes += count(phase.reads[i]) * (table(phase.reads[i]).element == Element::layer
                                            ? static_cast<double>(shape_.elementBytes)
                                            : kSumBytes);
    const Collective collective = carrier(schedule_, phase);
    // What all of a group get is sent to each of them.
    if (collective != phase.collective && phase.collective == Collective::allGather)
      bytes *= static_cast<double>(ranksOf(phase.group));
    all.push_back({phase.name.c_str(), collective, phase.group, bytes});
    return static_cast<int>(all.size()) - 1;
  }

  // Routing is told by an all-to-all of counts, and lists of choices behind it.
  int route(const Phase& phase) {
    if (ranksOf(GroupKind::world) == 1) return -1;
    Exchange made{phase.name.c_str(), Collective::allToAll, GroupKind::world, 0};
    if (phase.routed) {
      const bool dispatches = (phase.kind == Kind::permute) != phase.backward;
      const int tokens = dispatches ? phase.reads[0] : phase.writes[0];
      made.routed = dispatches ? Routed::dispatch : Routed::combine;
      made.bytes = tokensOf(table(tokens)) * embedding_ * static_cast<double>(shape_.elementBytes);
    } else {
      made.bytes = kRouteBytes * static_cast<double>(ranksOf(GroupKind::world));
      made.times = 2;
    }
    terms_.exchanges.push_back(made);
    return static_cast<int>(terms_.exchanges.size()) - 1;
  }

  // Tokens of a table of tokens, without padding.
  double tokensOf(const Table& table) const {
    return elements(table.shape, [this](Dim dim) -> double {
      if (dim == Dim::partTokens) return tokens_ / shape_.grid.nMp;
      if (dim == Dim::chunkTokens) return tokens_ / shape_.grid.nMp / schedule_.chunks;
      return dim == Dim::embedding || dim == Dim::choices ? 1.0 : size(dim);
    });
  }

  void compute(const Phase& phase, LocalFeatures& local) const {
    const int read = phase.reads[0], written = phase.writes[0];
    const auto hidden = static_cast<double>(shape_.localHidden);
    switch (phase.kind) {
      case Kind::gate:
        local[kGate] = tokensOf(table(read)) * embedding_ *
                       static_cast<double>(gates::logitsPerToken(shape_.gate));
        break;
      case Kind::experts:
        local[kProducts] = count(read) * hidden;
        local[kWeights] = size(Dim::localExperts) * embedding_ * hidden / schedule_.chunks;
        local[kActivations] = count(read) / embedding_ * hidden;
        break;
      case Kind::regroup:
        local[kMoves] = count(written);
        break;
      case Kind::permute:
        local[kMoves] = phase.backward ? gathered(read, written) : count(written);
        break;
      case Kind::combine:
        local[kMoves] = phase.backward ? count(written) : gathered(read, written);
        break;
      case Kind::residual:
        local[kMoves] = count(read);
        local[kProducts] = count(read) * static_cast<double>(shape_.residual);
        local[kActivations] = count(read) / embedding_ * static_cast<double>(shape_.residual);
        break;
      default:
        break;
    }
  }
  // Each token reads its choices; or each row is added to tokens that were cleared.
  double gathered(int rows, int tokens) const {
    const bool listed = std::ranges::count(table(rows).shape, Dim::keptRows) > 0;
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

ScheduleTerms termsOf(const LayerShape& shape, Pass pass) {
  return Terms(valueOf(shape, pass), shape).take();
}

}  // namespace moeccl
