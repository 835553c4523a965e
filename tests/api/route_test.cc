// Token routing against plain loops: every algorithm, payload, number of choices and placement, to
// the last bit.
#include "moeccl/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/reduce.h"
#include "kernels/small_float.h"
#include "tests/api/ranks.h"
#include "tests/pairwise.h"

namespace moeccl::test {
namespace {

using Bytes = std::vector<unsigned char>;

enum class Style { random, uneven, hot, none, repeated };
constexpr const char* kStyles[] = {"random", "uneven", "hot", "none", "repeated"};

struct Backend {
  const char* name;
  bool processes, ucx;
};
// Over what the library chooses, or MOECCL_TEST_PROCESSES says.
constexpr Backend kProcesses = {"processes", true, false};
constexpr Backend kBackends[] = {
    {"loopback", false, false}, {"ucxThreads", false, true}, {"ucxProcesses", true, true}};

struct Case {
  const Backend* backend = &kBackends[0];
  std::vector<int> nodes = {1};
  int esp = 1;
  moecclGridOrder_t order = moecclOrderEspEp;
  int experts = 4, choices = 2;
  moecclDataType_t datatype = moecclFloat32, combined = moecclFloat32;
  bool weighted = true;
  const char* algorithm = "";
  Style style = Style::random;
  bool stream = false;
  int64_t maxTokens = 0;
  bool latency = false;
  int tokens = 6;
  int64_t hidden = 5;

  int ranks() const { return std::accumulate(nodes.begin(), nodes.end(), 0); }
  bool narrow() const { return sizeOf(datatype) == 1; }
  size_t rowBytes() const {
    return static_cast<size_t>(hidden) * sizeOf(datatype) +
           (narrow() ? static_cast<size_t>(hidden) / 128 * 4 : 0);
  }
  size_t combinedBytes() const { return static_cast<size_t>(hidden) * sizeOf(combined); }
};

std::string textOf(const Case& c) {
  std::ostringstream out;
  out << c.backend->name << ", nodes";
  for (int node : c.nodes) out << " " << node;
  out << ", esp " << c.esp << ", order " << c.order << ", experts " << c.experts << ", k "
      << c.choices << ", type " << c.datatype << "/" << c.combined
      << (c.weighted ? "" : ", caller weighs") << ", " << (*c.algorithm ? c.algorithm : "auto")
      << ", " << kStyles[static_cast<int>(c.style)] << (c.stream ? ", on a stream" : "")
      << (c.latency         ? ", latency"
          : c.maxTokens > 0 ? ", bounded"
                            : "");
  return out.str();
}
void PrintTo(const Case& c, std::ostream* out) { *out << textOf(c); }

float rounded(float value, moecclDataType_t type) {
  if (type == moecclFloat16) return Float16::decode(Float16::encode(value));
  if (type == moecclBfloat16) return Bfloat16::decode(Bfloat16::encode(value));
  return value;
}

void put(Bytes& bytes, size_t index, float value, moecclDataType_t type) {
  if (type == moecclFloat32) {
    std::memcpy(&bytes[index * 4], &value, 4);
    return;
  }
  const std::uint16_t bits =
      type == moecclFloat16 ? Float16::encode(value) : Bfloat16::encode(value);
  std::memcpy(&bytes[index * 2], &bits, 2);
}

// What everybody chose, as all ranks know it, and where it must go, in the plainest way.
struct World {
  struct Choice {
    int source, token, choice;
  };

  explicit World(const Case& it) : c(it), ep(it.ranks() / it.esp) {
    std::mt19937 random(17);
    const auto below = [&](int bound) {
      return static_cast<int>(random() % static_cast<unsigned>(bound));
    };
    for (int rank = 0; rank < c.ranks(); ++rank) {
      int tokens = c.tokens;
      if (c.style == Style::none || (c.style == Style::uneven && rank % 3 != 1)) tokens = 0;
      std::vector<int32_t> chosen;
      for (int i = 0; i < tokens * c.choices; ++i) {
        int expert = below(c.experts + 1) - 1;
        if (c.style == Style::hot) expert = c.experts - 1;
        if (c.style == Style::repeated) expert = below(2) % c.experts;
        // In latency mode a token has an expert once.
        const auto its = chosen.end() - i % c.choices;
        if (c.latency && std::find(its, chosen.end(), expert) != chosen.end()) expert = -1;
        chosen.push_back(expert);
      }
      experts.push_back(std::move(chosen));
    }
    node.reserve(static_cast<size_t>(c.ranks()));
    for (size_t n = 0; n < c.nodes.size(); ++n)
      node.insert(node.end(), c.nodes[n], static_cast<int>(n));
  }

  int tokens(int rank) const { return static_cast<int>(experts[rank].size()) / c.choices; }
  int positionOf(int rank) const { return c.order == moecclOrderEspEp ? rank / c.esp : rank % ep; }
  int shardOf(int rank) const { return c.order == moecclOrderEspEp ? rank % c.esp : rank / ep; }
  int rankOf(int position, int shard) const {
    return c.order == moecclOrderEspEp ? position * c.esp + shard : shard * ep + position;
  }
  // The first experts % ep positions hold one more.
  int firstExpert(int position) const {
    int first = 0;
    for (int p = 0; p < position; ++p) first += c.experts / ep + (p < c.experts % ep);
    return first;
  }
  int holderOf(int expert) const {
    int position = 0;
    while (firstExpert(position + 1) <= expert) ++position;
    return position;
  }

