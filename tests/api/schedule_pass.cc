// Runs a pass and the plain loops, and compares all that they write.
#include "tests/api/schedule_pass.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>

#include "examples/moe_reference.h"

namespace moeccl::test {
namespace {

using moe_reference::decode;
using moe_reference::encode;

constexpr double kOfNothing = 77;  // what experts make of places that no token has
constexpr int64_t kHidden = SchedulePass::kHidden;

double scaleOf(int expert) { return 1 << expert % 3; }

// The choices of experts, before and behind those that rank `part` of the MP group owns.
std::vector<int32_t> withOthers(const Scheduled& c, const Batch& batch, int64_t part) {
  std::vector<int32_t> experts = batch.experts;
  for (size_t i = 0; i < experts.size(); ++i)
    if (static_cast<int64_t>(i) / c.choices / batch.part != part && experts[i] >= 0)
      experts[i] = (experts[i] + 1) % c.experts;
  return experts;
}

int64_t roundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Marks the choices that have a place: moe.h, capacity.
void place(const Scheduled& c, Batch& batch) {
  batch.kept.assign(batch.experts.size(), false);
  const bool dropless = c.capacityFactor == 0;
  const int64_t groups = dropless ? 1 : c.capacityGroups == 0 ? c.grid.nMp : c.capacityGroups;
  const int64_t unit = std::lcm(groups, static_cast<int64_t>(c.grid.nMp));
  const int64_t padded = roundUp(batch.count, unit);
  batch.part = std::max<int64_t>(1, padded / c.grid.nMp);
  const double wanted = c.choices * c.capacityFactor * static_cast<double>(batch.count) / c.experts;
  const int64_t places =
      std::max(static_cast<int64_t>(std::ceil(wanted * (1 - 1e-12))), groups * c.minCapacity);
  const int64_t slots = dropless ? batch.count : std::min(padded, roundUp(places, unit)) / groups;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t begin = group * (padded / groups);
    const int64_t end = std::min(batch.count, begin + padded / groups);
    std::vector<int64_t> taken(static_cast<size_t>(c.experts));
    for (int choice = 0; choice < c.choices; ++choice)
      for (int64_t token = begin; token < end; ++token) {
        const auto at = static_cast<size_t>(token * c.choices + choice);
        if (batch.experts[at] >= 0)
          batch.kept[at] = taken[static_cast<size_t>(batch.experts[at])]++ < slots;
      }
  }
}

}  // namespace

std::string textOf(const Scheduled& c) {
  std::ostringstream out;
  out << (*c.schedule ? c.schedule : "auto") << ", nMp " << c.grid.nMp << ", nEp " << c.grid.nEp
      << ", nEsp " << c.grid.nEsp << ", order " << c.grid.order << ", type " << c.datatype
      << ", capacity " << c.capacityFactor << " in " << c.capacityGroups << " groups, at least "
      << c.minCapacity << ", experts " << c.experts << ", k " << c.choices << ", tokens "
      << c.tokens << (c.weighs ? "" : ", no weights") << (c.training ? "" : ", inference")
      << (c.maxTokens > 0 ? ", bounded" : "");
  return out.str();
}

std::vector<const char*> schedulesOf(const Scheduled& c) {
  std::vector<const char*> all = {"S1"};
  if (c.capacityFactor > 0) all.push_back("S2");
  if (c.grid.nMp == 1) all.push_back("baseline");
  if (c.grid.nMp == c.ranks()) all.push_back("PPMoE");
  return all;
}

std::vector<Scheduled> scheduledCases(std::span<const moecclDataType_t> datatypes) {
  std::vector<Scheduled> all;
  for (const moecclGridShape_t& grid : {moecclGridShape_t{2, 2, 3, moecclOrderEspEp},
                                        {1, 3, 1, moecclOrderEspEp},
                                        {4, 2, 2, moecclOrderEpEsp},
                                        {2, 4, 1, moecclOrderEspEp},
                                        {1, 1, 1, moecclOrderEspEp}})
    for (const moecclDataType_t datatype : datatypes)
      for (const double capacityFactor : {0.0, 0.6, 32.0})
        for (const int64_t tokens : {0, 1, 23}) {
          Scheduled c{.grid = grid, .datatype = datatype, .capacityFactor = capacityFactor};
          c.experts = 4 * grid.nEp;
          c.tokens = tokens;
          c.weighs = capacityFactor < 1;
          for (const char* schedule : schedulesOf(c)) {
            c.schedule = schedule;
            all.push_back(c);
          }
        }
  return all;
}

