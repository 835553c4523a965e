// What token routing moves: rows of a rank's tokens to the ranks that hold the experts, by expert
// and by the rank that they come from, and back.
#include "src/verify/schedule_run.h"

namespace moeccl::verification {

using namespace schedules;

template <typename Function>
void ScheduleRun::eachChoice(const Data& routing, Function at) const {
  if (!routing.dims.empty()) wrong("routes tokens of several batches");
  const auto choices = static_cast<std::size_t>(layer_.choices);
  const std::vector<Number>& run = routing.runs[0];
  for (std::size_t i = 0; i + choices <= run.size(); i += choices) {
    if (run[i].value == 0) continue;
    const auto [batch, token] = tokenOf(run[i]);
    for (int c = 0; c < layer_.choices; ++c)
      if (const RoutedLayer::Choice& choice = layer_.choice(batch, token, c); choice.place >= 0)
        at(batch, token, c, i / choices, choice.expert);
  }
}

template <typename Function>
void ScheduleRun::eachArriving(const Phase& it, std::size_t routing, int rank, Function at) const {
  const int position = layer_.grid.positionOf(rank);
  for (int source = 0; source < layer_.grid.ranks(); ++source)
    eachChoice(read(it, routing, source),
               [&](int batch, int token, int c, std::size_t place, int expert) {
                 if (expert / layer_.localExperts == position)
                   at(source, batch, token, c, place, expert % layer_.localExperts);
               });
}

template <typename Function>
void ScheduleRun::eachReturning(const Phase& it, std::size_t rows, std::size_t routing, int rank,
                                Function at) const {
  std::vector<std::size_t> next(static_cast<std::size_t>(layer_.experts()));
  eachChoice(
      read(it, routing, rank), [&](int batch, int token, int c, std::size_t place, int expert) {
        const std::size_t row = next[static_cast<std::size_t>(expert)]++;
        const auto run =
            static_cast<std::size_t>(expert % layer_.localExperts * layer_.grid.ranks() + rank);
        Number sum;
        for (int shard = 0; shard < layer_.grid.esp; ++shard) {
          const int holder = layer_.grid.rankOf(expert / layer_.localExperts, shard);
          const Data& there = read(it, rows, holder);
          if (run >= there.runs.size() || row >= there.runs[run].size())
            wrong("is given too few rows");
          sum += there.runs[run][row];
        }
        at(batch, token, c, place, sum);
      });
}

void ScheduleRun::route(const Phase& it, int rank) {
  if (it.writes.empty()) wrong("writes no table");
  Data counts = empty(table(it.writes[0]));
  if (counts.dims != std::vector{Dim::localExperts, Dim::ranks})
    wrong("counts rows by something else");
  const auto ranks = static_cast<std::size_t>(layer_.grid.ranks());
  eachArriving(it, 0, rank, [&](int source, int, int, int, std::size_t, int expert) {
    counts.runs[static_cast<std::size_t>(expert) * ranks + static_cast<std::size_t>(source)][0] +=
        Number{1};
  });
  write(it, 0, rank, std::move(counts));
}

// Forward a row for each choice; backward their sum for each token.
void ScheduleRun::permuteRouted(const Phase& it, int rank) {
  if (it.writes.empty()) wrong("writes no table");
  Data data = empty(table(it.writes[0]));
  if (it.backward) {
    eachReturning(it, 0, 1, rank, [&](int, int, int, std::size_t place, Number sum) {
      if (place >= data.runs[0].size()) wrong("makes other tokens");
      data.runs[0][place] += sum;
    });
    return write(it, 0, rank, std::move(data));
  }
  const auto ranks = static_cast<std::size_t>(layer_.grid.ranks());
  eachArriving(it, 1, rank, [&](int source, int, int, int, std::size_t place, int expert) {
    const std::vector<Number>& tokens = read(it, 0, source).runs[0];
    if (place >= tokens.size()) wrong("is given other tokens");
    data.runs[static_cast<std::size_t>(expert) * ranks + static_cast<std::size_t>(source)]
        .push_back(tokens[place]);
  });
  write(it, 0, rank, std::move(data));
}

void ScheduleRun::combineRouted(const Phase& it, int rank) {
  if (it.writes.empty()) wrong("writes no table");
  Data data = empty(table(it.writes[0]));
  eachReturning(it, 0, 1, rank, [&](int batch, int token, int c, std::size_t place, Number sum) {
    if (place >= data.runs[0].size()) wrong("makes other tokens");
    data.runs[0][place] += numbers_.weight(batch, token, c) * sum;
  });
  write(it, 0, rank, std::move(data));
}

void ScheduleRun::combineRoutedBackward(const Phase& it, int rank) {
  if (it.writes.size() != 2) wrong("writes not two tables");
  Data rows = empty(table(it.writes[0]));
  const auto ranks = static_cast<std::size_t>(layer_.grid.ranks());
  eachArriving(
      it, 2, rank, [&](int source, int batch, int token, int c, std::size_t place, int expert) {
        const std::vector<Number>& gradients = read(it, 0, source).runs[0];
        if (place >= gradients.size()) wrong("is given other tokens");
        rows.runs[static_cast<std::size_t>(expert) * ranks + static_cast<std::size_t>(source)]
            .push_back(numbers_.weight(batch, token, c) * gradients[place]);
      });
  Data weights = empty(table(it.writes[1]));
  const std::vector<Number>& gradients = read(it, 0, rank).runs[0];
  eachReturning(it, 1, 2, rank, [&](int, int, int c, std::size_t place, Number sum) {
    const std::size_t weight =
        place * static_cast<std::size_t>(layer_.choices) + static_cast<std::size_t>(c);
    if (place >= gradients.size() || weight >= weights.runs[0].size())
      wrong("makes gradients of other weights");
    weights.runs[0][weight] = gradients[place] * sum;
  });
  write(it, 0, rank, std::move(rows));
  write(it, 1, rank, std::move(weights));
}

}  // namespace moeccl::verification