  // By local expert of a rank.
  std::vector<std::vector<Choice>> rowsOf(int rank) const {
    const int position = positionOf(rank);
    std::vector<std::vector<Choice>> rows;
    for (int expert = firstExpert(position); expert < firstExpert(position + 1); ++expert) {
      rows.emplace_back();
      for (int source = 0; source < c.ranks(); ++source)
        for (int token = 0; token < tokens(source); ++token)
          for (int choice = 0; choice < c.choices; ++choice)
            if (experts[source][token * c.choices + choice] == expert)
              rows.back().push_back({source, token, choice});
    }
    return rows;
  }

  // Exact in every type, and products with others are.
  float weight(const Choice& at) const {
    return std::ldexp(1.0f, (at.source + at.token * 3 + at.choice) % 5 - 2);
  }

  const Case& c;
  const int ep;
  std::vector<std::vector<int32_t>> experts;  // by rank
  std::vector<int> node;                      // by rank
};

unsigned mixed(unsigned a, unsigned b, unsigned c, unsigned d, unsigned e) {
  unsigned hash = 2166136261u;
  for (unsigned word : {a, b, c, d, e}) hash = (hash ^ word) * 16777619u ^ hash >> 13;
  return hash ^ hash >> 15;
}

// What shard `shard` of an expert makes of a row: of very different sizes, so that every order of
// adding shows.
float made(const World::Choice& at, int shard, int64_t element, moecclDataType_t type) {
  const unsigned hash = mixed(static_cast<unsigned>(at.source), static_cast<unsigned>(at.token),
                              static_cast<unsigned>(at.choice), static_cast<unsigned>(shard),
                              static_cast<unsigned>(element));
  const float size =
      std::ldexp(1 + static_cast<float>(hash % 1024) / 1024, static_cast<int>(hash >> 10 & 7) - 4);
  return rounded(hash >> 20 & 1 ? size : -size, type);
}

// -3..3
float small(int a, int b, int64_t element) {
  return static_cast<float>(mixed(static_cast<unsigned>(a), static_cast<unsigned>(b), 5, 7,
                                  static_cast<unsigned>(element)) %
                            7) -
         3;
}

Bytes tokensOf(const World& world, int rank) {
  const size_t row = world.c.rowBytes();
  Bytes tokens(static_cast<size_t>(world.tokens(rank)) * row);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<unsigned char>(mixed(static_cast<unsigned>(rank),
                                                 static_cast<unsigned>(i / row),
                                                 static_cast<unsigned>(i % row), 1, 2));
  return tokens;
}

// Sums as the header says: nodes by number, in each by expert, then by shard.
Bytes expectedOutput(const World& world, int rank, bool weighted) {
  const Case& c = world.c;
  Bytes output(static_cast<size_t>(world.tokens(rank)) * c.combinedBytes());
  for (int token = 0; token < world.tokens(rank); ++token) {
    std::vector<int> choices;
    for (int choice = 0; choice < c.choices; ++choice)
      if (world.experts[rank][token * c.choices + choice] >= 0) choices.push_back(choice);
    std::ranges::stable_sort(
        choices, {}, [&](int choice) { return world.experts[rank][token * c.choices + choice]; });
    for (int64_t element = 0; element < c.hidden; ++element) {
      float sum = 0;
      bool first = true;
      for (size_t node = 0; node < c.nodes.size(); ++node) {
        float ofNode = 0;
        bool firstOfNode = true;
        for (int choice : choices)
          for (int shard = 0; shard < c.esp; ++shard) {
            const int expert = world.experts[rank][token * c.choices + choice];
            const int holder = world.rankOf(world.holderOf(expert), shard);
            if (world.node[holder] != static_cast<int>(node)) continue;
            const World::Choice at{rank, token, choice};
            const float term =
                made(at, shard, element, c.combined) * (weighted ? world.weight(at) : 1.0f);
            ofNode = firstOfNode ? term : ofNode + term;
            firstOfNode = false;
          }
        if (firstOfNode) continue;
        ofNode = rounded(ofNode, c.combined);
        sum = first ? ofNode : sum + ofNode;
        first = false;
      }
      put(output, static_cast<size_t>(token * c.hidden + element), sum, c.combined);
    }
  }
  return output;
}

struct Route {
  Route(moecclGrid_t grid, const Case& c) {
    moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
    config.experts = c.experts;
    config.topK = c.choices;
    config.weights = c.weighted ? moecclRouteWeightsLibrary : moecclRouteWeightsCaller;
    config.datatype = c.datatype;
    config.combineDatatype = c.combined;
    config.hidden = c.hidden;
    config.maxTokens = c.maxTokens;
    config.mode = c.latency ? moecclRouteLatency : moecclRouteThroughput;
    config.algorithm = c.algorithm;
    check(moecclTokenRouteCreate(grid, &config, &it));
  }
  ~Route() { moecclTokenRouteDestroy(it); }
  moecclTokenRoute_t it = nullptr;
};

struct Grid {
  Grid(moecclComm_t comm, const World& world) {
    check(moecclGridCreate(comm, {1, world.ep, world.c.esp, world.c.order}, &it), comm);
  }
  ~Grid() { moecclGridDestroy(it); }
  moecclGrid_t it = nullptr;
};

void requireEqual(const Bytes& got, const Bytes& expected, size_t row, const char* what) {
  checkThat(got.size() == expected.size(), std::string(what) + " has another size");
  for (size_t i = 0; i < got.size(); ++i)
    checkThat(got[i] == expected[i], std::string(what) + ": byte " + std::to_string(i % row) +
                                         " of row " + std::to_string(i / row) + " is wrong");
}

// One rank's part of everything that a route does.
void exercise(const World& world, moecclComm_t comm, moecclTokenRoute_t route, int rank) {
  const Case& c = world.c;
  const auto ok = [&](moecclResult_t result) { check(result, comm); };
  moecclStream_t stream = nullptr;
  if (c.stream) ok(moecclStreamCreate(comm, &stream));
  const auto finish = [&] {
    if (stream != nullptr) ok(moecclStreamSynchronize(stream));
  };
  std::vector<float> weights;
  for (int i = 0; i < world.tokens(rank) * c.choices; ++i)
    weights.push_back(world.weight({rank, i / c.choices, i % c.choices}));
  ok(moecclTokenRouteSet(route, world.tokens(rank), world.experts[rank].data(),
                         c.weighted ? weights.data() : nullptr));

  const std::vector<std::vector<World::Choice>> byExpert = world.rowsOf(rank);
  std::vector<World::Choice> choices;
  int firstExpert = -1, localExperts = -1;
  size_t rowBytes = 0;
  ok(moecclTokenRouteGetShape(route, &firstExpert, &localExperts, &rowBytes));
  checkThat(firstExpert == world.firstExpert(world.positionOf(rank)), "another first expert");
  checkThat(localExperts == static_cast<int>(byExpert.size()), "another number of experts");
  checkThat(rowBytes == c.rowBytes(), "rows of another size");
  for (const std::vector<World::Choice>& ofExpert : byExpert)
    choices.insert(choices.end(), ofExpert.begin(), ofExpert.end());
  const auto requireCounts = [&] {
    int64_t count = -1, begin = 0;
    std::vector<int64_t> begins(byExpert.size() + 1, -1);
    ok(moecclTokenRouteGetCounts(route, &count, begins.data()));
    for (size_t expert = 0; expert < byExpert.size(); ++expert) {
      checkThat(begins[expert] == begin, "an expert begins elsewhere");
      begin += static_cast<int64_t>(byExpert[expert].size());
    }
    checkThat(count == begin && begins.back() == count,
              std::to_string(count) + " rows come instead of " + std::to_string(begin));
    std::vector<int64_t> ofRanks(byExpert.size() * static_cast<size_t>(c.ranks()), -1);
    ok(moecclTokenRouteGetRankCounts(route, ofRanks.data()));
    auto ofRank = ofRanks.begin();
    for (const std::vector<World::Choice>& ofExpert : byExpert)
      for (int source = 0; source < c.ranks(); ++source)
        checkThat(*ofRank++ == std::ranges::count(ofExpert, source, &World::Choice::source),
                  "another number of rows from a rank");
  };
  int64_t room = static_cast<int64_t>(choices.size());
  if (c.latency) {
    ok(moecclTokenRouteGetMostRows(route, &room));
    checkThat(room == c.ranks() * c.maxTokens * std::min(c.choices, localExperts),
              "another bound of rows");
  } else {
    requireCounts();
  }

  const Bytes tokens = tokensOf(world, rank);
  const auto most = static_cast<size_t>(room);
  Bytes rows(most * c.rowBytes(), 0xee), expectedRows;
  ok(moecclTokenRouteDispatch(route, tokens.data(), rows.data(), stream));
  if (c.latency) requireCounts();
  finish();
  std::vector<Bytes> all;
  for (int source = 0; source < c.ranks(); ++source) all.push_back(tokensOf(world, source));
  for (const World::Choice& at : choices) {
    const auto from = all[at.source].begin() +
                      static_cast<std::ptrdiff_t>(static_cast<size_t>(at.token) * c.rowBytes());
    expectedRows.insert(expectedRows.end(), from, from + static_cast<std::ptrdiff_t>(c.rowBytes()));
  }
  expectedRows.resize(rows.size(), 0xee);  // nothing behind them
  requireEqual(rows, expectedRows, c.rowBytes(), "dispatch");

  const size_t outputBytes = static_cast<size_t>(world.tokens(rank)) * c.combinedBytes();
  Bytes results(most * c.combinedBytes());
  for (size_t row = 0; row < choices.size(); ++row)
    for (int64_t i = 0; i < c.hidden; ++i)
      put(results, row * static_cast<size_t>(c.hidden) + static_cast<size_t>(i),
          made(choices[row], world.shardOf(rank), i, c.combined), c.combined);
  Bytes output(outputBytes, 0xee), unweighted(outputBytes, 0xee);
  ok(moecclTokenRouteCombine(route, results.data(), output.data(), stream));
  if (!c.latency)
    ok(moecclTokenRouteDispatchBackward(route, results.data(), unweighted.data(), stream));
  finish();
  requireEqual(output, expectedOutput(world, rank, c.weighted), c.combinedBytes(), "combine");
  if (c.latency) {
    ok(moecclStreamDestroy(stream));
    return;
  }
  requireEqual(unweighted, expectedOutput(world, rank, false), c.combinedBytes(),
               "dispatch backward");

  // Of what experts made, -3..3 for row and shard, and gradients -3..3.
  const auto kept = [](const World::Choice& at, int shard, int64_t i) {
    return small(at.source * 100 + at.token, at.choice * 10 + shard, i);
  };
  Bytes gradients(outputBytes), rowGradients(results.size(), 0xee), expectedGradients(results);
  for (int token = 0; token < world.tokens(rank); ++token)
    for (int64_t i = 0; i < c.hidden; ++i)
      put(gradients, static_cast<size_t>(token * c.hidden + i), small(rank, token, i), c.combined);
  for (size_t row = 0; row < choices.size(); ++row)
    for (int64_t i = 0; i < c.hidden; ++i) {
      const size_t at = row * static_cast<size_t>(c.hidden) + static_cast<size_t>(i);
      put(results, at, kept(choices[row], world.shardOf(rank), i), c.combined);
      put(expectedGradients, at,
          small(choices[row].source, choices[row].token, i) *
              (c.weighted ? world.weight(choices[row]) : 1),
          c.combined);
    }
  std::vector<float> weightGradients(weights.size(), -99);
  ok(moecclTokenRouteCombineBackward(route, gradients.data(), c.weighted ? results.data() : nullptr,
                                     rowGradients.data(),
                                     c.weighted ? weightGradients.data() : nullptr, stream));
  finish();
  requireEqual(rowGradients, expectedGradients, c.combinedBytes(), "combine backward");
  for (size_t i = 0; c.weighted && i < weights.size(); ++i) {
    float expected = 0;
    const World::Choice at{rank, static_cast<int>(i) / c.choices, static_cast<int>(i) % c.choices};
    for (int shard = 0; world.experts[rank][i] >= 0 && shard < c.esp; ++shard)
      for (int64_t element = 0; element < c.hidden; ++element)
        expected += small(rank, at.token, element) * kept(at, shard, element);
    checkThat(weightGradients[i] == expected, "the gradient of a weight is " +
                                                  std::to_string(weightGradients[i]) +
                                                  " instead of " + std::to_string(expected));
  }
  ok(moecclStreamDestroy(stream));
}

Job jobOf(const Case& c) {
  return {.ranks = c.ranks(),
          .nodes = c.nodes,
          .algorithms = {},
          .processes = c.backend->processes,
          .ucx = c.backend->ucx};
}

class TokenRoutes : public testing::TestWithParam<Case> {};

TEST_P(TokenRoutes, AgainstPlainLoops) {
  const Case c = GetParam();
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    const Route route(grid.it, c);
    // Again, with the memory of the first time; and less.
    Case fewer = c;
    fewer.tokens = c.tokens / 2;
    const World then(fewer);
    if (c.tokens < 100) {
      exercise(world, comm, route.it, rank);
      exercise(then, comm, route.it, rank);
    }
    exercise(world, comm, route.it, rank);
  });
}