moecclRouteConfig_t configOf(const Scheduled& c) {
  moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
  config.experts = c.experts;
  config.topK = c.choices;
  config.weights = c.weighs ? moecclRouteWeightsCombine : moecclRouteWeightsNone;
  config.datatype = c.datatype;
  config.hidden = kHidden;
  config.maxTokens = c.maxTokens;
  config.capacityFactor = c.capacityFactor;
  config.capacityGroups = c.capacityGroups;
  config.minCapacity = c.minCapacity;
  config.sharedTokens = c.grid.nMp > 1 ? 1 : 0;
  config.schedule = c.schedule;
  config.training = c.training ? 1 : 0;
  config.learn = c.learn ? 1 : 0;
  return config;
}

Batch::Batch(const Scheduled& c, int group, int64_t howMany, unsigned draw) : count(howMany) {
  std::mt19937 random(static_cast<unsigned>(group) * 100 + draw);
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  for (int64_t token = 0; token < count; ++token) {
    // All tokens of a pass differ, and from those of the passes before it; none is zero.
    auto number =
        static_cast<unsigned>(token) * 128 + static_cast<unsigned>(group) * 16 + draw % 16;
    for (int64_t i = 0; i + 1 < kHidden; ++i, number /= 5)
      tokens.push_back(static_cast<double>(number % 5) / 2 - 1);
    tokens.push_back(1);
    double product = 0;
    const auto at = static_cast<std::ptrdiff_t>(token * kHidden);
    for (int64_t i = 0; i < kHidden; ++i) {
      gradients.push_back(below(3) - 1);
      product += gradients.back() * tokens[static_cast<size_t>(at + i)];
    }
    std::vector<int32_t> chosen;
    while (chosen.size() < static_cast<size_t>(c.choices)) {
      // The first two are chosen more often than others, and a quarter of the choices is not made.
      const int expert = below(4) == 0 ? -1 : below(2) == 0 ? below(2) : below(c.experts);
      if (expert < 0 || std::ranges::count(chosen, expert) == 0) chosen.push_back(expert);
    }
    for (const int32_t expert : chosen) {
      experts.push_back(expert);
      weights.push_back(c.weighs ? (below(2) + 1) / 4.0 : 1);
      weightGradients.push_back(expert < 0 ? 0 : scaleOf(expert) * product);
    }
  }
  place(c, *this);
  for (int64_t token = 0; token < count; ++token) {
    double whole = 0;
    for (int choice = 0; choice < c.choices; ++choice) {
      const auto at = static_cast<size_t>(token * c.choices + choice);
      if (kept[at])
        whole += weights[at] * scaleOf(experts[at]);
      else
        weightGradients[at] = 0;
    }
    for (int64_t i = token * kHidden; i < (token + 1) * kHidden; ++i) {
      output.push_back(whole * tokens[static_cast<size_t>(i)]);
      tokenGradients.push_back(whole * gradients[static_cast<size_t>(i)]);
    }
  }
}

SchedulePass::SchedulePass(const Scheduled& c, moecclComm_t comm, moecclRoute_t route, int rank,
                           const std::vector<int64_t>& tokens, unsigned draw, Memory& memory,
                           moecclStream_t stream)
    : c_(c),
      comm_(comm),
      rank_(rank),
      position_(c.grid.order == moecclOrderEspEp ? rank / c.grid.nEsp : rank % c.grid.nEp),
      shard_(c.grid.order == moecclOrderEspEp ? rank % c.grid.nEsp : rank / c.grid.nEp),
      memory_(memory),
      stream_(stream) {
  for (int group = 0; group < c.groups(); ++group) {
    batches_.emplace_back(c, group, tokens[static_cast<size_t>(group)], draw);
    for (int64_t token = 0; token < batches_.back().count; ++token) {
      Token content;
      std::copy_n(batches_.back().tokens.begin() + static_cast<std::ptrdiff_t>(token * kHidden),
                  kHidden, content.begin());
      checkThat(tokens_.emplace(content, At{group, token}).second, "two tokens are the same");
    }
  }
  begin(route);
}

SchedulePass::~SchedulePass() { moecclPassEnd(pass_); }

int SchedulePass::expertBegin() const { return position_ * (c_.experts / c_.grid.nEp); }

double SchedulePass::factor(int expert) const {
  return shard_ == 0 ? scaleOf(expert) + c_.grid.nEsp - 1 : -1;
}

std::pair<const Batch*, size_t> SchedulePass::choiceOf(int expert, const At& at) const {
  const Batch& batch = batches_[static_cast<size_t>(at.group)];
  for (auto i = static_cast<size_t>(at.token * c_.choices);
       i < static_cast<size_t>((at.token + 1) * c_.choices); ++i)
    if (batch.experts[i] == expert && batch.kept[i]) return {&batch, i};
  throw std::runtime_error("an expert has a token that did not choose it, or was dropped");
}

Buffer SchedulePass::filled(const std::vector<double>& values) const {
  return {memory_, stream_, encode(c_.datatype, values)};
}

