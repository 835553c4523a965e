// Asks for predictions of layers by tokens and by one other number, for each grid, and writes them
// as JSON.
#include "perf/fit/map.h"

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "perf/common/json.h"
#include "perf/common/output_file.h"

namespace moeccl::perf {
namespace {

using nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;

// The numbers that all layers of a map have, unless an axis says otherwise.
constexpr std::int64_t kEmbedding = 1024, kHiddenPerEmbedding = 2, kTopK = 2, kLeastExperts = 8;

struct Axis {
  const char* name;
  double first, last;  // by factors of 2
  void (*set)(moecclMoeConfig_t& layer, double value);

  std::vector<double> values() const {
    std::vector<double> all;
    for (double value = first; value <= last; value *= 2) all.push_back(value);
    return all;
  }
};

void setTokens(moecclMoeConfig_t& layer, double value) {
  layer.tokens = static_cast<std::int64_t>(value);
}
void setEmbedding(moecclMoeConfig_t& layer, double value) {
  layer.embedding = static_cast<std::int64_t>(value);
}
void setChoices(moecclMoeConfig_t& layer, double value) {
  layer.capacityFactor = value / static_cast<double>(layer.topK);
}

constexpr Axis kTokens{"tokens", 64, 16384, setTokens};
constexpr std::array kOtherAxes = {Axis{"embedding", 128, 4096, setEmbedding},
                                   Axis{"kf", 0.25, 8, setChoices}};

moecclMoeConfig_t usualLayer(const moecclGridShape_t& shape) {
  moecclMoeConfig_t layer = MOECCL_MOE_CONFIG_INITIALIZER;
  layer.experts = (kLeastExperts + shape.nEp - 1) / shape.nEp * shape.nEp;
  layer.topK = kTopK;
  layer.capacityFactor = 1;
  setEmbedding(layer, kEmbedding);
  return layer;
}

ordered_json predict(const moecclCluster_t& cluster, moecclMoeConfig_t layer) {
  const int shards = cluster.shape.nEsp;  // which must divide it
  layer.hidden = (layer.embedding * kHiddenPerEmbedding + shards - 1) / shards * shards;
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &layer;
  query.pass = moecclPassBoth;
  ordered_json cell = ordered_json::object();
  for (const Prediction& it : Choices(query).predictions()) cell[it.name] = toJson(it);
  return cell;
}

ordered_json mapOf(const moecclCluster_t& cluster, const Axis& other) {
  const moecclGridShape_t& shape = cluster.shape;
  moecclMoeConfig_t layer = usualLayer(shape);
  ordered_json cells = ordered_json::array();
  for (const double y : other.values()) {
    ordered_json row = ordered_json::array();
    other.set(layer, y);
    for (const double x : kTokens.values()) {
      kTokens.set(layer, x);
      row.push_back(predict(cluster, layer));
    }
    cells.push_back(std::move(row));
  }
  layer = usualLayer(shape);
  return {{"grid", toJson(shape)},
          {"layer",
           {{"embedding", layer.embedding},
            {"hiddenPerEmbedding", kHiddenPerEmbedding},
            {"experts", layer.experts},
            {"topK", layer.topK},
            {"capacityFactor", layer.capacityFactor}}},
          {"pass", "both"},
          {"x", {{"name", kTokens.name}, {"values", kTokens.values()}}},
          {"y", {{"name", other.name}, {"values", other.values()}}},
          {"cells", std::move(cells)}};
}

}  // namespace

void writeMap(const std::string& path, moecclProfile_t profile,
              const std::vector<int>& ranksPerNode, const std::vector<moecclGridShape_t>& shapes) {
  ordered_json maps = ordered_json::array();
  for (const moecclGridShape_t& shape : shapes) {
    moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
    cluster.nNodes = static_cast<int>(ranksPerNode.size());
    cluster.ranksPerNode = ranksPerNode.data();
    cluster.shape = shape;
    cluster.profile = profile;
    for (const Axis& other : kOtherAxes) maps.push_back(mapOf(cluster, other));
  }
  const ordered_json all = {{"schema", "moeccl-map"},
                            {"schemaVersion", kSchemaVersion},
                            {"ranksPerNode", ranksPerNode},
                            {"maps", std::move(maps)}};
  OutputFile("--map", path).write(all.dump(1) + '\n');
}

std::vector<int> ranksPerNodeOf(const std::string& profileFile) {
  try {
    std::ifstream file(profileFile);
    return nlohmann::json::parse(file).at("fingerprint").at("ranksPerNode").get<std::vector<int>>();
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error("--refit: " + profileFile + " names no ranks: " + error.what());
  }
}

}  // namespace moeccl::perf