std::vector<Case> cases() {
  const std::vector<std::vector<int>> nodes = {{1}, {4}, {2, 2}, {3, 1, 2}, {1, 1, 1}, {4, 4}};
  const int choices[] = {1, 2, 3, 8, 16};
  const moecclDataType_t types[] = {moecclFloat32, moecclBfloat16, moecclFloat16, moecclFloat8e4m3,
                                    moecclFloat8e5m2};
  const moecclDataType_t combined[] = {moecclFloat32, moecclBfloat16, moecclFloat16};
  const char* const algorithms[] = {"node", "rank", "flat", ""};
  enum {
    kBackend,
    kNodes,
    kEsp,
    kExperts,
    kChoices,
    kType,
    kCombined,
    kWeights,
    kWay,
    kStyle,
    kStream,
    kBound
  };
  const auto fits = [](size_t column, size_t value, size_t other, size_t otherValue) {
    if (column == kNodes && other == kEsp) return otherValue == 0 || (value != 0 && value != 4);
    return true;
  };
  std::vector<Case> all;
  for (const Row& row :
       pairwise({std::size(kBackends), nodes.size(), 3, 4, std::size(choices), std::size(types),
                 std::size(combined), 2, std::size(algorithms), std::size(kStyles), 2, 3},
                fits)) {
    Case c;
    c.backend = &kBackends[row[kBackend]];
    c.nodes = nodes[row[kNodes]];
    c.esp = row[kEsp] == 0 ? 1 : 2;
    c.order = row[kEsp] == 2 ? moecclOrderEpEsp : moecclOrderEspEp;
    const int ep = c.ranks() / c.esp;
    const int experts[] = {1, ep, 2 * ep + 1, 5 * ep};
    c.experts = experts[row[kExperts]];
    c.choices = choices[row[kChoices]];
    c.datatype = types[row[kType]];
    c.combined = combined[row[kCombined]];
    c.weighted = row[kWeights] == 0;
    c.algorithm = algorithms[row[kWay]];
    c.style = static_cast<Style>(row[kStyle]);
    c.stream = row[kStream] == 1;
    if (row[kBound] > 0) c.maxTokens = c.tokens;
    c.latency = row[kBound] == 2;
    if (c.narrow()) c.hidden = 128;
    all.push_back(c);
  }
  return all;
}

