// Routes that learn, and what they save.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/api/choice_text.h"
#include "tests/api/schedule_pass.h"

namespace moeccl::test {
namespace {

// A case whose MP groups of two cross the ESP groups of three.
Scheduled learner() {
  Scheduled c{.grid = {2, 2, 3, moecclOrderEspEp}, .capacityFactor = 32, .learn = true};
  c.tokens = 23;
  return c;
}

// One rank, its routes, and passes of them.
class Rank {
 public:
  Rank(moecclComm_t comm, moecclGrid_t grid, int rank) : comm_(comm), grid_(grid), rank_(rank) {}
  ~Rank() {
    for (const moecclRoute_t route : routes_) moecclRouteDestroy(route);
  }
  moecclRoute_t route(const Scheduled& c) {
    const moecclRouteConfig_t config = configOf(c);
    routes_.push_back(nullptr);
    check(moecclRouteCreate(grid_, &config, &routes_.back()), comm_);
    return routes_.back();
  }
  std::unique_ptr<SchedulePass> pass(const Scheduled& c, moecclRoute_t route, unsigned draw = 0) {
    return std::make_unique<SchedulePass>(
        c, comm_, route, rank_, std::vector<int64_t>(static_cast<size_t>(c.groups()), c.tokens),
        draw, memory_, nullptr);
  }
  moecclComm_t comm() const { return comm_; }
  int number() const { return rank_; }

