// Builds schedules phase by phase, and says what has ended before each.
#include "algorithms/schedules/schedule.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "algorithms/schedules/kinds.h"

namespace moeccl::schedules {
namespace {

bool contains(const std::vector<int>& list, int value) {
  return std::ranges::find(list, value) != list.end();
}

Shape without(Shape shape, Dim dim) {
  std::erase(shape, dim);
  return shape;
}

Shape with(Dim dim, Shape shape) {
  shape.insert(shape.begin(), dim);
  return shape;
}

Dim dimOf(GroupKind group) {
  return group == GroupKind::mp    ? Dim::mp
         : group == GroupKind::ep  ? Dim::ep
         : group == GroupKind::esp ? Dim::esp
                                   : Dim::ranks;
}

// What an exchange makes of a table.
Table exchanged(Collective collective, GroupKind group, Table table) {
  Shape& shape = table.shape;
  // Ranks of an MP group may have different peers.
  if (group != GroupKind::mp) table.held.mp = State::split;
  switch (collective) {
    case Collective::allGather:
      shape = with(dimOf(group), shape);
      table.held.of(group) = State::replicated;
      break;
    case Collective::reduceScatter:
      shape = without(shape, dimOf(group));
      table.held.of(group) = State::split;
      break;
    case Collective::allReduce:
      table.held.of(group) = State::replicated;
      break;
    case Collective::dispatch:  // [ep][localExperts][slots] -> [localExperts][ranks][slots]
      shape = without(shape, Dim::ep);
      shape.insert(shape.begin() + 1, Dim::ranks);
      table.held.esp = State::replicated;
      break;
    case Collective::combine:
      shape = with(Dim::ep, without(shape, Dim::ranks));
      table.held.esp = State::split;
      break;
    case Collective::splitDispatch:  // [ep][localExperts][mp][slots] -> the same
      shape = without(without(shape, Dim::ep), Dim::mp);
      shape.insert(shape.begin() + 1, Dim::ranks);
      table.held.esp = State::replicated;
      break;
    case Collective::combineAllGather:
      shape = with(Dim::ep, without(shape, Dim::ranks));
      shape.insert(shape.begin() + 2, Dim::mp);
      table.held = {State::replicated, State::split, State::split};
      break;
    default:
      break;
  }
  return table;
}

// What has ended before a phase begins, phase by phase.
class Order {
 public:
  // The latest of those that the next phase has to wait for come first: they may wait for the
  // others.
  std::vector<int> dependencies(const Schedule& schedule, std::size_t next) const {
    const Phase& phase = schedule.phases[next];
    std::vector<bool> known = behind(phase.stream);
    std::vector<int> after;
    for (std::size_t other = next; other-- > 0;) {
      const bool needed = std::ranges::any_of(schedule.phases[other].writes, [&](int table) {
        return contains(phase.reads, table) || contains(phase.writes, table);
      });
      if (!needed || known[other]) continue;
      after.insert(after.begin(), static_cast<int>(other));
      include(known, other);
    }
    return after;
  }

  void append(const Phase& phase) {
    std::vector<bool> known = behind(phase.stream);
    for (const int other : phase.after)
      if (other >= 0 && static_cast<std::size_t>(other) < all_.size())
        include(known, static_cast<std::size_t>(other));
    all_.push_back(std::move(known));
    streams_.push_back(phase.stream);
  }

  std::vector<std::vector<bool>> all() const {
    std::vector<std::vector<bool>> all = all_;
    for (std::vector<bool>& row : all) row.resize(all_.size());
    return all;
  }

 private:
  std::vector<bool> behind(int stream) const {
    std::vector<bool> known(all_.size());
    for (std::size_t i = all_.size(); i-- > 0;)
      if (streams_[i] == stream) {
        include(known, i);
        break;
      }
    return known;
  }
  void include(std::vector<bool>& known, std::size_t other) const {
    known[other] = true;
    for (std::size_t i = 0; i < other; ++i)
      if (all_[other][i]) known[i] = true;
  }