std::string caseName(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.backend->name) + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(Pairs, TokenRoutes, testing::ValuesIn(cases()), caseName);

// Large enough for several chunks, of tokens that few nodes want.
std::vector<Case> largeCases(const std::vector<const char*>& algorithms) {
  std::vector<Case> all;
  for (const char* algorithm : algorithms)
    for (const Backend& backend : {kBackends[0], kBackends[2]}) {
      Case c;
      c.backend = backend.processes ? &kBackends[2] : &kBackends[0];
      c.nodes = {3, 2};
      c.experts = 11;
      c.choices = 3;
      c.datatype = c.combined = moecclBfloat16;
      c.algorithm = algorithm;
      c.tokens = 260;
      c.hidden = 701;
      all.push_back(c);
    }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Wide, TokenRoutes, testing::ValuesIn(largeCases({"node", "rank", "flat"})),
                         caseName);

// Calls that are queued behind each other: what comes back from experts that do nothing is the
// token times the sum of its weights.
TEST(TokenRouteStreams, CombineOfDispatchIsTheSumOfWeights) {
  Case c;
  c.nodes = {2, 3};
  c.experts = 7;
  c.choices = 3;
  c.datatype = c.combined = moecclBfloat16;
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    for (const char* algorithm : {"node", "rank", "flat"}) {
      Case with = c;
      with.algorithm = algorithm;
      const Route route(grid.it, with);
      moecclStream_t stream = nullptr;
      check(moecclStreamCreate(comm, &stream), comm);
      std::vector<float> weights;
      const int tokens = world.tokens(rank);
      for (int i = 0; i < tokens * c.choices; ++i)
        weights.push_back(world.weight({rank, i / c.choices, i % c.choices}));
      check(moecclTokenRouteSet(route.it, tokens, world.experts[rank].data(), weights.data()),
            comm);
      int64_t count = 0;
      check(moecclTokenRouteGetCounts(route.it, &count, nullptr), comm);
      const size_t elements = static_cast<size_t>(tokens) * static_cast<size_t>(c.hidden);
      Bytes input(elements * 2), output(elements * 2, 0xee), expected(elements * 2);
      Bytes rows(static_cast<size_t>(count) * static_cast<size_t>(c.hidden) * 2);
      for (int token = 0; token < tokens; ++token)
        for (int64_t i = 0; i < c.hidden; ++i) {
          float sum = 0;
          for (int choice = 0; choice < c.choices; ++choice)
            if (world.experts[rank][token * c.choices + choice] >= 0)
              sum += world.weight({rank, token, choice});
          const auto at = static_cast<size_t>(token * c.hidden + i);
          put(input, at, small(rank, token, i), c.datatype);
          put(expected, at, sum * small(rank, token, i), c.datatype);
        }
      check(moecclTokenRouteDispatch(route.it, input.data(), rows.data(), stream), comm);
      check(moecclTokenRouteCombine(route.it, rows.data(), output.data(), stream), comm);
      // What is queued keeps its routing.
      check(moecclTokenRouteSet(route.it, 0, nullptr, nullptr), comm);
      check(moecclStreamSynchronize(stream), comm);
      // 0 times -1 is -0.
      for (size_t i = 0; i < elements; ++i) {
        std::uint16_t got = 0, wanted = 0;
        std::memcpy(&got, &output[2 * i], 2);
        std::memcpy(&wanted, &expected[2 * i], 2);
        checkThat(Bfloat16::decode(got) == Bfloat16::decode(wanted), "another sum");
      }
      check(moecclStreamDestroy(stream), comm);
    }
  });
}

