// Draws routings, and routes their rows in plain loops.
#include "tests/api/route_world.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>
#include <random>
#include <sstream>
#include <utility>

#include "kernels/small_float.h"
#include "tests/pairwise.h"

namespace moeccl::test {
namespace {

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

Bytes tokensOf(const World& world, int rank) {
  const size_t row = world.c.rowBytes();
  Bytes tokens(static_cast<size_t>(world.tokens(rank)) * row);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<unsigned char>(mixed(static_cast<unsigned>(rank),
                                                 static_cast<unsigned>(i / row),
                                                 static_cast<unsigned>(i % row), 1, 2));
  return tokens;
}

// What experts get of these.
Bytes asSent(const Case& c, Bytes tokens) {
  if (c.wire == 0) return tokens;
  const int64_t rows = static_cast<int64_t>(tokens.size() / c.rowBytes());
  Bytes sent(static_cast<size_t>(rows * (c.hidden + c.hidden / 128 * 4)));
  check(moecclQuantizeRows(rows, c.hidden, c.datatype, tokens.data(), c.wire, sent.data(), nullptr,
                           nullptr));
  check(moecclDequantizeRows(rows, c.hidden, c.wire, sent.data(), c.datatype, tokens.data(),
                             nullptr, nullptr));
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

void requireEqual(const Bytes& got, const Bytes& expected, size_t row, const char* what) {
  checkThat(got.size() == expected.size(), std::string(what) + " has another size");
  for (size_t i = 0; i < got.size(); ++i)
    checkThat(got[i] == expected[i], std::string(what) + ": byte " + std::to_string(i % row) +
                                         " of row " + std::to_string(i / row) + " is wrong");
}

// A gradient of a row's weight.
float ofRow(const World::Choice& at, int shard) {
  return small(at.source * 100 + at.token, at.choice * 10 + shard, 1);
}

// ofRow(choice, shard): of the row at each shard.
template <typename OfRow>
void requireWeightGradients(const World& world, int rank, const Bytes& got, const OfRow& ofRow) {
  const Case& c = world.c;
  std::vector<float> gradients(world.experts[rank].size());
  checkThat(got.size() == gradients.size() * sizeof(float), "another number of gradients");
  if (!got.empty()) std::memcpy(gradients.data(), got.data(), got.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    float expected = 0;
    const World::Choice at{rank, static_cast<int>(i) / c.choices, static_cast<int>(i) % c.choices};
    for (int shard = 0; world.experts[rank][i] >= 0 && shard < c.esp; ++shard)
      expected += ofRow(at, shard);
    checkThat(gradients[i] == expected, "the gradient of a weight is " +
                                            std::to_string(gradients[i]) + " instead of " +
                                            std::to_string(expected));
  }
}

}  // namespace

std::string textOf(const Case& c) {
  static constexpr const char* kWeights[] = {"", ", weights with rows", ", no weights"};
  std::ostringstream out;
  out << c.backend->name << ", nodes";
  for (int node : c.nodes) out << " " << node;
  out << ", esp " << c.esp << ", order " << c.order << ", experts " << c.experts << ", k "
      << c.choices << ", type " << c.datatype << "/" << c.combined << kWeights[c.weights] << ", "
      << (*c.algorithm ? c.algorithm : "auto") << ", " << kStyles[static_cast<int>(c.style)]
      << (c.stream ? ", on a stream" : "")
      << (c.latency         ? ", latency"
          : c.maxTokens > 0 ? ", bounded"
                            : "");
  if (c.maxRows > 0) out << ", at most " << c.maxRows << " rows";
  if (c.alignment > 0) out << ", at multiples of " << c.alignment;
  if (c.wire != 0) out << ", sent as type " << c.wire;
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

World::World(const Case& it) : c(it), ep(it.ranks() / it.esp) {
  std::mt19937 random(17);
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  for (int rank = 0; rank < c.ranks(); ++rank) {
    int tokens = c.tokens;
    if (c.style == Style::none || (c.style == Style::uneven && rank % 3 != 1)) tokens = 0;
    std::vector<int32_t> its;
    for (int i = 0; i < tokens * c.choices; ++i) {
      int expert = below(c.experts + 1) - 1;
      if (c.style == Style::hot) expert = c.experts - 1;
      if (c.style == Style::repeated) expert = below(2) % c.experts;
      // In latency mode a token has an expert once.
      const auto token = its.end() - i % c.choices;
      if (c.latency && std::find(token, its.end(), expert) != its.end()) expert = -1;
      its.push_back(expert);
    }
    chosen.push_back(std::move(its));
  }
  experts = chosen;
  node.reserve(static_cast<size_t>(c.ranks()));
  for (size_t n = 0; n < c.nodes.size(); ++n)
    node.insert(node.end(), c.nodes[n], static_cast<int>(n));
  if (c.maxRows > 0) drop();
}

std::vector<int64_t> handOut(const std::vector<int64_t>& wants, int64_t room, int64_t unit) {
  std::vector<int64_t> has(wants.size(), 0);
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < wants.size(); ++i)
      if (has[i] < wants[i] && room >= unit) {
        has[i] += unit;
        room -= unit;
        more = true;
      }
  }
  for (size_t i = 0; i < wants.size(); ++i) has[i] = std::min(has[i], wants[i]);
  return has;
}

void World::drop() {
  for (int position = 0; position < ep; ++position) {
    const int first = firstExpert(position), end = firstExpert(position + 1);
    std::vector<std::vector<int64_t>> from;
    std::vector<int64_t> wants;
    for (int expert = first; expert < end; ++expert) {
      from.emplace_back();
      for (const std::vector<int32_t>& its : chosen)
        from.back().push_back(std::ranges::count(its, expert));
      wants.push_back(std::accumulate(from.back().begin(), from.back().end(), int64_t{0}));
    }
    const std::vector<int64_t> room = handOut(wants, c.maxRows, std::max<int64_t>(c.alignment, 1));
    for (int expert = first; expert < end; ++expert) {
      const auto local = static_cast<size_t>(expert - first);
      const std::vector<int64_t> has = handOut(from[local], room[local], 1);
      for (size_t rank = 0; rank < experts.size(); ++rank) {
        int64_t left = has[rank];
        for (int32_t& it : experts[rank])
          if (it == expert && left-- <= 0) it = -1;
      }
    }
  }
}

int64_t World::dropped(int rank) const {
  return std::ranges::count(experts[rank], -1) - std::ranges::count(chosen[rank], -1);
}

int World::firstExpert(int position) const {
  int first = 0;
  for (int p = 0; p < position; ++p) first += c.experts / ep + (p < c.experts % ep);
  return first;
}

int World::holderOf(int expert) const {
  int position = 0;
  while (firstExpert(position + 1) <= expert) ++position;
  return position;
}

std::vector<std::vector<World::Choice>> World::rowsOf(int rank) const {
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

float World::weight(const Choice& at) const {
  return std::ldexp(1.0f, (at.source + at.token * 3 + at.choice) % 5 - 2);
}

std::vector<float> World::weights(int rank) const {
  std::vector<float> all;
  for (int i = 0; i < tokens(rank) * c.choices; ++i)
    all.push_back(weight({rank, i / c.choices, i % c.choices}));
  return all;
}

float small(int a, int b, int64_t element) {
  return static_cast<float>(mixed(static_cast<unsigned>(a), static_cast<unsigned>(b), 5, 7,
                                  static_cast<unsigned>(element)) %
                            7) -
         3;
}

std::vector<Case> productCases(std::span<const Backend> backends, bool onGpus) {
  const std::vector<std::vector<int>> nodes = {{1}, {4}, {2, 2}, {3, 1, 2}, {1, 1, 1}, {4, 4}};
  const int choices[] = {1, 2, 3, 8, 16};
  const moecclDataType_t types[] = {moecclFloat32, moecclBfloat16, moecclFloat16, moecclFloat8e4m3,
                                    moecclFloat8e5m2};
  const moecclDataType_t combined[] = {moecclFloat32, moecclBfloat16, moecclFloat16};
  const char* const algorithms[] = {"node", "rank", "flat", ""};
  const moecclRouteWeights_t weights[] = {moecclRouteWeightsCombine, moecclRouteWeightsNone,
                                          moecclRouteWeightsRows};
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
    kBound,
    kRows
  };
  constexpr size_t kWithRows = 2, kLatency = 2, kRoom = 3, kNarrow = 3;
  // Plain, aligned, bounded, both, and sent as float8.
  const std::vector<int64_t> maxRows = {0, 0, 5, 11, 0, 0}, alignments = {0, 4, 0, 3, 0, 0};
  const moecclDataType_t none = static_cast<moecclDataType_t>(0);
  const moecclDataType_t wires[] = {none, none, none, none, moecclFloat8e4m3, moecclFloat8e5m2};
  const auto fits = [](size_t column, size_t value, size_t other, size_t otherValue) {
    if (column == kNodes && other == kEsp) return otherValue == 0 || (value != 0 && value != 4);
    if (column == kWeights && other == kBound) return value != kWithRows || otherValue != kLatency;
    if (column == kBound && other == kRows)
      return value != kLatency || otherValue == 0 || otherValue > kRoom;
    if (column == kType && other == kRows) return otherValue <= kRoom || value < kNarrow;
    return true;
  };
  std::vector<Case> all;
  for (const Row& row :
       pairwise({backends.size(), nodes.size(), 3, 4, std::size(choices), std::size(types),
                 std::size(combined), onGpus ? size_t{2} : size_t{3}, std::size(algorithms),
                 std::size(kStyles), 2, 3, onGpus ? kRoom + 1 : std::size(wires)},
                fits)) {
    Case c;
    c.backend = &backends[row[kBackend]];
    c.nodes = nodes[row[kNodes]];
    c.esp = row[kEsp] == 0 ? 1 : 2;
    c.order = row[kEsp] == 2 ? moecclOrderEpEsp : moecclOrderEspEp;
    const int ep = c.ranks() / c.esp;
    const int experts[] = {1, ep, 2 * ep + 1, 5 * ep};
    c.experts = experts[row[kExperts]];
    c.choices = choices[row[kChoices]];
    c.datatype = types[row[kType]];
    c.combined = combined[row[kCombined]];
    c.weights = weights[row[kWeights]];
    c.algorithm = algorithms[row[kWay]];
    c.style = static_cast<Style>(row[kStyle]);
    c.stream = row[kStream] == 1;
    if (row[kBound] > 0) c.maxTokens = c.tokens;
    c.latency = row[kBound] == kLatency;
    c.maxRows = maxRows[row[kRows]];
    c.alignment = alignments[row[kRows]];
    c.wire = wires[row[kRows]];
    if (c.narrow() || c.wire != none) c.hidden = 128;
    all.push_back(c);
  }
  return all;
}

Job jobOf(const Case& c) {
  return {.ranks = c.ranks(),
          .nodes = c.nodes,
          .algorithms = {},
          .processes = c.backend->processes,
          .ucx = c.backend->ucx};
}

void HostMemory::put(void* to, const void* from, size_t bytes, moecclStream_t) {
  std::memcpy(to, from, bytes);
}
void HostMemory::get(void* to, const void* from, size_t bytes, moecclStream_t stream) {
  check(moecclStreamSynchronize(stream));
  if (bytes > 0) std::memcpy(to, from, bytes);
}

Buffer::Buffer(Memory& memory, moecclStream_t stream, Bytes content)
    : memory_(memory), stream_(stream), content_(std::move(content)) {
  if (content_.empty()) return;
  at_ = memory_.allocate(content_.size());
  memory_.put(at_, content_.data(), content_.size(), stream_);
}

Buffer::~Buffer() {
  if (at_ != nullptr) memory_.free(at_);
}

Bytes Buffer::get() const {
  Bytes now(content_.size());
  memory_.get(now.data(), at_, now.size(), stream_);
  return now;
}

moecclResult_t begin(moecclRoute_t route, int64_t tokens, const int32_t* experts,
                     const float* weights, moecclStream_t stream, moecclRoutePass_t* pass) {
  moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
  routing.tokens = tokens;
  routing.experts = experts;
  routing.weights = weights;
  return moecclRouteBegin(route, &routing, stream, pass);
}

int64_t maxRowsOf(moecclRoute_t route) {
  moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
  check(moecclRouteGetInfo(route, &info));
  return info.maxRows;
}

void exercise(const World& world, moecclComm_t comm, moecclRoute_t route, int rank, Memory& memory,
              moecclStream_t stream) {
  const Case& c = world.c;
  const auto ok = [&](moecclResult_t result) { check(result, comm); };
  const auto buffer = [&](auto content) { return Buffer(memory, stream, std::move(content)); };
  const std::vector<float> weights = world.weights(rank);
  const Pass pass = [&] {
    const Buffer chosen = buffer(world.chosen[rank]), given = buffer(weights);
    return Pass(comm, route, world.tokens(rank), chosen.at<int32_t>(),
                c.hasWeights() ? given.at<float>() : nullptr, stream);
  }();

  const std::vector<std::vector<World::Choice>> byExpert = world.rowsOf(rank);
  // By row; padding is of no source.
  constexpr World::Choice kPadding = {-1, 0, 0};
  std::vector<World::Choice> choices;
  moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
  ok(moecclRouteGetInfo(route, &info));
  checkThat(info.firstExpert == world.firstExpert(world.positionOf(rank)), "another first expert");
  checkThat(info.localExperts == static_cast<int>(byExpert.size()), "another number of experts");
  checkThat(info.tokenBytes == c.rowBytes(), "rows of another size");
  std::vector<int64_t> begins;
  for (const std::vector<World::Choice>& ofExpert : byExpert) {
    begins.push_back(std::ssize(choices));
    choices.insert(choices.end(), ofExpert.begin(), ofExpert.end());
    while (c.alignment > 0 && std::ssize(choices) % c.alignment != 0) choices.push_back(kPadding);
  }
  const auto requireCounts = [&] {
    const moecclRows_t come = pass.rows();
    const int64_t begin = std::ssize(choices);
    for (size_t expert = 0; expert < byExpert.size(); ++expert)
      checkThat(come.begins[expert] == begins[expert], "an expert begins elsewhere");
    checkThat(come.dropped == world.dropped(rank), "another number of choices are dropped");
    checkThat(come.experts == nullptr, "experts of rows that nobody asked for");
    checkThat(come.rows == begin && come.begins[byExpert.size()] == begin,
              std::to_string(come.rows) + " rows come instead of " + std::to_string(begin));
    const int64_t* ofRank = come.counts;
    for (const std::vector<World::Choice>& ofExpert : byExpert)
      for (int source = 0; source < c.ranks(); ++source)
        checkThat(*ofRank++ == std::ranges::count(ofExpert, source, &World::Choice::source),
                  "another number of rows from a rank");
    if (c.weights != moecclRouteWeightsRows)
      return checkThat(come.weights == nullptr, "weights that nobody asked for");
    for (size_t row = 0; row < choices.size(); ++row)
      checkThat(choices[row].source < 0 || come.weights[row] == world.weight(choices[row]),
                "another weight of a row");
  };
  int64_t room = static_cast<int64_t>(choices.size());
  if (c.latency) {
    room = info.maxRows;
    checkThat(room == c.ranks() * c.maxTokens * std::min(c.choices, info.localExperts),
              "another bound of rows");
    const moecclRows_t none = pass.rows();
    checkThat(none.rows == -1 && none.begins == nullptr && none.counts == nullptr,
              "rows before a dispatch");
  } else {
    checkThat(info.maxRows == (c.maxRows > 0 ? c.maxRows : -1), "another bound of rows");
    checkThat(c.maxRows == 0 || room <= c.maxRows, "more rows than there is room for");
    requireCounts();
  }

  const Buffer tokens = buffer(tokensOf(world, rank));
  const auto most = static_cast<size_t>(room);
  const Buffer rows = buffer(Bytes(most * c.rowBytes(), 0xee));
  Bytes expectedRows;
  ok(moecclPassDispatch(pass.it, tokens.at(), rows.at(), stream));
  if (c.latency) requireCounts();
  std::vector<Bytes> all;
  for (int source = 0; source < c.ranks(); ++source)
    all.push_back(asSent(c, tokensOf(world, source)));
  for (const World::Choice& at : choices) {
    if (at.source < 0) {
      expectedRows.resize(expectedRows.size() + c.rowBytes(), 0);
      continue;
    }
    const auto from = all[at.source].begin() +
                      static_cast<std::ptrdiff_t>(static_cast<size_t>(at.token) * c.rowBytes());
    expectedRows.insert(expectedRows.end(), from, from + static_cast<std::ptrdiff_t>(c.rowBytes()));
  }
  expectedRows.resize(most * c.rowBytes(), 0xee);  // nothing behind them
  requireEqual(rows.get(), expectedRows, c.rowBytes(), "dispatch");

  const size_t outputBytes = static_cast<size_t>(world.tokens(rank)) * c.combinedBytes();
  Bytes results(most * c.combinedBytes(), 0xff);  // NaN where nobody may look
  for (size_t row = 0; row < choices.size(); ++row)
    for (int64_t i = 0; i < c.hidden && choices[row].source >= 0; ++i)
      put(results, row * static_cast<size_t>(c.hidden) + static_cast<size_t>(i),
          made(choices[row], world.shardOf(rank), i, c.combined), c.combined);
  const Buffer ofExperts = buffer(results), output = buffer(Bytes(outputBytes, 0xee)),
               unweighted = buffer(Bytes(outputBytes, 0xee));
  ok(moecclPassCombine(pass.it, ofExperts.at(), output.at(), stream));
  const bool travel = c.weights == moecclRouteWeightsRows;
  std::vector<float> ofRows(travel ? choices.size() : 0);
  for (size_t row = 0; row < ofRows.size(); ++row)
    ofRows[row] =
        choices[row].source < 0 ? std::nanf("") : ofRow(choices[row], world.shardOf(rank));
  const Buffer rowWeights = buffer(ofRows),
               returned = buffer(std::vector<float>(travel ? weights.size() : 0, -99));
  if (!c.latency)
    ok(moecclPassDispatchBackward(pass.it, ofExperts.at(), rowWeights.at<float>(), unweighted.at(),
                                  returned.at<float>(), stream));
  requireEqual(output.get(), expectedOutput(world, rank, c.weighs()), c.combinedBytes(), "combine");
  if (c.latency) return;
  requireEqual(unweighted.get(), expectedOutput(world, rank, false), c.combinedBytes(),
               "dispatch backward");
  if (travel)
    requireWeightGradients(world, rank, returned.get(),
                           [&](const World::Choice& at, int shard) { return ofRow(at, shard); });

  // What experts made is -3..3 for row and shard, and gradients are -3..3.
  const auto kept = [](const World::Choice& at, int shard, int64_t i) {
    return small(at.source * 100 + at.token, at.choice * 10 + shard, i);
  };
  // With 3.5 among them the others are exact in float8.
  const auto gradient = [&](int source, int token, int64_t i) {
    return c.wire != 0 && i % 128 == 0 ? 3.5f : small(source, token, i);
  };
  Bytes gradients(outputBytes), expectedGradients(results.size(), 0);
  for (int token = 0; token < world.tokens(rank); ++token)
    for (int64_t i = 0; i < c.hidden; ++i)
      put(gradients, static_cast<size_t>(token * c.hidden + i), gradient(rank, token, i),
          c.combined);
  for (size_t row = 0; row < choices.size(); ++row)
    for (int64_t i = 0; i < c.hidden && choices[row].source >= 0; ++i) {
      const size_t at = row * static_cast<size_t>(c.hidden) + static_cast<size_t>(i);
      put(results, at, kept(choices[row], world.shardOf(rank), i), c.combined);
      put(expectedGradients, at,
          gradient(choices[row].source, choices[row].token, i) *
              (c.weighs() ? world.weight(choices[row]) : 1),
          c.combined);
    }
  const Buffer outputGradients = buffer(gradients), keptRows = buffer(results),
               rowGradients = buffer(Bytes(results.size(), 0xee)),
               ofWeights = buffer(std::vector<float>(weights.size(), -99));
  ok(moecclPassCombineBackward(pass.it, outputGradients.at(), c.weighs() ? keptRows.at() : nullptr,
                               rowGradients.at(), c.weighs() ? ofWeights.at<float>() : nullptr,
                               stream));
  requireEqual(rowGradients.get(), expectedGradients, c.combinedBytes(), "combine backward");
  if (!c.weighs()) return;
  requireWeightGradients(world, rank, ofWeights.get(), [&](const World::Choice& at, int shard) {
    float sum = 0;
    for (int64_t element = 0; element < c.hidden; ++element)
      sum += gradient(rank, at.token, element) * kept(at, shard, element);
    return sum;
  });
}

}  // namespace moeccl::test
