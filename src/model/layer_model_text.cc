// What the model says to people.
#include <algorithm>

#include "algorithms/choice.h"
#include "src/base/text.h"
#include "src/model/layer_model.h"

namespace moeccl {

std::string LayerModel::explainPhases(const LayerShape& shape, Pass pass,
                                      const ScheduleTerms& terms) {
  const auto line = [](double seconds, const std::string& what) {
    return stringf("      %10.3f ms  %s\n", seconds * 1e3, what.c_str());
  };
  std::string text = line(localSeconds(pass, terms.local(), shape), "local work");
  for (std::size_t i = 0; i < terms.phases.size(); ++i) {
    const ScheduleTerms::Phase& phase = terms.phases[i];
    const std::string what = describe(valueOf(shape, pass), static_cast<int>(i));
    if (phase.exchange < 0) {
      text += line(localSeconds(pass, phase.local, shape), what);
      continue;
    }
    const Exchange& exchange = terms.exchanges[static_cast<std::size_t>(phase.exchange)];
    double longest = 0;
    std::string algorithms;
    if (exchange.routed != Routed::no) {
      const bool dispatches = exchange.routed == Routed::dispatch;
      algorithms = stringf("                     %.0f B:", exchange.bytes);
      const std::vector<RouteEstimate> all = routesOf(shape, exchange);
      longest = dispatches ? all[0].dispatch : all[0].combine;
      for (const RouteEstimate& one : all)
        algorithms += stringf("%s %.3f ms %s", &one == all.data() ? "" : ",",
                              (dispatches ? one.dispatch : one.combine) * 1e3,
                              std::string(one.algorithm).c_str());
      text += line(longest, what) + algorithms + " (priced)\n";
      continue;
    }
    for (CostModel& group : groups(exchange.group)) {
      const auto all =
          group.estimates(exchange.collective, given(exchange.collective), exchange.bytes);
      if (!all.empty()) longest = std::max(longest, all[0].seconds);
      algorithms += stringf("                     %.0f B:", exchange.bytes);
      for (const CostModel::Estimate& one : all)
        algorithms += stringf("%s %.3f ms %s", &one == all.data() ? "" : ",", one.seconds * 1e3,
                              textOf(one.choice).c_str());
      algorithms += !all.empty() && all[0].measured ? "\n" : " (priced)\n";
    }
    text += line(longest, what) + algorithms;
  }
  return text;
}

std::string LayerModel::explain(std::span<const LayerShape> offered, std::span<const Pass> passes,
                                Free free) {
  std::string text;
  for (const Estimate& estimate : estimates(offered, passes, free)) {
    const LayerShape& shape = estimate.shape;
    text += stringf("%-9s %10.3f ms, of these %.3f ms in exchanges%s\n", nameOf(shape.schedule),
                    estimate.seconds * 1e3, estimate.communication * 1e3,
                    estimate.measured ? "" : " (not all of it measured)");
    if (!estimate.automatic)
      text +=
          "    only if asked for: ranks of an MP group compute the same tokens apart, and what "
          "they "
          "learn may differ in its last bits\n";
    if (shape.chunks > 1)
      text += stringf("    in %lld chunks\n", static_cast<long long>(shape.chunks));
    const char* const other = shape.routed ? "a row for each choice" : "token routing";
    if (shape.routed || estimate.otherwise > 0)
      text += shape.routed ? "    rows go by token routing" : "    a row goes for each choice";
    if (estimate.otherwise > 0)
      text += stringf("; by %s it would take %.3f ms", other, estimate.otherwise * 1e3);
    if (shape.routed || estimate.otherwise > 0) text += "\n";
    for (const Pass pass : passes) {
      const ScheduleTerms terms = termsOf(shape, pass);
      const int streams = valueOf(shape, pass).streams;
      text += stringf("    %s", nameOf(pass));
      if (streams > 1)
        text += stringf("; on %d streams exchanges go on beside each other%s", streams,
                        background_ ? " and beside local work" : "");
      text += "\n";
      text += explainPhases(shape, pass, terms);
    }
  }
  return text;
}

}  // namespace moeccl