// More than the pairs above: every number of choices, on uneven nodes, for every payload.
std::vector<Case> latencyCases() {
  std::vector<Case> all;
  for (const Backend* backend : {&kBackends[0], &kBackends[1], &kBackends[2], &kProcesses})
    for (int choices = 1; choices <= 8; ++choices) {
      Case c;
      c.backend = backend;
      c.nodes = choices % 2 == 0 ? std::vector<int>{3, 1, 2} : std::vector<int>{2, 3};
      c.experts = choices % 3 == 0 ? 5 : 19;
      c.choices = choices;
      c.datatype = std::vector{moecclFloat8e4m3, moecclFloat32, moecclBfloat16, moecclFloat16,
                               moecclFloat8e5m2}[static_cast<size_t>(choices) % 5];
      c.combined = std::vector{moecclFloat32, moecclBfloat16,
                               moecclFloat16}[static_cast<size_t>(choices) % 3];
      c.hidden = 128;
      c.algorithm = std::vector{"node", "", "rank", "flat"}[static_cast<size_t>(choices) % 4];
      c.style = static_cast<Style>(choices % 4);
      c.stream = choices > 4;
      c.weighted = choices != 5;
      c.tokens = 9;
      c.maxTokens = 11;
      c.latency = true;
      all.push_back(c);
    }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Latency, TokenRoutes, testing::ValuesIn(latencyCases()), caseName);

