// What phases compute on one rank.
#include <algorithm>

#include "src/verify/schedule_run.h"

namespace moeccl::verification {
namespace {

using namespace schedules;

// The index of run `run`.
std::vector<int> indexOf(const std::vector<int>& sizes, std::size_t run) {
  std::vector<int> index(sizes.size());
  for (std::size_t i = sizes.size(); i-- > 0;) {
    index[i] = static_cast<int>(run) % sizes[i];
    run /= static_cast<std::size_t>(sizes[i]);
  }
  return index;
}

}  // namespace

int ScheduleRun::firstToken(const Table& it, int part) const {
  if (has(it.shape, Dim::batchChunkTokens)) return it.chunk * sizeOf(Dim::batchChunkTokens);
  return firstOf(it, Dim::partTokens, Dim::chunkTokens, layer_.partTokens(), part);
}

int ScheduleRun::firstOf(const Table& it, Dim whole, Dim chunk, int size, int part) const {
  if (has(it.shape, whole)) return part * size;
  if (has(it.shape, chunk)) return part * size + it.chunk * (size / layer_.chunks);
  return 0;
}

// A part or chunk of the batch, or, with a group's dimension, the caller's of several.
void ScheduleRun::split(const Phase& it, int rank) {
  const Data& from = read(it, 0, rank);
  if (it.writes.empty()) wrong("writes no table");
  const Table& target = table(it.writes[0]);
  Data data = empty(target);
  const int me = indexIn(it.group, rank);
  if (it.group == GroupKind::mp) {
    if (from.dims != data.dims || !has(table(it.reads[0]).shape, Dim::tokens))
      wrong("splits no batch");
    const int first = firstToken(target, me);
    for (std::size_t run = 0; run < data.runs.size(); ++run)
      for (std::size_t i = 0; i < data.runs[run].size(); ++i)
        if (const std::size_t at = static_cast<std::size_t>(first) + i; at < from.runs[run].size())
          data.runs[run][i] = from.runs[run][at];
    return write(it, 0, rank, std::move(data));
  }
  const Dim dim = it.group == GroupKind::ep ? Dim::ep : Dim::esp;
  const auto place = std::ranges::find(from.dims, dim) - from.dims.begin();
  if (place == std::ssize(from.dims) || it.group == GroupKind::world)
    wrong("splits a table without that group");
  std::vector<Dim> left = from.dims;
  left.erase(left.begin() + place);
  if (left != data.dims) wrong("leaves another shape");
  for (std::size_t run = 0; run < data.runs.size(); ++run) {
    std::vector<int> index = indexOf(data.sizes, run);
    index.insert(index.begin() + place, me);
    data.runs[run] = from.runs[flat(from.sizes, index)];
  }
  write(it, 0, rank, std::move(data));
}

void ScheduleRun::join(const Phase& it, int rank) {
  const Data& from = read(it, 0, rank);
  const Table& source = table(it.reads[0]);
  if (it.writes.empty()) wrong("writes no table");
  Data data = empty(table(it.writes[0]));
  const int me = indexIn(it.group, rank);
  if (it.group != GroupKind::mp) {
    const Dim dim = it.group == GroupKind::ep ? Dim::ep : Dim::esp;
    std::vector<Dim> dims = from.dims;
    dims.insert(dims.begin(), dim);
    if (data.dims != dims) wrong("joins tables of other shapes");
    for (std::size_t run = 0; run < from.runs.size(); ++run)
      data.runs[static_cast<std::size_t>(me) * from.runs.size() + run] = from.runs[run];
    return write(it, 0, rank, std::move(data));
  }
  const bool all = !from.dims.empty() && from.dims[0] == Dim::mp;
  if (from.dims.size() != (all ? 1u : 0u) || !data.dims.empty() ||
      !has(table(it.writes[0]).shape, Dim::tokens))
    wrong("joins tables of other shapes");
  for (std::size_t run = 0; run < from.runs.size(); ++run) {
    const int part = all ? static_cast<int>(run) : me;
    const int first = firstToken(source, part);
    for (std::size_t i = 0; i < from.runs[run].size(); ++i)
      if (const std::size_t at = static_cast<std::size_t>(first) + i; at < data.runs[0].size())
        data.runs[0][at] = from.runs[run][i];
  }
  write(it, 0, rank, std::move(data));
}

void ScheduleRun::gate(const Phase& it, int rank) {
  const Data& tokens = read(it, 0, rank);
  if (read(it, 1, rank).runs.empty() || table(it.reads[1]).role != Role::weights)
    wrong("has no weights");
  Data routing = tokens;
  const int shard = layer_.grid.shardOf(rank);
  Number sum;
  for (std::size_t run = 0; run < tokens.runs.size(); ++run)
    for (std::size_t i = 0; i < tokens.runs[run].size(); ++i) {
      const std::uint64_t token = tokens.runs[run][i].value;
      std::uint64_t& identity = routing.runs[run][i].value;
      identity = 0;
      if (token == 0) continue;
      const auto known = identities_.find(token);
      if (known == identities_.end()) wrong("gates what is no token");
      identity = known->second;
      // The group's other batches are gated, but summed up by others.
      const bool others = !tokens.dims.empty() && tokens.dims[0] == Dim::esp;
      if (!others || static_cast<int>(run) == shard) sum += Number{token};
    }
  if (it.writes.size() > 2) {
    Data counts = empty(table(it.writes[2]));
    const bool ofGroup = counts.dims == std::vector{Dim::ep, Dim::esp, Dim::localExperts};
    if (!ofGroup && counts.dims != std::vector{Dim::ep, Dim::localExperts})
      wrong("counts rows by something else");
    for (std::size_t run = 0; run < routing.runs.size(); ++run)
      for (const Number identity : routing.runs[run]) {
        if (identity.value == 0) continue;
        const auto [batch, token] = tokenOf(identity);
        for (int c = 0; c < layer_.choices; ++c) {
          const RoutedLayer::Choice& choice = layer_.choice(batch, token, c);
          if (choice.place < 0) continue;
          std::vector<int> index = {choice.expert / layer_.localExperts,
                                    choice.expert % layer_.localExperts};
          if (ofGroup) index.insert(index.begin() + 1, static_cast<int>(run));
          counts.runs[flat(counts.sizes, index)][0] += Number{1};
        }
      }
    write(it, 2, rank, std::move(counts));
  }
  Data expanded = empty(table(it.writes[0]));
  for (std::size_t run = 0; run < std::min(expanded.runs.size(), routing.runs.size()); ++run)
    for (std::size_t i = 0;
         i < std::min(expanded.runs[run].size(),
                      routing.runs[run].size() * static_cast<std::size_t>(layer_.choices));
         ++i)
      expanded.runs[run][i] = routing.runs[run][i / static_cast<std::size_t>(layer_.choices)];
  write(it, 0, rank, std::move(expanded));
  Data sums = empty(table(it.writes[1]));
  sums.runs[0][0] = sum;
  write(it, 1, rank, std::move(sums));
}

void ScheduleRun::gateBackward(const Phase& it, int rank) {
  const Data& gradients = read(it, 0, rank);
  const Data& routing = read(it, 1, rank);
  if (read(it, 2, rank).runs.empty() || table(it.reads[2]).role != Role::weights)
    wrong("has no weights");
  if (gradients.dims != routing.dims) wrong("is given gradients of another routing");
  Data tokens = empty(table(it.writes[0]));
  Data gate = empty(table(it.writes.back()));
  if (tokens.dims != routing.dims) wrong("makes gradients of other tokens");
  const auto choices = static_cast<std::size_t>(layer_.choices);
  Number ofGate;
  for (std::size_t run = 0; run < routing.runs.size(); ++run)
    for (std::size_t at = 0; at < routing.runs[run].size(); at += choices) {
      const Number identity = routing.runs[run][at];
      if (identity.value == 0) continue;
      if (at / choices >= tokens.runs[run].size() || at >= gradients.runs[run].size())
        wrong("has more tokens than gradients");
      const auto [batch, token] = tokenOf(identity);
      Number& ofToken = tokens.runs[run][at / choices];
      if (layer_.gateGradients) {
        ofToken += numbers_.lossByToken(batch, token);
        ofGate += numbers_.lossByGate(batch, token);
      }
      for (int c = 0; c < layer_.choices; ++c) {
        const Number ofWeight = gradients.runs[run][at + static_cast<std::size_t>(c)];
        if (layer_.gateGradients) ofToken += ofWeight * numbers_.weightByToken(batch, token, c);
        ofGate += ofWeight * numbers_.weightByGate(batch, token, c);
      }
    }
  gate.runs[0].assign(1, ofGate);
  write(it, 0, rank, std::move(tokens));
  write(it, it.writes.size() - 1, rank, std::move(gate));
}

template <typename Function>
void ScheduleRun::eachKept(const Table& rows, const Data& routing, int rank, Function at) const {
  const Data shape = empty(rows);
  const bool late = hasRuns(rows);
  const bool listed = has(rows.shape, Dim::keptRows);
  const auto choices = static_cast<std::size_t>(layer_.choices);
  const bool ofGroup = !routing.dims.empty() && routing.dims[0] == Dim::esp;
  if (ofGroup != has(rows.shape, Dim::esp)) wrong("has a routing of other batches than its rows");
  const int me = layer_.grid.mpIndexOf(rank);
  const int slots = layer_.slots();
  const int first = firstOf(rows, Dim::slots, Dim::chunkSlots, slots, me);
  const int size = has(rows.shape, Dim::capacity) ? layer_.capacity()
                   : has(rows.shape, Dim::slots)  ? slots
                                                  : slots / layer_.chunks;
  std::vector<std::size_t> next(shape.runs.size());
  for (std::size_t run = 0; run < routing.runs.size(); ++run)
    for (std::size_t i = 0; i < routing.runs[run].size(); i += choices) {
      const Number identity = routing.runs[run][i];
      if (identity.value == 0) continue;
      const auto [batch, token] = tokenOf(identity);
      for (int c = 0; c < layer_.choices; ++c) {
        const RoutedLayer::Choice& choice = layer_.choice(batch, token, c);
        if (choice.place < 0) continue;
        const int position = choice.expert / layer_.localExperts;
        if (listed && position != layer_.grid.positionOf(rank)) continue;
        std::vector<int> index;
        int place = choice.place;
        for (const Dim dim : shape.dims) switch (dim) {
            case Dim::ep:
              index.push_back(position);
              break;
            case Dim::localExperts:
              index.push_back(choice.expert % layer_.localExperts);
              break;
            case Dim::esp:
              index.push_back(static_cast<int>(run));
              break;
            case Dim::mp:  // all of a batch's places, by who takes them
              index.push_back(place / slots);
              place = place % slots + first;
              break;
            default:
              wrong("has rows of another shape");
          }
        for (std::size_t j = 0; j < index.size(); ++j)
          if (index[j] >= shape.sizes[j]) wrong("has rows of another shape");
        const std::size_t target = flat(shape.sizes, index);
        if (late || listed) {
          at(batch, token, c, i / choices, run, target, next[target]++);
          continue;
        }
        if (place < first || place >= first + size)
          wrong("has a choice whose place is not among its rows");
        at(batch, token, c, i / choices, run, target, static_cast<std::size_t>(place - first));
      }
    }
}

void ScheduleRun::permute(const Phase& it, int rank) {
  const Data& from = read(it, 0, rank);
  const Data& routing = read(it, 1, rank);
  if (it.writes.empty()) wrong("writes no table");
  Data data = empty(table(it.writes[0]));
  const Table& rows = table(it.backward ? it.reads[0] : it.writes[0]);
  eachKept(
      rows, routing, rank,
      [&](int, int, int, std::size_t token, std::size_t run, std::size_t target, std::size_t row) {
        if (it.backward) {
          if (run >= data.runs.size() || token >= data.runs[run].size())
            wrong("makes other tokens");
          if (target >= from.runs.size() || row >= from.runs[target].size())
            wrong("is given too few rows");
          data.runs[run][token] += from.runs[target][row];
          return;
        }
        if (run >= from.runs.size() || token >= from.runs[run].size())
          wrong("is given other tokens");
        std::vector<Number>& into = data.runs[target];
        if (row >= into.size()) into.resize(row + 1);
        if (into[row] != Number{}) wrong("puts two tokens in one place");
        into[row] = from.runs[run][token];
      });
  write(it, 0, rank, std::move(data));
}

void ScheduleRun::combine(const Phase& it, int rank) {
  const Data& rows = read(it, 0, rank);
  const Data& routing = read(it, 1, rank);
  if (it.writes.empty()) wrong("writes no table");
  Data data = empty(table(it.writes[0]));
  eachKept(table(it.reads[0]), routing, rank,
           [&](int batch, int token, int c, std::size_t place, std::size_t run, std::size_t target,
               std::size_t row) {
             if (run >= data.runs.size() || place >= data.runs[run].size())
               wrong("makes other tokens");
             if (target >= rows.runs.size() || row >= rows.runs[target].size())
               wrong("is given too few rows");
             data.runs[run][place] += numbers_.weight(batch, token, c) * rows.runs[target][row];
           });
  write(it, 0, rank, std::move(data));
}

void ScheduleRun::combineBackward(const Phase& it, int rank) {
  const Data& gradients = read(it, 0, rank);
  const Data& results = read(it, 1, rank);
  const Data& routing = read(it, 2, rank);
  if (it.writes.size() != 2) wrong("writes not two tables");
  Data rows = results;  // as many
  for (std::vector<Number>& run : rows.runs) run.assign(run.size(), {});
  Data weights = empty(table(it.writes[1]));
  eachKept(table(it.reads[1]), routing, rank,
           [&](int batch, int token, int c, std::size_t place, std::size_t run, std::size_t target,
               std::size_t row) {
             if (run >= gradients.runs.size() || place >= gradients.runs[run].size())
               wrong("is given other tokens");
             if (target >= rows.runs.size() || row >= rows.runs[target].size())
               wrong("is given too few rows");
             const std::size_t weight =
                 place * static_cast<std::size_t>(layer_.choices) + static_cast<std::size_t>(c);
             if (run >= weights.runs.size() || weight >= weights.runs[run].size())
               wrong("makes gradients of other weights");
             const Number gradient = gradients.runs[run][place];
             rows.runs[target][row] = numbers_.weight(batch, token, c) * gradient;
             weights.runs[run][weight] = gradient * results.runs[target][row];
           });
  write(it, 0, rank, std::move(rows));
  write(it, 1, rank, std::move(weights));
}

void ScheduleRun::regroup(const Phase& it, int rank) {
  const Data& from = read(it, 0, rank);
  if (it.writes.empty()) wrong("writes no table");
  Data data = empty(table(it.writes[0]));
  std::vector<Dim> one = from.dims, other = data.dims;
  std::ranges::sort(one);
  std::ranges::sort(other);
  if (one != other || std::ranges::adjacent_find(one) != one.end()) wrong("makes another shape");
  for (std::size_t run = 0; run < from.runs.size(); ++run) {
    const std::vector<int> index = indexOf(from.sizes, run);
    std::vector<int> to;
    for (const Dim dim : data.dims)
      to.push_back(
          index[static_cast<std::size_t>(std::ranges::find(from.dims, dim) - from.dims.begin())]);
    data.runs[flat(data.sizes, to)] = from.runs[run];
  }
  write(it, 0, rank, std::move(data));
}

void ScheduleRun::experts(const Phase& it, int rank) {
  const Data& from = read(it, 0, rank);
  const Grid& grid = layer_.grid;
  const int shard = grid.shardOf(rank);
  if (from.dims.empty() || from.dims[0] != Dim::localExperts)
    wrong("is given no rows of its own experts");
  const Data* const given = it.backward ? &read(it, 1, rank) : nullptr;
  if (given != nullptr && given->dims != from.dims) wrong("has kept other rows");
  // Without capacity, as many rows as were announced.
  const Table& last = table(it.reads.back());
  if (hasRuns(table(it.reads[0]))) {
    if (last.element != Element::count64) wrong("has rows that no counts bind");
    const Data& counts = read(it, it.reads.size() - 1, rank);
    std::vector<Dim> one = from.dims, other = counts.dims;
    std::ranges::sort(one);
    std::ranges::sort(other);
    if (one != other) wrong("has counts of something else");
    for (std::size_t run = 0; run < from.runs.size(); ++run) {
      const std::vector<int> index = indexOf(from.sizes, run);
      std::vector<int> at;
      for (const Dim dim : counts.dims)
        at.push_back(
            index[static_cast<std::size_t>(std::ranges::find(from.dims, dim) - from.dims.begin())]);
      if (counts.runs[flat(counts.sizes, at)][0].value != from.runs[run].size())
        wrong("is given other numbers of rows than were announced");
    }
  }
  Data data = from;
  for (std::size_t run = 0; run < from.runs.size(); ++run) {
    const std::vector<int> index = indexOf(from.sizes, run);
    const int expert = grid.positionOf(rank) * layer_.localExperts + index[0];
    const Number factor = numbers_.shard(expert, shard);
    for (Number& row : data.runs[run]) row = row * factor;
    if (given == nullptr) continue;
    int position = 0, of = 0, source = 0;
    for (std::size_t i = 0; i < from.dims.size(); ++i) {
      if (from.dims[i] == Dim::ep) position = index[i];
      if (from.dims[i] == Dim::esp) of = index[i];
      if (from.dims[i] == Dim::ranks) source = index[i];
    }
    if (source == 0) source = grid.rankOf(position, of);
    if (it.copies && grid.mpIndexOf(source) != 0) continue;
    if (given->runs[run].size() != from.runs[run].size()) wrong("has kept other rows");
    Number& gradient =
        shardGradients_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(index[0])];
    for (std::size_t i = 0; i < from.runs[run].size(); ++i)
      gradient += from.runs[run][i] * given->runs[run][i];
  }
  write(it, 0, rank, std::move(data));
}

