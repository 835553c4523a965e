// The token routing of a pass, by the public API.
#include <algorithm>

#include "src/base/boundary.h"
#include "src/route/pass_run.h"

namespace moeccl::schedules {

Route routeFor(const Groups& groups, int experts, int choices, std::int64_t embedding,
               moecclDataType_t datatype) {
  moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
  config.experts = experts;
  config.topK = choices;
  config.hidden = embedding;
  config.datatype = datatype;
  moecclRoute_t made = nullptr;
  requireSuccess(moecclRouteCreate(groups.grid, &config, &made));
  return Route(made);
}

// The routing of a phase's chunk, found by the counts that bind its rows.
PassRun::Routed& PassRun::routed(const Phase& phase) {
  const int counts = phase.kind == Kind::route ? phase.writes[0] : phase.reads.back();
  return routed_[static_cast<std::size_t>(table(counts).chunk)];
}

void PassRun::route(const Phase& phase) {
  Routed& it = routed(phase);
  it.pass.reset();
  const moecclRouting_t routing = work_.chosen(table(phase.reads[0]));
  it.tokens = routing.tokens;
  moecclRoutePass_t made = nullptr;
  check(phase.name,
        moecclRouteBegin(route_, &routing, mover_.onStreams() ? stream_ : nullptr, &made));
  it.pass.reset(made);
  moecclRows_t rows = MOECCL_ROWS_INITIALIZER;
  check(phase.name, moecclPassGetRows(made, &rows));
  const Table& counts = table(phase.writes[0]);
  counts_[static_cast<std::size_t>(counts.chunk)].setGiven(
      {rows.counts, static_cast<std::size_t>(elements(phase.writes[0]))}, counts.shape);
}

void PassRun::moveRouted(const Phase& phase) {
  if (half_->written[static_cast<std::size_t>(phase.writes[0])] != 0)
    throw Error(moecclInternalError, phase.name + ": no layer's schedule adds what was routed");
  check(phase.name, moveRouted(phase, phase.stream == 0 ? stream_ : side(phase.stream).get()));
  if (phase.kind != Kind::combine || !phase.backward) return;
  Routed& it = routed(phase);
  it.weighted = &phase;
  if (phase.stream == 0) takeWeightGradients(it);
}

void PassRun::takeWeightGradients(Routed& of) {
  const int gradients = of.weighted->writes[1];
  work_.setWeightGradients(table(gradients), static_cast<const float*>(of.weightGradients.get()),
                           at(gradients), stream_);
  of.weighted = nullptr;
}

moecclResult_t PassRun::moveRouted(const Phase& phase, moecclStream_t stream) {
  Routed& it = routed(phase);
  const moecclRoutePass_t pass = it.pass.get();
  const void* const from = at(phase.reads[0]);
  void* const to = at(phase.writes[0]);
  if (phase.kind == Kind::permute)
    return phase.backward ? moecclPassDispatchBackward(pass, from, nullptr, to, nullptr, stream)
                          : moecclPassDispatch(pass, from, to, stream);
  if (!phase.backward) return moecclPassCombine(pass, from, to, stream);
  const auto bytes = static_cast<std::size_t>(it.tokens * sizes_.at(Dim::choices)) * sizeof(float);
  if (bytes > it.room) mover_.grow(it.weightGradients, it.room, bytes);
  const void* rows = at(phase.reads[1]);
  if (rows == to && to != nullptr) {
    // Nobody wants the gradients of weights, for which rows are read beside what is written.
    const std::int64_t count = elements(phase.writes[0]);
    const auto room = static_cast<std::size_t>(count * mover_.elementBytes());
    if (room > it.rowsRoom) mover_.grow(it.rows, it.rowsRoom, room);
    mover_.zero(it.rows.get(), count, stream);
    rows = it.rows.get();
  }
  return moecclPassCombineBackward(pass, from, rows, to,
                                   static_cast<float*>(it.weightGradients.get()), stream);
}

}  // namespace moeccl::schedules