  std::vector<std::vector<bool>> all_;  // phase i: of those before it
  std::vector<int> streams_;
};

}  // namespace

bool communicates(const Phase& phase) {
  return phase.kind == Kind::exchange || phase.kind == Kind::route || phase.routed;
}

Collective carrier(const Schedule& schedule, const Phase& exchange) {
  const Shape& shape = schedule.tables[static_cast<std::size_t>(exchange.reads[0])].shape;
  const bool even =
      std::ranges::none_of(shape, boundLate) || exchange.collective == Collective::allReduce;
  return even ? exchange.collective : Collective::allToAllv;
}

std::string nameOf(Collective collective, GroupKind group) {
  constexpr std::array<const char*, kGroupKinds> kGroups = {"", "MP-", "EP-", "ESP-"};
  const std::string of = kGroups[static_cast<std::size_t>(group)];
  switch (collective) {
    case Collective::allToAll:
      return of + "AlltoAll";
    case Collective::allToAllv:
      return of + "AlltoAllv";
    case Collective::allGather:
      return of + "AllGather";
    case Collective::reduceScatter:
      return of + "ReduceScatter";
    case Collective::allReduce:
      return of + "AllReduce";
    case Collective::splitDispatch:
      return "dispatch";
    case Collective::combineAllGather:
      return "SAA";
    default:
      return std::string(moeccl::nameOf(collective));
  }
}

Builder::Builder(std::string name, Pass pass) {
  schedule_.name = std::move(name);
  schedule_.pass = pass;
}

Builder::Builder(const Schedule& schedule) : schedule_(schedule) {
  schedule_.tables.clear();
  schedule_.phases.clear();
  schedule_.input = schedule_.output = -1;
}

Table& Builder::at(int table) {
  if (table < 0 || table >= static_cast<int>(schedule_.tables.size()))
    throw std::invalid_argument("the schedule " + schedule_.name + " has no table " +
                                std::to_string(table) + "; it has " +
                                std::to_string(schedule_.tables.size()) + " so far");
  return schedule_.tables[static_cast<std::size_t>(table)];
}

int Builder::table(Table table) {
  schedule_.tables.push_back(std::move(table));
  return static_cast<int>(schedule_.tables.size()) - 1;
}

int Builder::input(std::string name) {
  return schedule_.input = table({.name = std::move(name),
                                  .shape = {Dim::tokens, Dim::embedding},
                                  .held = {.mp = State::replicated},
                                  .role = Role::given});
}

int Builder::weights(std::string name, Shape shape) {
  return table({.name = std::move(name),
                .shape = std::move(shape),
                .held = {.mp = State::replicated},
                .role = Role::weights});
}

int Builder::kept(const Table& table) {
  for (std::size_t i = 0; i < schedule_.tables.size(); ++i)
    if (schedule_.tables[i].role == Role::kept && schedule_.tables[i].name == table.name &&
        schedule_.tables[i].chunk == table.chunk)
      return static_cast<int>(i);
  Table copy = table;
  copy.role = Role::kept;
  copy.sum = false;
  return this->table(std::move(copy));
}

int Builder::make(Phase phase, Table made) {
  const int index = table(std::move(made));
  phase.writes.push_back(index);
  add(std::move(phase));
  return index;
}

int Builder::exchange(Collective collective, GroupKind group, int table, std::string made,
                      std::string name) {
  Table result = exchanged(collective, group, at(table));
  result.name = std::move(made);
  result.role = Role::made;
  result.sum = false;
  return make({.kind = Kind::exchange,
               .name = name.empty() ? nameOf(collective, group) : std::move(name),
               .reads = {table},
               .collective = collective,
               .group = group},
              std::move(result));
}

int Builder::split(GroupKind group, int table, std::string made) {
  Table result = at(table);
  result.name = std::move(made);
  result.role = Role::made;
  result.held.of(group) = State::split;
  if (group == GroupKind::mp)
    std::ranges::replace(result.shape, Dim::tokens, Dim::partTokens);
  else
    result.shape = without(result.shape, dimOf(group));
  return make({.kind = Kind::split,
               .name = group == GroupKind::mp ? "MP-Split" : "ESP-Split",
               .reads = {table},
               .group = group},
              std::move(result));
}

int Builder::join(int table, std::string made) {
  return make({.kind = Kind::join,
               .name = "parts to their batch",
               .reads = {table},
               .group = GroupKind::mp},
              {.name = std::move(made),
               .shape = {Dim::tokens, Dim::embedding},
               .held = {.mp = State::replicated}});
}

Builder::Gated Builder::gate(int tokens, int weights) {
  Table routing = at(tokens);
  routing.name = "routing";
  routing.role = Role::made;
  routing.shape.back() = Dim::choices;
  Table sums = routing;
  sums.name = "sums";
  sums.shape = {Dim::sums};
  sums.held.esp = State::split;
  sums.element = Element::real64;
  const Gated gated{table(std::move(routing)), table(std::move(sums))};
  add({.kind = Kind::gate,
       .name = "gate",
       .reads = {tokens, weights},
       .writes = {gated.routing, gated.sums}});
  return gated;
}

int Builder::permute(int tokens, int routing, Shape rows, std::string made) {
  Table result = at(tokens);
  result.name = std::move(made);
  result.role = Role::made;
  result.shape = std::move(rows);
  return make({.kind = Kind::permute, .name = "permute", .reads = {tokens, routing}},
              std::move(result));
}

int Builder::regroup(int table, Shape shape, std::string made) {
  Table result = at(table);
  result.name = std::move(made);
  result.shape = std::move(shape);
  return make({.kind = Kind::regroup, .name = "regroup", .reads = {table}}, std::move(result));
}

int Builder::experts(int rows, std::string made) {
  Table result = at(rows);
  result.name = std::move(made);
  result.held.esp = State::partial;
  return make({.kind = Kind::experts, .name = "experts", .reads = {rows}}, std::move(result));
}

int Builder::combine(int rows, int routing, std::string made) {
  Table result = at(routing);
  result.name = std::move(made);
  result.role = Role::made;
  result.shape.back() = Dim::embedding;
  if (areSomeOf(at(rows), at(routing))) result.held.mp = State::partial;
  return make({.kind = Kind::combine, .name = "un-permute, weighted", .reads = {rows, routing}},
              std::move(result));
}

int Builder::route(int routing) {
  return make(
      {.kind = Kind::route, .name = "token routing", .reads = {routing}},
      {.name = "counts", .shape = {Dim::localExperts, Dim::ranks}, .element = Element::count64});
}

int Builder::dispatchRouted(int tokens, int routing, int counts, Dim rows, std::string made) {
  const int result =
      permute(tokens, routing, {Dim::localExperts, Dim::ranks, rows, Dim::embedding}, made);
  at(result).held = {State::split, State::split, State::replicated};
  last().name = "token dispatch";
  last().reads.push_back(counts);
  last().routed = true;
  return result;
}

int Builder::combineRouted(int rows, int routing, int counts, std::string made) {
  const int result = combine(rows, routing, std::move(made));
  at(result).held = at(routing).held;
  last().name = "token combine";
  last().reads.push_back(counts);
  last().routed = true;
  return result;
}

Schedule Builder::build() {
  schedule_.streams = 1;
  Order order;
  for (std::size_t i = 0; i < schedule_.phases.size(); ++i) {
    Phase& phase = schedule_.phases[i];
    for (const std::vector<int>* tables : {&phase.reads, &phase.writes})
      for (const int table : *tables) at(table);
    schedule_.streams = std::max(schedule_.streams, phase.stream + 1);
    phase.after = order.dependencies(schedule_, i);
    order.append(phase);
  }
  return std::move(schedule_);
}

std::vector<std::vector<bool>> earlier(const Schedule& schedule) {
  Order order;
  for (const Phase& phase : schedule.phases) order.append(phase);
  return order.all();
}

}  // namespace moeccl::schedules
