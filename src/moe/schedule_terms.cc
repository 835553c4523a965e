#include "src/moe/schedule_terms.h"

#include <algorithm>

#include "algorithms/schedules/registry.h"

namespace moeccl {
namespace {

using namespace schedules;

constexpr double kSumBytes = 8;  // of one of a part's gate sums, and of a count

class Terms {
 public:
  Terms(const Schedule& schedule, const LayerSizes& sizes)
      : schedule_(schedule),
        sizes_(sizes),
        embedding_(static_cast<double>(sizes.embedding)),
        choices_(static_cast<double>(sizes.choices)),
        tokens_(static_cast<double>(sizes.tokens)) {
    for (const Phase& phase : schedule.phases)
      phase.kind == Kind::exchange ? exchange(phase) : compute(phase);
    work_.embedding = embedding_;
    work_.hidden = static_cast<double>(sizes.localHidden);
    work_.experts = static_cast<double>(sizes.logits);
    work_.ownExperts = size(Dim::localExperts);
    terms_.local = featuresOf(work_);
    terms_.local[kMoves] = moved_;
    terms_.local[kProducts] += branch_ * embedding_;
    terms_.local[kActivations] += branch_;
  }

  ScheduleTerms take() { return std::move(terms_); }

 private:
  const Table& table(int index) const { return schedule_.tables[static_cast<std::size_t>(index)]; }

  // Of what only counts tell, the mean: experts get equally many.
  double size(Dim dim) const {
    const Grid& grid = sizes_.grid;
    const auto experts = static_cast<double>(sizes_.experts);
    switch (dim) {
      case Dim::mp:
        return grid.mp;
      case Dim::ep:
        return grid.ep;
      case Dim::esp:
        return grid.esp;
      case Dim::ranks:
        return grid.ranks();
      case Dim::localExperts:
        return experts / grid.ep;
      case Dim::tokens:
        return tokens_;
      case Dim::partTokens:
        return static_cast<double>(sizes_.partTokens);
      case Dim::chunkTokens:
        return static_cast<double>(sizes_.partTokens) / schedule_.chunks;
      case Dim::capacity:
        return static_cast<double>(sizes_.capacity);
      case Dim::slots:
        return static_cast<double>(sizes_.capacity) / grid.mp;
      case Dim::chunkSlots:
        return static_cast<double>(sizes_.capacity) / grid.mp / schedule_.chunks;
      case Dim::batchRows:
        return choices_ * tokens_ / experts;
      case Dim::partRows:
        return choices_ * tokens_ / experts / grid.mp;
      case Dim::keptRows: {
        const double chosen = choices_ * tokens_ / experts;
        return sizes_.dropless ? chosen : std::min(chosen, static_cast<double>(sizes_.capacity));
      }
      case Dim::embedding:
        return embedding_;
      case Dim::choices:
        return static_cast<double>(sizes_.width);
      case Dim::sums:
        return static_cast<double>(sizes_.sums);
      case Dim::gateWeights:
        return static_cast<double>(sizes_.logits) * embedding_;
      case Dim::residualWeights: {
        const auto hidden = static_cast<double>(sizes_.residual);
        return 2 * embedding_ * hidden + hidden + embedding_;
      }
    }
    return 0;
  }
  double count(int index) const {
    return elements(table(index).shape, [this](Dim dim) { return size(dim); });
  }

  int ranksOf(GroupKind group) const {
    const Grid& grid = sizes_.grid;
    return group == GroupKind::world ? grid.ranks()
           : group == GroupKind::mp  ? grid.mp
           : group == GroupKind::ep  ? grid.ep
                                     : grid.esp;
  }

  // Calls of one name are one term: they are of different chunks.
  void exchange(const Phase& phase) {
    if (ranksOf(phase.group) == 1) return;
    for (Exchange& known : terms_.exchanges)
      if (std::string_view(known.name) == phase.name) {
        ++known.times;
        return;
      }
    double bytes = 0;
    for (std::size_t i = 0; i < phase.writes.size(); ++i)
      bytes += count(phase.reads[i]) * (table(phase.reads[i]).element == Element::layer
                                            ? static_cast<double>(sizes_.elementBytes)
                                            : kSumBytes);
    const Collective collective = carrier(schedule_, phase);
    // What all of a group get is sent to each of them.
    if (collective != phase.collective && phase.collective == Collective::allGather)
      bytes *= ranksOf(phase.group);
    terms_.exchanges.push_back({phase.name.c_str(), collective, phase.group, bytes});
  }

  // Tokens of a table of tokens, without padding.
  double tokensOf(const Table& table) const {
    return elements(table.shape, [this](Dim dim) -> double {
      if (dim == Dim::partTokens) return tokens_ / sizes_.grid.mp;
      if (dim == Dim::chunkTokens) return tokens_ / sizes_.grid.mp / schedule_.chunks;
      return dim == Dim::embedding || dim == Dim::choices ? 1.0 : size(dim);
    });
  }

  void compute(const Phase& phase) {
    const int read = phase.reads[0], written = phase.writes[0];
    switch (phase.kind) {
      case Kind::gate:
        work_.tokens += tokensOf(table(read));
        break;
      case Kind::experts:
        work_.rows += count(read) / embedding_;
        break;
      case Kind::regroup:
        moved_ += count(written);
        break;
      case Kind::permute:
        phase.backward ? gather(read, written) : scatter(written);
        break;
      case Kind::combine:
        phase.backward ? scatter(written) : gather(read, written);
        break;
      case Kind::residual:
        moved_ += count(read);
        branch_ += count(read) / embedding_ * static_cast<double>(sizes_.residual);
        break;
      default:
        break;
    }
  }
  void scatter(int rows) { moved_ += count(rows); }
  // Each token reads its choices; or each row is added to tokens that were cleared.
  void gather(int rows, int tokens) {
    const bool listed = std::ranges::count(table(rows).shape, Dim::keptRows) > 0;
    moved_ += listed ? count(rows) + count(tokens) : choices_ * count(tokens);
  }

  const Schedule& schedule_;
  const LayerSizes& sizes_;
  const double embedding_, choices_, tokens_;
  ScheduleTerms terms_;
  LocalWork work_{};
  double moved_ = 0, branch_ = 0;
};

}  // namespace

ScheduleTerms termsOf(moecclSchedule_t schedule, Pass pass, const LayerSizes& sizes) {
  const auto place = static_cast<std::size_t>(schedule);
  if (place == 0 || place > registry().size()) return {};
  Options options{.dropless = sizes.dropless, .residual = sizes.residual > 0};
  // Others than S1 are not cut.
  if (schedule == moecclScheduleS1)
    options.chunks = static_cast<int>(std::max<std::int64_t>(sizes.chunks, 1));
  try {
    return Terms(known(registry()[place - 1], pass, options), sizes).take();
  } catch (const NotOffered&) {
    return {};
  }
}

}  // namespace moeccl
