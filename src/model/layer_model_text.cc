// What the model says to people.
#include <algorithm>

#include "algorithms/choice.h"
#include "src/base/text.h"
#include "src/model/layer_model.h"

namespace moeccl {

std::string LayerModel::explainPhases(const LayerShape& shape, Pass pass,
                                      const ScheduleTerms& terms,
                                      std::span<const ExchangeEstimate> exchanges) {
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
    const ExchangeEstimate& estimate = exchanges[static_cast<std::size_t>(phase.exchange)];
    const Exchange& exchange = estimate.exchange;
    text += line(estimate.seconds, what);
    std::vector<std::string> algorithms;
    const auto add = [&](double seconds, std::string_view name) {
      algorithms.push_back(stringf("%.3f ms ", seconds * 1e3).append(name));
    };
    const auto list = [&](bool measured) {
      text += stringf("                     %.0f B:", exchange.bytes);
      for (const std::string& one : algorithms)
        text += (&one == algorithms.data() ? " " : ", ") + one;
      text += measured ? "\n" : " (priced)\n";
      algorithms.clear();
    };
    if (exchange.routed != Routed::no) {
      for (const RouteEstimate& one : routesOf(shape, exchange))
        add(exchange.routed == Routed::dispatch ? one.dispatch : one.combine, one.algorithm);
      list(false);
      continue;
    }
    for (CostModel& group : groups(exchange.group)) {
      const auto all =
          group.estimates(exchange.collective, given(exchange.collective), exchange.bytes);
      for (const CostModel::Estimate& one : all) add(one.seconds, textOf(one.choice));
      list(!all.empty() && all[0].measured);
    }
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
    std::size_t first = 0;  // of the pass's exchanges
    for (const Pass pass : passes) {
      const ScheduleTerms terms = termsOf(shape, pass);
      const int streams = valueOf(shape, pass).streams;
      text += stringf("    %s", nameOf(pass));
      if (streams > 1)
        text += stringf("; on %d streams exchanges go on beside each other%s", streams,
                        background_ ? " and beside local work" : "");
      text += "\n";
      text += explainPhases(shape, pass, terms, std::span(estimate.exchanges).subspan(first));
      first += terms.exchanges.size();
    }
  }
  return text;
}

}  // namespace moeccl
