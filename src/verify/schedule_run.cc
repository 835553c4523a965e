// Runs a pass phase by phase on the tables of all ranks, checks the shapes that phases write, and
// carries out the exchanges. Phases of one rank are in schedule_local.cc and schedule_routes.cc.
#include "src/verify/schedule_run.h"

#include <algorithm>
#include <numeric>

#include "algorithms/schedules/kinds.h"

namespace moeccl::verification {
namespace {

using namespace schedules;

int product(const std::vector<int>& sizes) {
  return std::reduce(sizes.begin(), sizes.end(), 1, std::multiplies<>());
}

template <typename Function>
void eachIndex(const std::vector<int>& sizes, Function at) {
  std::vector<int> index(sizes.size());
  for (int left = product(sizes); left > 0; --left) {
    at(index);
    for (std::size_t i = sizes.size(); i-- > 0;) {
      if (++index[i] < sizes[i]) break;
      index[i] = 0;
    }
  }
}

Dim dimOf(GroupKind group) {
  return group == GroupKind::mp    ? Dim::mp
         : group == GroupKind::ep  ? Dim::ep
         : group == GroupKind::esp ? Dim::esp
                                   : Dim::ranks;
}

}  // namespace

ScheduleRun::ScheduleRun(const Schedule& schedule, const RoutedLayer& layer,
                         const ScheduleRun* kept)
    : schedule_(schedule),
      layer_(layer),
      numbers_(layer),
      kept_(kept),
      tables_(schedule.tables.size()),
      written_(schedule.tables.size()),
      shardGradients_(static_cast<std::size_t>(layer.grid.ranks()),
                      std::vector<Number>(static_cast<std::size_t>(layer.localExperts))) {
  const Grid& grid = layer.grid;
  for (int batch = 0; batch < grid.mpGroups(); ++batch)
    for (int token = 0; token < layer.tokens; ++token)
      identities_[numbers_.token(batch, token).value] =
          static_cast<std::uint64_t>(batch * layer.tokens + token) + 1;
}

void ScheduleRun::wrong(const std::string& what) const {
  if (now_ == nullptr) throw Wrong{what};
  const auto index = static_cast<int>(now_ - schedule_.phases.data());
  throw Wrong{"phase " + std::to_string(index) + " (" + describe(schedule_, index) + ") " + what};
}

int ScheduleRun::sizeOf(Dim dim) const {
  const Grid& grid = layer_.grid;
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
      return layer_.localExperts;
    case Dim::tokens:
      return layer_.tokens;
    case Dim::partTokens:
      return layer_.partTokens();
    case Dim::chunkTokens:
      return layer_.partTokens() / layer_.chunks;
    case Dim::batchChunkTokens:
      return layer_.groups * layer_.groupTokens / layer_.chunks;
    case Dim::capacity:
      return layer_.capacity();
    case Dim::slots:
      return layer_.slots();
    case Dim::chunkSlots:
      return layer_.slots() / layer_.chunks;
    case Dim::choices:
      return layer_.choices;
    default:
      return 1;
  }
}

int ScheduleRun::rowsOf(const Table& table) const {
  int rows = 1;
  for (const Dim dim : behindIndices(table.shape))
    rows *= boundLate(dim) || dim == Dim::keptRows ? 0 : sizeOf(dim);
  return rows;
}

std::vector<int> ScheduleRun::members(GroupKind group, int rank) const {
  const Grid& grid = layer_.grid;
  std::vector<int> ranks;
  if (group == GroupKind::mp)
    for (int i = 0; i < grid.mp; ++i) ranks.push_back(grid.mpRank(grid.mpGroupOf(rank), i));
  else if (group == GroupKind::ep)
    for (int i = 0; i < grid.ep; ++i) ranks.push_back(grid.rankOf(i, grid.shardOf(rank)));
  else if (group == GroupKind::esp)
    for (int i = 0; i < grid.esp; ++i) ranks.push_back(grid.rankOf(grid.positionOf(rank), i));
  else
    for (int i = 0; i < grid.ranks(); ++i) ranks.push_back(i);
  return ranks;
}