std::vector<double> SchedulePass::read(const Buffer& buffer, moecclDataType_t datatype) const {
  const Bytes bytes = buffer.get();
  moe_reference::Elements elements(bytes.size());
  std::ranges::transform(bytes, elements.begin(),
                         [](unsigned char byte) { return std::byte(byte); });
  return decode(datatype, elements);
}

void SchedulePass::begin(moecclRoute_t route) {
  const Batch& batch = own();
  const Buffer chosen(memory_, stream_, withOthers(c_, batch, rank_ % c_.grid.nMp)),
      weights(memory_, stream_, encode(c_.weightType(), batch.weights));
  moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
  routing.tokens = batch.count;
  routing.experts = chosen.at<int32_t>();
  routing.weights = c_.weighs ? weights.at() : nullptr;
  ok(moecclRouteBegin(route, &routing, stream_, &pass_));
  ok(moecclPassGetRows(pass_, &rows_));
  checkCounts();
}

// Experts of the baseline see each token so often.
int SchedulePass::copies() const {
  return rows_.algorithm == std::string("baseline") ? c_.grid.nMp : 1;
}

std::vector<int64_t> SchedulePass::keptOf(int expert) const {
  std::vector<int64_t> all;
  for (const Batch& batch : batches_) {
    all.push_back(0);
    for (size_t i = 0; i < batch.experts.size(); ++i)
      all.back() += batch.kept[i] && batch.experts[i] == expert ? copies() : 0;
  }
  return all;
}

void SchedulePass::checkCounts() const {
  const Batch& batch = own();
  int64_t dropped = 0;
  for (size_t i = 0; i < batch.experts.size(); ++i)
    if (static_cast<int64_t>(i) / c_.choices / batch.part == rank_ % c_.grid.nMp)
      dropped += batch.experts[i] >= 0 && !batch.kept[i] ? 1 : 0;
  checkThat(rows_.dropped == dropped, std::to_string(rows_.dropped) +
                                          " choices dropped instead of " + std::to_string(dropped));
  const std::string named = c_.schedule;
  checkThat(named.empty() || named == "auto" || rows_.algorithm == named,
            std::string("brought by ") + rows_.algorithm);
  checkThat(rows_.weights == nullptr && rows_.deviceBegins == nullptr, "what a schedule has not");
  const int local = c_.experts / c_.grid.nEp;
  checkThat(rows_.begins[0] == 0 && rows_.begins[local] == rows_.rows, "rows begin elsewhere");
  for (int e = 0; e < local; ++e) {
    const std::vector<int64_t> expected = keptOf(expertBegin() + e);
    std::vector<int64_t> got(expected.size());
    for (int rank = 0; rank < c_.ranks(); ++rank)
      got[static_cast<size_t>(rank / c_.grid.nMp)] += rows_.counts[e * c_.ranks() + rank];
    const int64_t rows = rows_.begins[e + 1] - rows_.begins[e];
    const auto sum = [](const std::vector<int64_t>& all) {
      return std::accumulate(all.begin(), all.end(), int64_t{0});
    };
    checkThat(sum(got) == rows, "counts are not those of all rows");
    checkThat(rows >= sum(expected), "an expert has no room for its choices");
    checkThat(c_.capacityFactor > 0 || got == expected,
              "other counts of expert " + std::to_string(expertBegin() + e));
  }
}

void SchedulePass::findTokens(const std::vector<double>& rows) {
  at_.clear();
  for (int e = 0; e < c_.experts / c_.grid.nEp; ++e) {
    std::map<std::pair<const Batch*, size_t>, int> seen;
    int64_t kept = 0;
    for (int64_t row = rows_.begins[e]; row < rows_.begins[e + 1]; ++row) {
      Token content;
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(row * kHidden), kHidden,
                  content.begin());
      if (c_.capacityFactor > 0 && content == Token{}) {
        at_.push_back({0, -1});
        continue;
      }
      const auto found = tokens_.find(content);
      checkThat(found != tokens_.end(), "a row that is no token");
      at_.push_back(found->second);
      ++kept;
      checkThat(++seen[choiceOf(expertBegin() + e, found->second)] <= copies(),
                "a token comes twice");
    }
    const std::vector<int64_t> expected = keptOf(expertBegin() + e);
    checkThat(kept == std::accumulate(expected.begin(), expected.end(), int64_t{0}),
              "an expert has too few tokens");
  }
}

std::vector<double> SchedulePass::ofExperts(const std::vector<double>& rows) const {
  std::vector<double> made(rows.size());
  for (int e = 0; e < c_.experts / c_.grid.nEp; ++e)
    for (int64_t i = rows_.begins[e] * kHidden; i < rows_.begins[e + 1] * kHidden; ++i)
      made[static_cast<size_t>(i)] = at_[static_cast<size_t>(i / kHidden)].token < 0
                                         ? kOfNothing
                                         : factor(expertBegin() + e) * rows[static_cast<size_t>(i)];
  return made;
}