// Loads are counted, calls on two streams wait for each other, and the next Set for both.
TEST(TokenRouteLatency, CallsOnOtherStreamsWait) {
  Case c;
  c.nodes = {2, 3};
  c.experts = 7;
  c.choices = 3;
  c.latency = true;
  c.maxTokens = c.tokens;
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    const Route route(grid.it, c);
    moecclStream_t streams[2] = {};
    for (moecclStream_t& stream : streams) check(moecclStreamCreate(comm, &stream), comm);
    const int tokens = world.tokens(rank);
    const std::vector<float> weights(world.experts[rank].size(), 0.5f);
    std::vector<float> input(static_cast<size_t>(tokens * c.hidden)), output(input.size());
    int64_t room = 0;
    check(moecclTokenRouteGetMostRows(route.it, &room), comm);
    std::vector<float> rows(static_cast<size_t>(room * c.hidden));
    for (int step = 0; step < 20; ++step) {
      for (size_t i = 0; i < input.size(); ++i)
        input[i] = static_cast<float>((static_cast<int>(i) * 7 + step + rank) % 11);
      // Every other time nobody has tokens.
      const bool some = step % 2 == 0;
      check(moecclTokenRouteSet(route.it, some ? tokens : 0, world.experts[rank].data(),
                                weights.data()),
            comm);
      check(moecclTokenRouteDispatch(route.it, input.data(), rows.data(), streams[step % 3 == 0]),
            comm);
      check(moecclTokenRouteCombine(route.it, rows.data(), output.data(), streams[step % 2]), comm);
      int64_t count = -1;
      check(moecclTokenRouteGetCounts(route.it, &count, nullptr), comm);
      checkThat((count > 0) <= some, "rows came of no token");
      check(moecclStreamSynchronize(streams[step % 2]), comm);
      for (int token = 0; some && token < tokens; ++token) {
        float sum = 0;
        for (int i = token * c.choices; i < (token + 1) * c.choices; ++i)
          if (world.experts[rank][i] >= 0) sum += 0.5f;
        for (int64_t i = token * c.hidden; i < (token + 1) * c.hidden; ++i)
          checkThat(output[i] == sum * input[i], "another sum");
      }
    }
    std::vector<int64_t> choices(7, -1), theirs(5, -1);
    check(moecclTokenRouteGetLoads(route.it, choices.data(), theirs.data(), 1), comm);
    int64_t rowsOfAll = 0;
    for (int each = 0; each < c.ranks(); ++each) {
      int64_t expected = 0;
      for (const auto& expert : world.rowsOf(each))
        expected += 10 * static_cast<int64_t>(expert.size());
      checkThat(theirs[each] == expected, "another number of rows");
      rowsOfAll += expected;
    }
    checkThat(std::accumulate(choices.begin(), choices.end(), int64_t{0}) == rowsOfAll,
              "another number of choices");
    for (moecclStream_t stream : streams) check(moecclStreamDestroy(stream), comm);
  });
}

// Copies, of which ranks have different numbers, have routings of their own, and outlive the
// original.
TEST(TokenRouteCopies, HaveRoutingsOfTheirOwn) {
  for (const bool latency : {false, true}) {
    Case c;
    c.nodes = {2, 2};
    c.esp = 2;
    c.latency = latency;
    c.maxTokens = 6;
    const World world(c);
    Case fewer = c;
    fewer.tokens = 3;
    const World other(fewer);
    runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
      const Grid grid(comm, world);
      moecclTokenRoute_t copies[2] = {}, unused = nullptr;
      {
        const Route route(grid.it, c);
        for (moecclTokenRoute_t& copy : copies) check(moecclTokenRouteCopy(route.it, &copy), comm);
        if (rank % 2 == 1) check(moecclTokenRouteCopy(copies[0], &unused), comm);
      }
      const auto set = [&](moecclTokenRoute_t route, const World& it) {
        const std::vector<float> ones(it.experts[rank].size(), 1);
        check(moecclTokenRouteSet(route, it.tokens(rank), it.experts[rank].data(), ones.data()),
              comm);
      };
      set(copies[0], world);
      set(copies[1], other);
      const int32_t none = 0;
      const float one = 1;
      checkError(moecclTokenRouteSet(copies[1], 7, &none, &one), moecclInvalidArgument, comm,
                 {"tokens is 7", "0 to 6"});
      for (const World* it : {&world, &other}) {
        if (latency) break;  // known after a dispatch
        int64_t rows = -1, expected = 0;
        check(moecclTokenRouteGetCounts(copies[it == &world ? 0 : 1], &rows, nullptr), comm);
        for (const auto& ofExpert : it->rowsOf(rank))
          expected += static_cast<int64_t>(ofExpert.size());
        checkThat(rows == expected, "the rows of another routing");
      }
      for (const World* it : {&world, &other})
        exercise(*it, comm, copies[it == &world ? 0 : 1], rank);
      for (const moecclTokenRoute_t copy : {copies[0], copies[1], unused})
        check(moecclTokenRouteDestroy(copy));
      checkError(moecclTokenRouteCopy(nullptr, copies), moecclInvalidArgument, nullptr,
                 {"moecclTokenRouteCopy", "route is NULL"});
    });
  }
}

TEST(TokenRouteLatency, SaysWhatItHasNot) {
  Case c;
  c.nodes = {1};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int) {
    const Grid grid(comm, world);
    moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
    config.mode = moecclRouteLatency;
    config.experts = 3;
    config.topK = 2;
    moecclTokenRoute_t route = nullptr;
    checkError(moecclTokenRouteCreate(grid.it, &config, &route), moecclInvalidArgument, comm,
               {"config.maxTokens is 0", "1 to 1024"});
    config.maxTokens = 4;
    config.mode = static_cast<moecclRouteMode_t>(2);
    checkError(moecclTokenRouteCreate(grid.it, &config, &route), moecclInvalidArgument, comm,
               {"config.mode is 2"});
    config.mode = moecclRouteLatency;
    check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
    const int32_t chosen[4] = {0, 1, 2, 2};
    const float weights[4] = {1, 1, 1, 1};
    std::uint16_t buffer[16] = {};
    checkError(moecclTokenRouteSet(route, 2, chosen, weights), moecclInvalidArgument, comm,
               {"topkIndices[1][1] is 2 again"});
    checkError(moecclTokenRouteDispatch(route, buffer, buffer + 2, nullptr), moecclInvalidUsage,
               comm, {"moecclTokenRouteSet first"});
    check(moecclTokenRouteSet(route, 1, chosen, weights), comm);
    checkError(moecclTokenRouteGetCounts(route, nullptr, nullptr), moecclInvalidUsage, comm,
               {"moecclTokenRouteDispatch"});
    checkError(moecclTokenRouteCombine(route, buffer + 2, buffer, nullptr), moecclInvalidUsage,
               comm, {"moecclTokenRouteDispatch"});
    // Room for 8 rows.
    checkError(moecclTokenRouteDispatch(route, buffer + 7, buffer, nullptr), moecclInvalidArgument,
               comm, {"overlap"});
    check(moecclTokenRouteDispatch(route, buffer + 8, buffer, nullptr), comm);
    checkError(moecclTokenRouteDispatchBackward(route, buffer, buffer + 8, nullptr),
               moecclInvalidUsage, comm, {"no backward passes"});
    checkError(
        moecclTokenRouteCombineBackward(route, buffer + 8, buffer, buffer + 9, nullptr, nullptr),
        moecclInvalidUsage, comm, {"no backward passes"});
    check(moecclTokenRouteDestroy(route));
    config.mode = moecclRouteThroughput;
    check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
    int64_t most = 0;
    checkError(moecclTokenRouteGetMostRows(route, &most), moecclInvalidUsage, comm,
               {"not in latency mode"});
    check(moecclTokenRouteDestroy(route));
  });
}