int ScheduleRun::indexIn(GroupKind group, int rank) const {
  const Grid& grid = layer_.grid;
  return group == GroupKind::mp    ? grid.mpIndexOf(rank)
         : group == GroupKind::ep  ? grid.positionOf(rank)
         : group == GroupKind::esp ? grid.shardOf(rank)
                                   : rank;
}

Data ScheduleRun::empty(const Table& table) const {
  Data data;
  for (const Dim dim : table.shape) {
    if (!isIndex(dim)) continue;
    data.dims.push_back(dim);
    data.sizes.push_back(sizeOf(dim));
  }
  data.runs.assign(static_cast<std::size_t>(product(data.sizes)),
                   std::vector<Number>(static_cast<std::size_t>(rowsOf(table))));
  return data;
}

const Data& ScheduleRun::read(const Phase& phase, std::size_t index, int rank) const {
  if (index >= phase.reads.size()) wrong("reads too few tables");
  return at(phase.reads[index], rank);
}

const Data& ScheduleRun::at(int index, int rank) const {
  const Table& it = table(index);
  if (!written_[static_cast<std::size_t>(index)])
    wrong("reads " + it.name + " before it is written");
  return tables_[static_cast<std::size_t>(index)][static_cast<std::size_t>(rank)];
}

const Data* ScheduleRun::find(const std::string& name, int chunk, int rank) const {
  for (std::size_t i = 0; i < schedule_.tables.size(); ++i)
    if (schedule_.tables[i].name == name && schedule_.tables[i].chunk == chunk && written_[i])
      return &tables_[i][static_cast<std::size_t>(rank)];
  return nullptr;
}

void ScheduleRun::write(const Phase& phase, std::size_t index, int rank, Data data) {
  if (index >= phase.writes.size()) wrong("writes too few tables");
  const int target = phase.writes[index];
  const Table& it = table(target);
  const Data shape = empty(it);
  if (data.dims != shape.dims || data.sizes != shape.sizes)
    wrong("does not make a table of the shape of " + it.name + ", " + describe(it.shape));
  const bool late = hasRuns(it) || has(it, Dim::keptRows);
  for (const std::vector<Number>& run : data.runs)
    if (!late && run.size() != shape.runs[0].size())
      wrong("makes " + std::to_string(run.size()) + " rows where " + it.name + " has " +
            std::to_string(shape.runs[0].size()));
  std::vector<Data>& all = tables_[static_cast<std::size_t>(target)];
  if (all.empty()) all.resize(static_cast<std::size_t>(layer_.grid.ranks()));
  Data& mine = all[static_cast<std::size_t>(rank)];
  if (!it.sum || mine.runs.empty()) {
    mine = std::move(data);
    return;
  }
  for (std::size_t run = 0; run < data.runs.size(); ++run) {
    if (mine.runs[run].size() != data.runs[run].size())
      wrong("adds more or fewer rows than " + it.name + " has");
    for (std::size_t i = 0; i < data.runs[run].size(); ++i) mine.runs[run][i] += data.runs[run][i];
  }
}

void ScheduleRun::checkReplicas(int index) const {
  const Table& it = table(index);
  for (const auto group : {GroupKind::mp, GroupKind::ep, GroupKind::esp}) {
    if (it.held.of(group) != State::replicated) continue;
    for (int rank = 0; rank < layer_.grid.ranks(); ++rank)
      if (at(index, rank) != at(index, members(group, rank)[0]))
        wrong("leaves rank " + std::to_string(rank) + " another " + it.name +
              " than others of its group, though it is said to be replicated there");
  }
}