void SchedulePass::forward() {
  const auto elements = static_cast<size_t>(rows_.rows * kHidden);
  const Buffer tokens = filled(own().tokens), rows = filled(std::vector<double>(elements, -9));
  ok(moecclPassDispatch(pass_, tokens.at(), rows.at(), stream_));
  const std::vector<double> came = read(rows, c_.datatype);
  findTokens(came);
  results_ = ofExperts(came);
  const Buffer results = filled(results_),
               output = filled(std::vector<double>(own().output.size(), -9));
  ok(moecclPassCombine(pass_, results.at(), output.at(), stream_));
  checkThat(read(output, c_.datatype) == own().output, "output");
}

void SchedulePass::backward() {
  const size_t choices = c_.weighs ? own().weights.size() : 0;
  const Buffer outputGradients = filled(own().gradients), results = filled(results_),
               rowGradients = filled(std::vector<double>(results_.size(), -9)),
               weightGradients(memory_, stream_,
                               encode(c_.weightType(), std::vector<double>(choices, -9)));
  ok(moecclPassCombineBackward(pass_, outputGradients.at(), c_.weighs ? results.at() : nullptr,
                               rowGradients.at(), weightGradients.at(), stream_));
  const std::vector<double> came = read(rowGradients, c_.datatype);
  for (int e = 0; e < c_.experts / c_.grid.nEp; ++e)
    for (int64_t i = rows_.begins[e] * kHidden; i < rows_.begins[e + 1] * kHidden; ++i) {
      const At& at = at_[static_cast<size_t>(i / kHidden)];
      if (at.token < 0) continue;
      const auto [batch, choice] = choiceOf(expertBegin() + e, at);
      checkThat(came[static_cast<size_t>(i)] ==
                    batch->weights[choice] *
                        batch->gradients[static_cast<size_t>(at.token * kHidden + i % kHidden)],
                "gradient of a row");
    }
  if (c_.weighs)
    checkThat(read(weightGradients, c_.weightType()) == own().weightGradients,
              "gradient of the weights");
  const Buffer made = filled(ofExperts(came)),
               tokenGradients = filled(std::vector<double>(own().tokenGradients.size(), -9));
  ok(moecclPassDispatchBackward(pass_, made.at(), nullptr, tokenGradients.at(), nullptr, stream_));
  checkThat(read(tokenGradients, c_.datatype) == own().tokenGradients, "gradient of the tokens");
}

namespace {

// Runs `body` with a route of that config, which it may destroy.
template <typename Body>
void onRoute(const Scheduled& c, moecclComm_t comm, moecclGrid_t grid, const Body& body) {
  const moecclRouteConfig_t config = configOf(c);
  moecclRoute_t route = nullptr;
  try {
    check(moecclRouteCreate(grid, &config, &route), comm);
    body(route);
  } catch (const std::exception& error) {
    moecclRouteDestroy(route);
    throw std::runtime_error(textOf(c) + ": " + error.what());
  }
  check(moecclRouteDestroy(route));
}

}  // namespace

void exercise(const Scheduled& c, moecclComm_t comm, moecclGrid_t grid, int rank, Memory& memory,
              moecclStream_t stream) {
  const std::vector<int64_t> tokens(static_cast<size_t>(c.groups()), c.tokens);
  onRoute(c, comm, grid, [&](moecclRoute_t& route) {
    const auto begun = [&](unsigned draw) {
      return std::make_unique<SchedulePass>(c, comm, route, rank, tokens, draw, memory, stream);
    };
    const auto one = begun(0), other = begun(1);
    one->forward();
    other->both();
    one->forward();
    other->both();
    const auto third = begun(2);
    one->backward();
    if (rank % 2 == 1) {
      check(moecclRouteDestroy(route));
      route = nullptr;
    }
    third->both();
  });
}

void exerciseDrawn(const Scheduled& c, moecclComm_t comm, moecclGrid_t grid, int rank, int passes,
                   Memory& memory, moecclStream_t stream) {
  onRoute(c, comm, grid, [&](moecclRoute_t route) {
    std::mt19937 random(17);
    for (int i = 0; i < passes; ++i) {
      std::vector<int64_t> tokens;
      for (int group = 0; group < c.groups(); ++group) {
        const int64_t few[] = {0, 1, 2, static_cast<int64_t>(random() % 64)};
        tokens.push_back(few[random() % 4]);
      }
      // What is dropped of these does not depend on what others bring.
      if (i % 2 == 0) tokens[0] = 21;
      const unsigned draw = i % 2 == 0 ? 0 : random() % 16;
      SchedulePass pass(c, comm, route, rank, tokens, draw, memory, stream);
      pass.forward();
      if (c.training) pass.backward();
    }
  });
}

}  // namespace moeccl::test
