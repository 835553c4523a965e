// Asks the library about every placement, on all processors at once, and sorts the answers by
// tokens per second.
#include "perf/plan/ranking.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace moeccl::perf::plan {
namespace {

// Calls `each` with every number below `count`, on as many threads as there are processors.
void atOnce(std::size_t count, const std::function<void(std::size_t)>& each) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) each(i);
  };
  std::vector<std::future<void>> others;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i)
    others.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& other : others) other.get();
}

}  // namespace

Predictor::Predictor(const PredictOptions& options) : options_(options) {
  if (options.profileFile.empty()) return;
  moecclProfile_t profile = nullptr;
  requireDone(moecclProfileLoad(options.profileFile.c_str(), &profile), "read the profile");
  profile_.reset(profile);
}

moecclCluster_t Predictor::clusterOf(const moecclGridShape_t& shape) const {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.nNodes = static_cast<int>(options_.ranksPerNode.size());
  cluster.ranksPerNode = options_.ranksPerNode.data();
  cluster.shape = shape;
  cluster.profile = profile_.get();
  cluster.links = options_.links;
  cluster.networkGbits = options_.networkGbits;
  cluster.nodesPerSwitch = options_.nodesPerSwitch;
  cluster.oversubscription = options_.oversubscription;
  return cluster;
}

moecclQuery_t Predictor::queryOf(const moecclCluster_t& cluster) const {
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &options_.layer;
  query.pass = options_.pass;
  return query;
}

std::vector<Predicted> Predictor::rank(const std::vector<moecclGridShape_t>& placements) const {
  const int ranks = std::accumulate(options_.ranksPerNode.begin(), options_.ranksPerNode.end(), 0);
  std::vector<std::vector<Predicted>> found(placements.size());
  std::vector<std::string> refused(placements.size());
  // Prices to which MP groups make no difference are found once, so one thread takes all sizes of
  // MP groups.
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < placements.size(); ++i)
    if (i == 0 || placements[i].nEsp != placements[i - 1].nEsp ||
        placements[i].order != placements[i - 1].order)
      begins.push_back(i);
  begins.push_back(placements.size());
  const auto predict = [&](std::size_t at) {
    const moecclGridShape_t& shape = placements[at];
    const moecclCluster_t cluster = clusterOf(shape);
    const moecclQuery_t query = queryOf(cluster);
    const double tokens = static_cast<double>(options_.layer.tokens) * (ranks / shape.nMp);
    for (const Prediction& choice : Choices(query, &refused[at]).predictions())
      found[at].push_back({shape, choice, choice.seconds > 0 ? tokens / choice.seconds : 0});
  };
  atOnce(begins.size() - 1, [&](std::size_t i) {
    for (std::size_t at = begins[i]; at < begins[i + 1]; ++at) predict(at);
  });
  std::vector<Predicted> all;
  for (std::vector<Predicted>& some : found) all.insert(all.end(), some.begin(), some.end());
  if (all.empty()) throw std::runtime_error("no grid allows this layer: " + refused.back());
  // Without tokens, at least by time.
  std::ranges::stable_sort(all, {}, [](const Predicted& one) { return one.choice.seconds; });
  std::ranges::stable_sort(all, std::greater<>(), &Predicted::tokensPerSecond);
  return all;
}

std::string Predictor::explain(const moecclGridShape_t& shape) const {
  const moecclCluster_t cluster = clusterOf(shape);
  const moecclQuery_t query = queryOf(cluster);
  std::size_t bytes = 0;
  requireDone(moecclExplain(&query, nullptr, nullptr, &bytes), "explain a layer");
  std::string text(bytes, '\0');
  requireDone(moecclExplain(&query, nullptr, text.data(), &bytes), "explain a layer");
  text.resize(bytes - 1);
  return text;
}

}  // namespace moeccl::perf::plan