// Ranks whose routes differ only in what messages would tell find out.
TEST(TokenRouteLatency, OtherCallsThanTheOthers) {
  Case c;
  c.nodes = {2};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
    config.mode = moecclRouteLatency;
    config.experts = 2;
    moecclTokenRoute_t routes[2] = {};
    for (moecclTokenRoute_t& route : routes) {
      ++config.maxTokens;
      check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
    }
    const int32_t chosen[1] = {1 - rank};
    const float weights[1] = {1};
    check(moecclTokenRouteSet(routes[rank], 1, chosen, weights), comm);
    std::uint16_t from[1] = {}, to[4] = {};
    checkError(moecclTokenRouteDispatch(routes[rank], from, to, nullptr), moecclRemoteError, comm,
               {"token dispatch", "at most 1 tokens", "at most 2 tokens"});
    for (const moecclTokenRoute_t route : routes) check(moecclTokenRouteDestroy(route));
    throw Aborts{};
  });
}

TEST(TokenRouteLoads, CountChoicesAndRowsOfAllRanks) {
  Case c;
  c.nodes = {2, 1};
  c.experts = 5;
  c.choices = 3;
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    const Route route(grid.it, c);
    std::vector<float> weights(world.experts[rank].size(), 1);
    for (int step = 0; step < 2; ++step)
      check(moecclTokenRouteSet(route.it, world.tokens(rank), world.experts[rank].data(),
                                weights.data()),
            comm);
    std::vector<int64_t> choices(5, -1), rows(3, -1);
    check(moecclTokenRouteGetLoads(route.it, choices.data(), rows.data(), 1), comm);
    for (int expert = 0; expert < 5; ++expert) {
      int64_t expected = 0;
      for (const auto& theirs : world.experts) expected += 2 * std::ranges::count(theirs, expert);
      checkThat(choices[expert] == expected, "another number of choices");
    }
    for (int each = 0; each < 3; ++each) {
      int64_t expected = 0;
      for (const auto& expert : world.rowsOf(each))
        expected += 2 * static_cast<int64_t>(expert.size());
      checkThat(rows[each] == expected, "another number of rows");
    }
    check(moecclTokenRouteGetLoads(route.it, choices.data(), nullptr, 0), comm);
    checkThat(std::ranges::count(choices, 0) == 5, "loads were not reset");
  });
}

TEST(QuantizedRows, ThereAndBack) {
  constexpr int64_t kHidden = 256;
  std::vector<float> rows(2 * kHidden), back(rows.size());
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<float>(static_cast<int>(i % 57) - 28) * (i < kHidden ? 16 : 1);
  std::vector<unsigned char> quantized(2 * (kHidden + kHidden / 128 * sizeof(float)));
  for (const moecclDataType_t type : {moecclFloat8e4m3, moecclFloat8e5m2}) {
    check(moecclQuantizeRows(2, kHidden, moecclFloat32, rows.data(), type, quantized.data()));
    check(moecclDequantizeRows(2, kHidden, type, quantized.data(), moecclFloat32, back.data()));
    for (size_t i = 0; i < rows.size(); ++i)
      EXPECT_NEAR(back[i], rows[i], std::abs(rows[i]) / 7) << i;
  }
  const auto refuses = [&](moecclResult_t result, const std::vector<std::string>& parts) {
    checkError(result, moecclInvalidArgument, nullptr, parts);
  };
  refuses(
      moecclQuantizeRows(1, 100, moecclFloat32, rows.data(), moecclFloat8e4m3, quantized.data()),
      {"hidden is 100", "128"});
  refuses(
      moecclQuantizeRows(-1, 128, moecclFloat32, rows.data(), moecclFloat8e4m3, quantized.data()),
      {"rows is -1"});
  refuses(moecclQuantizeRows(1, 128, moecclInt32, rows.data(), moecclFloat8e4m3, quantized.data()),
          {"fromType is 2"});
  refuses(moecclDequantizeRows(1, 128, moecclFloat16, rows.data(), moecclFloat32, back.data()),
          {"fromType is 6"});
  refuses(moecclQuantizeRows(1, 128, moecclFloat32, nullptr, moecclFloat8e4m3, quantized.data()),
          {"from is NULL", "512 bytes"});
  refuses(moecclQuantizeRows(1, 128, moecclFloat32, rows.data(), moecclFloat8e4m3, rows.data()),
          {"overlap"});
}