void ScheduleRun::residual(const Phase& it, int rank) {
  const Data& from = read(it, 0, rank);
  const Table& weights = table(it.reads.back());
  if (weights.role != Role::weights || it.reads.size() != (it.backward ? 3u : 2u))
    wrong("has no weights");
  Data data = from;
  for (std::vector<Number>& run : data.runs)
    for (Number& row : run) row = row * numbers_.residual();
  write(it, 0, rank, std::move(data));
  if (!it.backward) return;
  const Data& tokens = read(it, 1, rank);
  if (tokens.dims != from.dims) wrong("has kept other tokens");
  Data gradient = empty(table(it.writes.back()));
  gradient.runs[0].assign(1, {});
  for (std::size_t run = 0; run < from.runs.size(); ++run) {
    if (tokens.runs[run].size() != from.runs[run].size()) wrong("has kept other tokens");
    for (std::size_t i = 0; i < from.runs[run].size(); ++i)
      gradient.runs[0][0] += from.runs[run][i] * tokens.runs[run][i];
  }
  write(it, it.writes.size() - 1, rank, std::move(gradient));
}

// The whole, or what of a part is the target's chunk.
void ScheduleRun::add(const Phase& it, int rank) {
  const Data& from = read(it, 0, rank);
  if (it.writes.empty() || !table(it.writes[0]).sum) wrong("adds to no sum");
  const Table& target = table(it.writes[0]);
  Data data = empty(target);
  if (data.dims != from.dims) wrong("adds another shape");
  const int first = has(target.shape, Dim::chunkTokens)
                        ? target.chunk * (layer_.partTokens() / layer_.chunks)
                        : 0;
  for (std::size_t run = 0; run < data.runs.size(); ++run)
    for (std::size_t i = 0; i < data.runs[run].size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(first) + i;
      if (at >= from.runs[run].size()) wrong("adds another shape");
      data.runs[run][i] = from.runs[run][at];
    }
  write(it, 0, rank, std::move(data));
}

}  // namespace moeccl::verification