void ScheduleRun::run(std::span<const int> order) {
  const int ranks = layer_.grid.ranks();
  for (std::size_t i = 0; i < schedule_.tables.size(); ++i) {
    const Table& it = schedule_.tables[i];
    if (it.role == Role::made) continue;
    written_[i] = true;
    for (int rank = 0; rank < ranks; ++rank) {
      Data data = empty(it);
      if (it.role == Role::given) {
        const int batch = layer_.grid.mpGroupOf(rank);
        for (int token = 0; token < layer_.tokens; ++token)
          data.runs[0][static_cast<std::size_t>(token)] =
              kept_ == nullptr ? numbers_.token(batch, token)
                               : numbers_.outputGradient(batch, token);
      } else if (it.role == Role::kept) {
        const Data* const was = kept_ == nullptr ? nullptr : kept_->find(it.name, it.chunk, rank);
        if (was == nullptr) wrong("the forward pass has no table " + it.name + " to keep");
        if (was->dims != data.dims || was->sizes != data.sizes)
          wrong("the forward pass's table " + it.name + " has another shape");
        data = *was;
      }
      tables_[i].push_back(std::move(data));
    }
  }
  for (const int index : order) {
    now_ = &schedule_.phases[static_cast<std::size_t>(index)];
    phase(*now_);
    for (const int table : now_->writes) written_[static_cast<std::size_t>(table)] = true;
    for (const int table : now_->writes) checkReplicas(table);
  }
  now_ = nullptr;
}

void ScheduleRun::phase(const Phase& it) {
  for (const int table : it.writes)
    if (written_[static_cast<std::size_t>(table)] && !this->table(table).sum)
      wrong("writes " + this->table(table).name + " again");
  if (it.kind == Kind::exchange) {
    for (std::size_t payload = 0; payload < it.writes.size(); ++payload) exchange(it, payload);
    return;
  }
  for (int rank = 0; rank < layer_.grid.ranks(); ++rank) switch (it.kind) {
      case Kind::split:
        split(it, rank);
        break;
      case Kind::join:
        join(it, rank);
        break;
      case Kind::gate:
        it.backward ? gateBackward(it, rank) : gate(it, rank);
        break;
      case Kind::route:
        route(it, rank);
        break;
      case Kind::permute:
        it.routed ? permuteRouted(it, rank) : permute(it, rank);
        break;
      case Kind::regroup:
        regroup(it, rank);
        break;
      case Kind::experts:
        experts(it, rank);
        break;
      case Kind::combine:
        if (it.routed)
          it.backward ? combineRoutedBackward(it, rank) : combineRouted(it, rank);
        else
          it.backward ? combineBackward(it, rank) : combine(it, rank);
        break;
      case Kind::residual:
        residual(it, rank);
        break;
      case Kind::add:
        add(it, rank);
        break;
      case Kind::exchange:
        break;
    }
}

