// Makes the backward pass of a forward one: each phase's transpose, in the reverse order.
#include <algorithm>

#include "algorithms/schedules/kinds.h"
#include "algorithms/schedules/transformations.h"

namespace moeccl::schedules {
namespace {

// How the gradient of what is held so is held. See Schedule mirrored().
Held dual(Held held) {
  if (held.esp != State::split)
    held.esp = held.esp == State::partial ? State::replicated : State::partial;
  return held;
}

class Mirror {
 public:
  explicit Mirror(const Schedule& forward)
      : forward_(forward),
        made_(forward),
        gradients_(forward.tables.size(), -1),
        done_(forward.phases.size()) {
    made_.schedule().pass = Pass::backward;
    of(forward.output) = made_.input("gradient of output");
    for (std::size_t i = forward.phases.size(); i-- > 0;)
      if (!done_[i] && hasGradient(forward.phases[i])) mirror(forward.phases[i]);
    makeWhole(forward.input, reduced_);
    for (std::size_t i = 0; i < forward.tables.size(); ++i)
      if (forward.tables[i].role == Role::weights && gradients_[i] >= 0)
        makeWhole(static_cast<int>(i),
                  "MP-AllReduce of the " + forward.tables[i].name + "'s gradient");
    made_.output(of(forward.input));
  }

  Schedule build() { return made_.build(); }

 private:
  const Table& table(int index) const { return forward_.tables[static_cast<std::size_t>(index)]; }
  int& of(int index) { return gradients_[static_cast<std::size_t>(index)]; }
  int kept(int index) { return made_.kept(table(index)); }
  bool hasGradient(const Phase& phase) const {
    return std::ranges::any_of(phase.writes, [&](int written) {
      return gradients_[static_cast<std::size_t>(written)] >= 0;
    });
  }

  Table gradientOf(int index) const {
    Table made = table(index);
    made.name = "gradient of " + made.name;
    made.role = Role::made;
    made.sum = false;
    made.held = dual(made.held);
    return made;
  }

  // Lets the phase write, or add to, the gradient of a table.
  void contribute(Phase& phase, int index, Held held) {
    int& gradient = of(index);
    if (gradient < 0) {
      Table made = gradientOf(index);
      made.held = held;
      gradient = made_.table(std::move(made));
    } else {
      made_.at(gradient).sum = true;
    }
    phase.writes.push_back(gradient);
  }

  // The same phase backward, of the gradient of what forward made, and what it read forward.
  Phase backward(const Phase& phase, int gradient) const {
    const bool dispatches = phase.kind == Kind::permute;
    return {.kind = phase.kind,
            .name = !phase.routed ? phase.name
                    : dispatches  ? "token combine"
                                  : "token dispatch",
            .reads = {gradient},
            .backward = true,
            .routed = phase.routed,
            .oneByOne = phase.oneByOne,
            .copies = phase.copies};
  }

  // The phase that made a table, which is mirrored with whoever reads it.
  const Phase& maker(int index) {
    for (std::size_t i = 0; i < forward_.phases.size(); ++i)
      if (std::ranges::count(forward_.phases[i].writes, index) > 0) {
        done_[i] = true;
        return forward_.phases[i];
      }
    throw NotOffered("schedule " + forward_.name + " cannot be mirrored: nobody makes table " +
                     table(index).name);
  }

  void mirror(const Phase& phase) {
    switch (phase.kind) {
      case Kind::exchange:
        return exchange(phase);
      case Kind::split:
        return split(phase);
      case Kind::join:
        return join(phase);
      case Kind::regroup: {
        const Table target = gradientOf(phase.reads[0]);
        of(phase.reads[0]) = made_.regroup(of(phase.writes[0]), target.shape, target.name);
        made_.at(of(phase.reads[0])).held = target.held;
        return;
      }
      case Kind::route:
        return;  // it has no gradient
      case Kind::add:
        of(phase.reads[0]) = of(phase.writes[0]);
        return;
      case Kind::gate:
        addSummands(phase);
        return transpose(phase);
      default:
        return transpose(phase);
    }
  }

  // The phase of the same kind backward.
  void transpose(const Phase& phase) {
    const Signature& signature = signatureOf(phase.kind);
    Phase back = backward(phase, of(phase.writes[0]));
    for (const Signature::Operand& it : signature.kept) {
      const int needed = (it.written ? phase.writes : phase.reads)[it.index];
      back.reads.push_back(table(needed).role == Role::weights ? weights(needed) : kept(needed));
    }
    for (const std::size_t read : signature.gradients)
      contribute(back, phase.reads[read], heldBackward(phase, read));
    if (const int last = phase.reads.back(); holdsOf(table(last)) == Holds::counts)
      back.reads.push_back(kept(last));
    made_.add(std::move(back));
  }