TEST(TokenRouteErrors, NameWhatIsWrong) {
  Case c;
  c.nodes = {1};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int) {
    const Grid grid(comm, world);
    const auto create = [&](auto change, const std::vector<std::string>& parts) {
      moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
      change(config);
      moecclTokenRoute_t none = nullptr;
      checkError(moecclTokenRouteCreate(grid.it, &config, &none), moecclInvalidArgument, comm,
                 parts);
    };
    create([](auto& it) { it.experts = 0; }, {"config.experts is 0", "32768"});
    create([](auto& it) { it.topK = 129; }, {"config.topK is 129", "128"});
    create([](auto& it) { it.hidden = 0; }, {"config.hidden is 0"});
    create([](auto& it) { it.datatype = moecclInt8; }, {"config.datatype is 0"});
    create([](auto& it) { it.combineDatatype = moecclFloat64; }, {"config.combineDatatype is 8"});
    create([](auto& it) { it.algorithm = "ring"; }, {"\"ring\"", "node, rank, flat"});
    create([](auto& it) { it.magic = 0; }, {"MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER"});
    create(
        [](auto& it) {
          it.datatype = moecclFloat8e4m3;
          it.hidden = 100;
        },
        {"config.hidden is 100", "multiple of 128"});
    moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
    checkError(moecclTokenRouteCreate(grid.it, &config, nullptr), moecclInvalidArgument, comm,
               {"route is NULL"});
    config.experts = 3;
    config.topK = 2;
    config.maxTokens = 4;
    moecclTokenRoute_t route = nullptr;
    check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
    std::uint16_t buffer[8] = {};
    checkError(moecclTokenRouteDispatch(route, buffer, buffer + 4, nullptr), moecclInvalidUsage,
               comm, {"moecclTokenRouteSet first"});
    const int32_t chosen[4] = {0, 1, 2, -2};
    const float weights[4] = {1, 1, 1, 1};
    const auto set = [&](int64_t tokens, const int32_t* which, const float* with,
                         const std::vector<std::string>& parts) {
      checkError(moecclTokenRouteSet(route, tokens, which, with), moecclInvalidArgument, comm,
                 parts);
    };
    set(2, chosen, weights, {"topkIndices[1][1] is -2", "0 to 2"});
    set(5, chosen, weights, {"tokens is 5", "0 to 4"});
    set(-1, chosen, weights, {"tokens is -1"});
    set(1, nullptr, weights, {"topkIndices is NULL"});
    set(1, chosen, nullptr, {"topkWeights is NULL"});
    check(moecclTokenRouteSet(route, 1, chosen, weights), comm);
    checkError(moecclTokenRouteDispatch(route, buffer, nullptr, nullptr), moecclInvalidArgument,
               comm, {"rows is NULL", "4 bytes"});
    checkError(moecclTokenRouteCombine(route, buffer, buffer + 1, nullptr), moecclInvalidArgument,
               comm, {"rows and output overlap"});
    checkError(
        moecclTokenRouteCombineBackward(route, buffer, buffer + 1, buffer + 3, nullptr, nullptr),
        moecclInvalidArgument, comm, {"weightGradients is NULL"});
    check(moecclTokenRouteDestroy(route));
    checkError(moecclTokenRouteDestroy(route), moecclInvalidArgument, nullptr,
               {"route is no route"});
    check(moecclTokenRouteDestroy(nullptr));
    checkError(moecclTokenRouteSet(nullptr, 0, nullptr, nullptr), moecclInvalidArgument, nullptr,
               {"route is NULL"});
  });
}

TEST(TokenRouteErrors, OneRankWithAnotherConfig) {
  Case c;
  c.nodes = {2, 1};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
    config.experts = rank == 2 ? 6 : 5;
    moecclTokenRoute_t route = nullptr;
    checkError(moecclTokenRouteCreate(grid.it, &config, &route), moecclInvalidUsage, comm,
               {"experts is 5 on rank 0 and 6 on rank 2"});
    config.experts = rank == 1 ? -5 : 5;
    checkError(moecclTokenRouteCreate(grid.it, &config, &route),
               rank == 1 ? moecclInvalidArgument : moecclRemoteError, comm,
               {"config.experts is -5"});
    config.experts = 5;
    check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
    check(moecclTokenRouteDestroy(route));
  });
}

// A rank that combines where the others dispatch.
TEST(TokenRouteErrors, OtherCallsThanTheOthers) {
  Case c;
  c.nodes = {2};
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    moecclTokenRouteConfig_t config = MOECCL_TOKEN_ROUTE_CONFIG_INITIALIZER;
    config.experts = 2;
    moecclTokenRoute_t route = nullptr;
    check(moecclTokenRouteCreate(grid.it, &config, &route), comm);
    const int32_t chosen[1] = {1 - rank};
    const float weights[1] = {1};
    check(moecclTokenRouteSet(route, 1, chosen, weights), comm);
    std::uint16_t from[1] = {}, to[1] = {};
    checkError(rank == 0 ? moecclTokenRouteDispatch(route, from, to, nullptr)
                         : moecclTokenRouteCombine(route, from, to, nullptr),
               moecclRemoteError, comm, {"token dispatch", "token combine"});
    check(moecclTokenRouteDestroy(route));
    throw Aborts{};
  });
}

}  // namespace
}  // namespace moeccl::test
