// Sets up what a layer needs to run under one schedule: the schedules of both passes, their sizes,
// the executor, and room for the rows of experts.
#include "src/route/running.h"

#include <algorithm>
#include <utility>

#include "src/model/schedule_terms.h"

namespace moeccl {
namespace {

// Rows of the experts at a time.
std::int64_t rowsAtOnce(const schedules::Schedule& schedule, const schedules::Sizes& sizes) {
  std::int64_t rows = 0;
  for (const schedules::Phase& phase : schedule.phases) {
    if (phase.kind != schedules::Kind::experts) continue;
    const schedules::Shape& shape = schedule.tables[static_cast<std::size_t>(phase.reads[0])].shape;
    if (std::ranges::any_of(shape, schedules::boundLate)) continue;
    rows = std::max(rows, std::ranges::count(shape, schedules::Dim::keptRows) > 0
                              ? phase.oneByOne ? sizes.at(schedules::Dim::tokens)
                                               : sizes.at(schedules::Dim::keptRows)
                              : sizes.elements(std::span(shape).first(shape.size() - 1)));
  }
  return rows;
}

schedules::Schedule scheduleOf(const LayerShape& shape, Pass pass, const Compute& compute) {
  const schedules::Schedule& known = valueOf(shape, pass);
  return compute.onStreams() ? schedules::atOnce(known) : known;
}

}  // namespace

Running::Running(const Groups& groups, const LayerShape& layerShape,
                 std::shared_ptr<Compute> compute, bool timed)
    : shape(layerShape),
      compute_(std::move(compute)),
      forward_(scheduleOf(shape, Pass::forward, *compute_)),
      backward_(shape.training ? std::optional(scheduleOf(shape, Pass::backward, *compute_))
                               : std::nullopt),
      sizes_(sizesOf(shape, forward_)),
      executor_(forward_, backward(), sizes_, groups, *compute_, shared_),
      work(groups, *compute_, forward_, shape.training),
      pass(executor_, work, own_) {
  if (timed) pass.takeTimes();
  compute_->reserveRows(rowsAtOnce(forward_, sizes_));
  compute_->await(nullptr);  // what has been cleared
}

}  // namespace moeccl