  // What ranks hold of the gradient of a read.
  Held heldBackward(const Phase& phase, std::size_t read) const {
    const Table& it = table(phase.reads[read]);
    if (it.role == Role::weights) {
      // Gradients of weights that were applied to those tokens.
      const bool part = has(table(phase.reads[0]), Dim::partTokens);
      return {.mp = part ? State::partial : State::replicated};
    }
    Held held = dual(it.held);
    if (phase.routed || holdsOf(it) == Holds::rows) return held;
    // What comes back of some of the rows is a summand.
    for (const int other : {phase.reads[0], phase.writes[0]})
      if (holdsOf(table(other)) == Holds::rows && areSomeOf(table(other), it))
        held.mp = State::partial;
    return held;
  }

  int weights(int index) {
    for (std::size_t i = 0; i < made_.schedule().tables.size(); ++i)
      if (made_.schedule().tables[i].role == Role::weights &&
          made_.schedule().tables[i].name == table(index).name)
        return static_cast<int>(i);
    return made_.weights(table(index).name, table(index).shape);
  }

  void exchange(const Phase& phase) {
    const int from = phase.writes[0], to = phase.reads[0];
    const Table target = gradientOf(to);
    const auto send = [&](Collective collective) {
      of(to) = made_.exchange(collective, phase.group, of(from), target.name);
      made_.at(of(to)).held = target.held;
    };
    switch (phase.collective) {
      case Collective::allGather:
        if (made_.at(of(from)).held.of(phase.group) == State::partial)
          return send(Collective::reduceScatter);
        of(to) = made_.split(phase.group, of(from), target.name);
        return;
      case Collective::allReduce:
        // A summand's gradient is the sum's.
        of(to) = of(from);
        reduced_ = phase.name;
        return;
      case Collective::reduceScatter:
        return send(Collective::allGather);
      case Collective::dispatch:
        return send(Collective::combine);
      case Collective::combine:
        return send(Collective::dispatch);
      case Collective::splitDispatch:
        return send(Collective::combineAllGather);
      case Collective::combineAllGather:
        return send(Collective::splitDispatch);
      default:
        return send(phase.collective);
    }
  }

  void split(const Phase& phase) {
    const int from = phase.writes[0], to = phase.reads[0];
    if (phase.group == GroupKind::mp) {
      const int gathered = made_.exchange(Collective::allGather, GroupKind::mp, of(from),
                                          "all of " + made_.at(of(from)).name);
      Phase joined{.kind = Kind::join,
                   .name = "parts to their batch",
                   .reads = {gathered},
                   .group = GroupKind::mp};
      contribute(joined, to, table(to).held);
      return made_.add(std::move(joined));
    }
    if (holdsOf(table(to)) == Holds::routing) {
      Phase joined{.kind = Kind::join,
                   .name = "own part among zeros",
                   .reads = {of(from)},
                   .group = phase.group};
      contribute(joined, to, dual(table(to).held));
      return made_.add(std::move(joined));
    }
    const Phase& sum = maker(to);
    if (sum.kind != Kind::exchange || sum.collective != Collective::allReduce ||
        sum.group != phase.group)
      throw NotOffered("schedule " + forward_.name + " cannot be mirrored: it splits " +
                       table(to).name + ", which is no sum of an all-reduce");
    const int summands = sum.reads[0];
    const int all = made_.exchange(Collective::allGather, phase.group, of(from),
                                   "all of " + made_.at(of(from)).name);
    const Table target = gradientOf(summands);
    of(summands) = made_.regroup(all, target.shape, target.name);
    made_.at(of(summands)).held = target.held;
  }

  void join(const Phase& phase) {
    int own = phase.reads[0];
    if (table(own).shape.front() == Dim::mp) own = maker(own).reads[0];
    of(own) = made_.split(GroupKind::mp, of(phase.writes[0]), gradientOf(own).name);
  }

  // A gate adds a gradient of its own, once, to what is whole.
  void addSummands(const Phase& gate) {
    if (made_.at(of(gate.writes[0])).held.mp != State::partial) return;
    Phase whole{.kind = Kind::exchange,
                .name = reduced_,
                .collective = Collective::allReduce,
                .group = GroupKind::mp};
    for (const int index : {gate.reads[0], gate.writes[0]}) {
      if (of(index) < 0) continue;
      Table sum = made_.at(of(index));
      made_.at(of(index)).name = "partial " + sum.name;
      sum.held.mp = State::replicated;
      sum.sum = false;
      whole.reads.push_back(of(index));
      whole.writes.push_back(of(index) = made_.table(std::move(sum)));
    }
    made_.add(std::move(whole));
  }

  // Adds the summands of the ranks of an MP group, where its gradient is such.
  void makeWhole(int index, const std::string& name) {
    if (of(index) < 0 || made_.at(of(index)).held.mp != State::partial) return;
    const std::string made = made_.at(of(index)).name;
    made_.at(of(index)).name = "partial " + made;
    of(index) = made_.exchange(Collective::allReduce, GroupKind::mp, of(index), made, name);
  }

  const Schedule& forward_;
  Builder made_;
  std::vector<int> gradients_;            // by the forward pass's table
  std::vector<bool> done_;                // by its phase
  std::string reduced_ = "MP-AllReduce";  // as the forward pass calls its own
};

}  // namespace

Schedule mirrored(const Schedule& forward) { return Mirror(forward).build(); }

}  // namespace moeccl::schedules