 private:
  const moecclComm_t comm_;
  const moecclGrid_t grid_;
  const int rank_;
  HostMemory memory_;
  std::vector<moecclRoute_t> routes_;
};

void onRanks(const std::function<void(Rank&)>& body) {
  const Scheduled c = learner();
  runJob({.ranks = c.ranks(), .nodes = {}, .algorithms = {}}, [&](moecclComm_t comm, int number) {
    moecclGrid_t grid = makeGrid(comm, c.grid);
    {
      Rank rank(comm, grid, number);
      body(rank);
    }
    check(moecclGridDestroy(grid), comm);
  });
}

// A pass goes on under the schedule that it began with, and all ranks change at the same Begin.
TEST(RouteLearning, ChangesWithPassesInFlight) {
  for (const bool inFlight : {false, true})
    onRanks([&](Rank& rank) {
      Scheduled c = learner();
      const moecclRoute_t route = rank.route(c);
      std::unique_ptr<SchedulePass> before;
      std::string other;
      std::vector<std::int32_t> changed;
      for (int i = 0; i < kSteps; ++i) {
        auto now = rank.pass(c, route, static_cast<unsigned>(i));
        if (i == 0) {
          other = othersOf(saved(route)).back();
          makeBelieve(route, other);
        }
        changed.push_back(now->rows().algorithm == other ? 1 : 0);
        if (before != nullptr) before->both();
        before = nullptr;
        (inFlight ? before : now).swap(now);
        if (now != nullptr) now->both();
      }
      before = nullptr;
      checkSame(rank.comm(), changed);
      for (int i = 0; i < kSteps; ++i)
        checkThat(changed[static_cast<size_t>(i)] == (i >= kChange ? 1 : 0),
                  "the change is at another step than " + std::to_string(kChange));
      // Other numbers of tokens run under what it has chosen.
      c.tokens = 5;
      const auto last = rank.pass(c, route);
      checkThat(last->rows().algorithm == other, "few tokens go another way");
      last->both();
    });
}

TEST(RouteLearning, ByItsOwnMeasures) {
  onRanks([&](Rank& rank) {
    const Scheduled c = learner();
    const moecclRoute_t route = rank.route(c);
    std::vector<std::int32_t> ran;
    for (int i = 0; i < 200; ++i) {
      const auto pass = rank.pass(c, route, static_cast<unsigned>(i % 16));
      ran.push_back(static_cast<std::int32_t>(pass->rows().algorithm[1]));
      pass->both();
    }
    checkSame(rank.comm(), ran);
    checkThat(saved(route).find("evidence ") != std::string::npos, "nothing was measured");
    const std::string told = textOf(moecclRouteExplain, route);
    checkThat(told.find("ms a step measured") != std::string::npos, told);
  });
}

// A checkpoint: open passes go on, and the next one runs under what was saved.
TEST(RouteChoices, AreRestored) {
  onRanks([&](Rank& rank) {
    Scheduled c = learner();
    const moecclRoute_t route = rank.route(c);
    const auto open = rank.pass(c, route);
    open->forward();
    const std::string other = othersOf(saved(route)).back();
    makeBelieve(route, other);
    const std::string text = under(saved(route), other);
    check(moecclRouteRestore(route, text.c_str()), rank.comm());
    const auto next = rank.pass(c, route, 1);
    checkThat(next->rows().algorithm == other, "not the schedule that was saved");
    next->forward();
    open->backward();
    next->backward();
    for (const bool learn : {true, false}) {
      c.learn = learn;
      // Before the first Begin too, whatever number of tokens that brings.
      for (const std::int64_t tokens : {learner().tokens, std::int64_t{3}}) {
        c.tokens = tokens;
        const moecclRoute_t again = rank.route(c);
        check(moecclRouteRestore(again, text.c_str()), rank.comm());
        rank.pass(c, again)->both();
        const std::string now = saved(again);
        checkThat(currentOf(now) == other, "not the schedule that was saved");
        checkThat((now.find("evidence " + other) != std::string::npos) == learn,
                  "what was learned: " + now);
        check(moecclRouteRestore(again, now.c_str()), rank.comm());
        checkThat(saved(again) == now, "the text does not come back");
        // A later Begin with another number of tokens changes nothing.
        c.tokens += 4;
        rank.pass(c, again)->both();
        check(moecclRouteRestore(again, text.c_str()), rank.comm());
        checkThat(currentOf(saved(again)) == other, "not the schedule that was saved");
      }
    }
  });
}

TEST(RouteChoices, ThatAreWrongAreRefusedByAllRanks) {
  onRanks([&](Rank& rank) {
    Scheduled c = learner();
    const moecclRoute_t route = rank.route(c);
    std::size_t bytes = 4;
    char few[4];
    for (const auto function : {moecclRouteSave, moecclRouteExplain})
      checkError(function(route, few, &bytes), moecclInvalidUsage, rank.comm(),
                 {"no pass has begun"});
    checkError(moecclRouteRestore(route, "moeccl-learned 1 layer ranks=4"), moecclInvalidArgument,
               rank.comm(), {"ranks=4", "tokens="});
    checkError(moecclRouteRestore(route, "moeccl-learned 1 layer tokens=9223372036854775807"),
               moecclInvalidArgument, rank.comm(), {"9223372036854775807", "address space"});
    const auto pass = rank.pass(c, route);
    const std::string text = saved(route);
    const auto refused = [&](const char* what, moecclResult_t result,
                             const std::vector<std::string>& parts) {
      checkError(moecclRouteRestore(route, what), result, rank.comm(), parts);
      checkThat(saved(route) == text, "it changed all the same");
    };
    refused(nullptr, moecclInvalidArgument, {"moecclRouteRestore", "text is NULL"});
    refused("", moecclInvalidArgument, {"it ends where"});
    std::string other = text;
    other.replace(other.find("experts="), 8, "experts=9");
    refused(other.c_str(), moecclInvalidArgument, {"experts=9"});
    // One rank alone, and ranks that are not alike.
    const bool one = rank.number() == 1;
    refused(one ? nullptr : text.c_str(), one ? moecclInvalidArgument : moecclRemoteError,
            {"text is NULL"});
    refused(one ? (text + "\n").c_str() : text.c_str(), moecclInvalidUsage,
            {"different texts", "rank 1"});
    pass->both();
    for (const auto function : {moecclRouteSave, moecclRouteExplain}) {
      bytes = sizeof few;
      check(function(route, few, &bytes));
      checkThat(bytes > 4 && few[3] == '\0', "what does not fit is cut");
      bytes = sizeof few;
      checkError(function(route, nullptr, &bytes), moecclInvalidArgument, rank.comm(), {"text"});
      checkError(function(route, few, nullptr), moecclInvalidArgument, rank.comm(), {"bytes"});
      checkError(function(nullptr, few, &bytes), moecclInvalidArgument, nullptr, {"route"});
    }
    checkError(moecclRouteRestore(nullptr, ""), moecclInvalidArgument, nullptr, {"route"});
    c.schedule = "S2";
    const moecclRoute_t named = rank.route(c);
    const auto its = rank.pass(c, named);
    checkError(moecclRouteRestore(named, under(saved(named), "S1").c_str()), moecclInvalidUsage,
               rank.comm(), {"S1", "config.schedule", "S2"});
  });
}

}  // namespace
}  // namespace moeccl::test
