// Whether each phase has as many tables as its kind, of shapes that belong together.
#include <algorithm>

#include "src/verify/schedule.h"

namespace moeccl {
namespace {

using namespace schedules;

bool isIndex(Dim dim) {
  return dim == Dim::mp || dim == Dim::ep || dim == Dim::esp || dim == Dim::ranks ||
         dim == Dim::localExperts;
}
bool isRows(Dim dim) {
  return dim == Dim::capacity || dim == Dim::slots || dim == Dim::chunkSlots || boundLate(dim) ||
         dim == Dim::keptRows;
}

// Counts, and rows, of the rank's own experts.
const Shape kByRank = {Dim::localExperts, Dim::ranks};

// What is behind the indices.
Shape inner(const Shape& shape) {
  Shape dims;
  for (const Dim dim : shape)
    if (!isIndex(dim)) dims.push_back(dim);
  return dims;
}

Shape ofBatch(Shape shape) {
  std::ranges::replace_if(shape, isTokens, Dim::tokens);
  return shape;
}

Shape ending(Shape shape, Dim last) {
  if (!shape.empty()) shape.back() = last;
  return shape;
}

class ScheduleShapeCheck {
 public:
  ScheduleShapeCheck(const Schedule& schedule, const Phase& phase)
      : schedule_(schedule), phase_(phase) {}

  bool right() {
    std::size_t reads = phase_.reads.size();
    if (!bound()) return false;
    if (late_) --reads;
    const bool back = phase_.backward;
    const auto are = [&](std::size_t read, std::size_t written) {
      return reads == read && phase_.writes.size() == written;
    };
    switch (phase_.kind) {
      case Kind::exchange:
        if (back || reads != phase_.writes.size()) return false;
        for (std::size_t i = 0; i < reads; ++i)
          if (inner(in(i).shape) != inner(out(i).shape) || in(i).element != out(i).element)
            return false;
        return true;
      case Kind::regroup:
        return !back && are(1, 1) && sameInner() && in(0).element == out(0).element;
      case Kind::split:
      case Kind::join:
        return !back && are(1, 1) && in(0).element == Element::layer &&
               out(0).element == Element::layer &&
               (phase_.group == GroupKind::mp
                    ? ofBatch(inner(in(0).shape)) == ofBatch(inner(out(0).shape))
                    : sameInner());
      case Kind::add:
        return !back && are(1, 1) && tokens(in(0)) && tokens(out(0)) &&
               ofBatch(in(0).shape) == ofBatch(out(0).shape);
      case Kind::experts:
        return are(back ? 2 : 1, 1) && rows(in(0)) && like(out(0), in(0).shape) &&
               (!back || like(in(1), in(0).shape));
      case Kind::residual:
        return are(back ? 3 : 2, back ? 2 : 1) && tokens(in(0)) && like(out(0), in(0).shape) &&
               like(in(reads - 1), {Dim::residualWeights}) &&
               (!back || (like(in(1), in(0).shape) && like(out(1), {Dim::residualWeights})));
      case Kind::gate:
        return gate();
      case Kind::route:
        return !back && are(1, 1) && ownRouting(in(0)) && out(0).element == Element::count64 &&
               out(0).shape == kByRank;
      case Kind::permute:
        if (!are(2, 1) || !routing(in(1)) || !way(back ? in(0) : out(0), in(1))) return false;
        return back ? rows(in(0)) && like(out(0), ending(in(1).shape, Dim::embedding))
                    : rows(out(0)) && like(in(0), ending(in(1).shape, Dim::embedding));
      case Kind::combine:
        if (!back)
          return are(2, 1) && rows(in(0)) && routing(in(1)) && way(in(0), in(1)) &&
                 like(out(0), ending(in(1).shape, Dim::embedding));
        return are(3, 2) && rows(in(1)) && routing(in(2)) && way(in(1), in(2)) &&
               like(in(0), ending(in(2).shape, Dim::embedding)) && like(out(0), in(1).shape) &&
               like(out(1), in(2).shape);
    }
    return false;
  }

 private:
  const Table& at(int index) const { return schedule_.tables[static_cast<std::size_t>(index)]; }
  const Table& in(std::size_t i) const { return at(phase_.reads[i]); }
  const Table& out(std::size_t i) const { return at(phase_.writes[i]); }
  bool sameInner() const { return inner(in(0).shape) == inner(out(0).shape); }

  static bool like(const Table& table, const Shape& shape) {
    return table.shape == shape && table.element == Element::layer;
  }
  static bool endsIn(const Table& table, bool (*first)(Dim), Dim last) {
    const Shape dims = inner(table.shape);
    return table.element == Element::layer && dims.size() == 2 && first(dims[0]) && dims[1] == last;
  }
  static bool tokens(const Table& table) { return endsIn(table, isTokens, Dim::embedding); }
  static bool routing(const Table& table) { return endsIn(table, isTokens, Dim::choices); }
  static bool rows(const Table& table) { return endsIn(table, isRows, Dim::embedding); }

  static bool ownRouting(const Table& table) { return routing(table) && table.shape.size() == 2; }
  // Routed rows are those of the rank's own experts; other rows are of its own tokens, or of its
  // group's, for all experts.
  bool way(const Table& rows, const Table& routing) const {
    if (!phase_.routed) return std::ranges::count(rows.shape, Dim::ranks) == 0;
    Shape shape = kByRank;
    shape.insert(shape.end(), rows.shape.end() - 2, rows.shape.end());
    return ownRouting(routing) && late_ && rows.shape == shape;
  }

  // Rows that are bound late are bound by counts, which are read last.
  bool bound() {
    const auto isLate = [&](int table) { return std::ranges::any_of(at(table).shape, boundLate); };
    late_ = std::ranges::any_of(phase_.reads, isLate) || std::ranges::any_of(phase_.writes, isLate);
    const Table& last = at(phase_.reads.back());
    return !late_ || (phase_.reads.size() > 1 && last.element == Element::count64 &&
                      inner(last.shape).empty() &&
                      (last.shape == kByRank ||
                       (std::ranges::count(last.shape, Dim::esp) == 1 && last.shape.size() == 3)));
  }

  bool gate() const {
    const Shape weights = {Dim::gateWeights};
    if (phase_.backward)
      return phase_.reads.size() == 3 && phase_.writes.size() == 2 && routing(in(0)) &&
             like(in(1), in(0).shape) && like(in(2), weights) &&
             like(out(0), ending(in(0).shape, Dim::embedding)) && like(out(1), weights);
    const std::size_t written = phase_.writes.size();
    return phase_.reads.size() == 2 && (written == 2 || written == 3) && tokens(in(0)) &&
           like(in(1), weights) && like(out(0), ending(in(0).shape, Dim::choices)) &&
           out(1).element == Element::real64 && out(1).shape == Shape{Dim::sums} &&
           (written == 2 || (out(2).element == Element::count64 && inner(out(2).shape).empty()));
  }

  const Schedule& schedule_;
  const Phase& phase_;
  bool late_ = false;
};

}  // namespace

bool shapesFit(const Schedule& schedule, const Phase& phase) {
  return ScheduleShapeCheck(schedule, phase).right();
}

}  // namespace moeccl
