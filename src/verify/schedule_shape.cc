// Whether each phase has as many tables as its kind, of shapes that belong together.
#include <algorithm>

#include "algorithms/schedules/kinds.h"
#include "src/verify/verify_schedule.h"

namespace moeccl {
namespace {

using namespace schedules;

// Counts, and rows, of the rank's own experts.
const Shape kByRank = {Dim::localExperts, Dim::ranks};

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
          if (behindIndices(in(i).shape) != behindIndices(out(i).shape) ||
              in(i).element != out(i).element)
            return false;
        return true;
      case Kind::regroup:
        return !back && are(1, 1) && sameBehindIndices() && in(0).element == out(0).element;
      case Kind::split:
      case Kind::join:
        return !back && are(1, 1) && in(0).element == Element::layer &&
               out(0).element == Element::layer &&
               (phase_.group == GroupKind::mp
                    ? ofBatch(behindIndices(in(0).shape)) == ofBatch(behindIndices(out(0).shape))
                    : sameBehindIndices());
      case Kind::add:
        return !back && are(1, 1) && holdsOf(in(0)) == Holds::tokens &&
               holdsOf(out(0)) == Holds::tokens && ofBatch(in(0).shape) == ofBatch(out(0).shape);
      case Kind::route:
        return fitsSignature(reads) && in(0).shape.size() == 2 && out(0).shape == kByRank;
      default:
        return fitsSignature(reads);
    }
  }

 private:
  const Table& at(int index) const { return schedule_.tables[static_cast<std::size_t>(index)]; }
  const Table& in(std::size_t i) const { return at(phase_.reads[i]); }
  const Table& out(std::size_t i) const { return at(phase_.writes[i]); }
  bool sameBehindIndices() const {
    return behindIndices(in(0).shape) == behindIndices(out(0).shape);
  }

  // Whether the tables are those of the kind's signature, and have shapes that belong together.
  bool fitsSignature(std::size_t reads) const {
    const Signature& signature = signatureOf(phase_.kind);
    const bool back = phase_.backward;
    if (back && signature.gradients.empty()) return false;
    const std::vector<Holds> read = back ? signature.backwardReads() : signature.reads;
    const std::vector<Holds> written = back ? signature.backwardWrites() : signature.writes;
    const std::size_t needed =
        written.size() - (back ? 0 : static_cast<std::size_t>(signature.optional));
    if (reads != read.size() || phase_.writes.size() < needed ||
        phase_.writes.size() > written.size())
      return false;
    const Table *tokens = nullptr, *rows = nullptr, *routing = nullptr;
    const auto fits = [&](const Table& table, Holds what) {
      if (holdsOf(table) != what) return false;
      if (what == Holds::rows) {
        if (rows == nullptr) rows = &table;
        return table.shape == rows->shape;
      }
      if (what != Holds::tokens && what != Holds::routing) return true;
      if (what == Holds::routing) routing = &table;
      if (tokens == nullptr) tokens = &table;
      return ending(table.shape, Dim::embedding) == ending(tokens->shape, Dim::embedding);
    };
    for (std::size_t i = 0; i < reads; ++i)
      if (!fits(in(i), read[i])) return false;
    for (std::size_t i = 0; i < phase_.writes.size(); ++i)
      if (!fits(out(i), written[i])) return false;
    return rows == nullptr || routing == nullptr || way(*rows, *routing);
  }

  // Routed rows are those of the rank's own experts; other rows are of its own tokens, or of its
  // group's, for all experts.
  bool way(const Table& rows, const Table& routing) const {
    if (!phase_.routed) return !has(rows, Dim::ranks);
    Shape shape = kByRank;
    shape.insert(shape.end(), rows.shape.end() - 2, rows.shape.end());
    return routing.shape.size() == 2 && late_ && rows.shape == shape;
  }

  // Rows that are bound late are bound by counts, which are read last.
  bool bound() {
    const auto isLate = [&](int table) { return hasRuns(at(table)); };
    late_ = std::ranges::any_of(phase_.reads, isLate) || std::ranges::any_of(phase_.writes, isLate);
    const Table& last = at(phase_.reads.back());
    return !late_ || (phase_.reads.size() > 1 && last.element == Element::count64 &&
                      behindIndices(last.shape).empty() &&
                      (last.shape == kByRank ||
                       (std::ranges::count(last.shape, Dim::esp) == 1 && last.shape.size() == 3)));
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