void ScheduleRun::exchange(const Phase& it, std::size_t payload) {
  const Grid& grid = layer_.grid;
  const auto dims = [&](std::initializer_list<Dim> expected) {
    const Data& data = read(it, payload, 0);
    if (!std::ranges::equal(data.dims, expected))
      wrong("is given " + describe(table(it.reads[payload]).shape));
  };
  const bool ofGrid = needsGrid(it.collective);
  if (ofGrid != (it.group == GroupKind::world)) wrong("is of another group than its collective");
  if (it.collective == Collective::dispatch) dims({Dim::ep, Dim::localExperts});
  if (it.collective == Collective::splitDispatch) dims({Dim::ep, Dim::localExperts, Dim::mp});
  if (it.collective == Collective::combine || it.collective == Collective::combineAllGather)
    dims({Dim::localExperts, Dim::ranks});
  const auto add = [&](std::vector<Number>& sum, const std::vector<Number>& summand) {
    if (sum.empty()) sum.assign(summand.size(), {});
    if (sum.size() != summand.size()) wrong("adds up runs of different length");
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += summand[i];
  };
  std::vector<Data> made;
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    const std::vector<int> group = members(it.group, rank);
    const int me = indexIn(it.group, rank);
    const Data& own = read(it, payload, rank);
    Data data;
    const auto of = [&](std::size_t member) -> const Data& {
      return read(it, payload, group[member]);
    };
    const auto leads = [&] {
      if (own.dims.empty() || own.dims[0] != dimOf(it.group))
        wrong("is given no blocks for its group");
      return own.runs.size() / group.size();
    };
    const auto reshape = [&](std::vector<Dim> to) {
      data.dims = std::move(to);
      for (const Dim dim : data.dims) data.sizes.push_back(sizeOf(dim));
      data.runs.resize(static_cast<std::size_t>(product(data.sizes)));
    };
    switch (it.collective) {
      case Collective::allToAll: {
        const std::size_t block = leads();
        data = own;
        for (std::size_t j = 0; j < group.size(); ++j)
          for (std::size_t i = 0; i < block; ++i)
            data.runs[j * block + i] = of(j).runs[static_cast<std::size_t>(me) * block + i];
        break;
      }
      case Collective::allGather: {
        std::vector<Dim> to = own.dims;
        to.insert(to.begin(), dimOf(it.group));
        reshape(to);
        const std::size_t block = own.runs.size();
        for (std::size_t j = 0; j < group.size(); ++j)
          std::ranges::copy(of(j).runs, data.runs.begin() + static_cast<std::ptrdiff_t>(j * block));
        break;
      }
      case Collective::reduceScatter: {
        const std::size_t block = leads();
        reshape({own.dims.begin() + 1, own.dims.end()});
        for (std::size_t j = 0; j < group.size(); ++j)
          for (std::size_t i = 0; i < block; ++i)
            add(data.runs[i], of(j).runs[static_cast<std::size_t>(me) * block + i]);
        break;
      }
      case Collective::allReduce:
        data = own;
        for (std::vector<Number>& run : data.runs) run.clear();
        for (std::size_t j = 0; j < group.size(); ++j)
          for (std::size_t i = 0; i < data.runs.size(); ++i) add(data.runs[i], of(j).runs[i]);
        break;
      case Collective::dispatch:
        reshape({Dim::localExperts, Dim::ranks});
        eachIndex(data.sizes, [&](const std::vector<int>& to) {
          const Data& from = read(it, payload, to[1]);
          data.runs[flat(data.sizes, to)] =
              from.runs[flat(from.sizes, {grid.positionOf(rank), to[0]})];
        });
        break;
      case Collective::splitDispatch:
        reshape({Dim::localExperts, Dim::ranks});
        eachIndex(data.sizes, [&](const std::vector<int>& to) {
          const Data& from = read(it, payload, to[1]);
          data.runs[flat(data.sizes, to)] =
              from.runs[flat(from.sizes, {grid.positionOf(rank), to[0], grid.mpIndexOf(to[1])})];
        });
        break;
      case Collective::combine:
      case Collective::combineAllGather: {
        const bool gathers = it.collective == Collective::combineAllGather;
        reshape(gathers ? std::vector{Dim::ep, Dim::localExperts, Dim::mp}
                        : std::vector{Dim::ep, Dim::localExperts});
        eachIndex(data.sizes, [&](const std::vector<int>& to) {
          const int owner = gathers ? grid.mpRank(grid.mpGroupOf(rank), to[2]) : rank;
          for (int shard = 0; shard < grid.esp; ++shard) {
            const Data& from = read(it, payload, grid.rankOf(to[0], shard));
            add(data.runs[flat(data.sizes, to)], from.runs[flat(from.sizes, {to[1], owner})]);
          }
        });
        break;
      }
      default:
        wrong("is of a collective that schedules do not have");
    }
    made.push_back(std::move(data));
  }
  for (int rank = 0; rank < grid.ranks(); ++rank)
    write(it, payload, rank, std::move(made[static_cast<std::size_t>(rank)]));
}

}  // namespace moeccl::verification
