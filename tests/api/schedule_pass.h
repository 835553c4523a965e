// Passes of routes with schedules against plain loops, on hosts and on GPUs, in numbers that every
// datatype holds exactly.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/api/route_world.h"

namespace moeccl::test {

struct Scheduled {
  moecclGridShape_t grid{1, 1, 1, moecclOrderEspEp};
  const char* schedule = "";
  moecclDataType_t datatype = moecclFloat32;
  double capacityFactor = 0;  // 0: dropless
  int64_t capacityGroups = 0, minCapacity = 0;
  int experts = 8, choices = 2;
  bool weighs = true, training = true, learn = false;
  int64_t maxTokens = 0;
  int64_t tokens = 0;  // of each MP group

  int ranks() const { return grid.nEp * grid.nEsp; }
  int groups() const { return ranks() / grid.nMp; }
  moecclDataType_t weightType() const {
    return datatype == moecclFloat64 ? moecclFloat64 : moecclFloat32;
  }
};
std::string textOf(const Scheduled& c);

// Every schedule that a few grids have for training, dropless, with room for all and with drops,
// for no, one and more tokens.
std::vector<Scheduled> scheduledCases(std::span<const moecclDataType_t> datatypes);
// The schedules that training on that grid can have.
std::vector<const char*> schedulesOf(const Scheduled& c);

moecclRouteConfig_t configOf(const Scheduled& c);

// What an MP group brings to a pass, and what comes of it, by its own tokens alone.
struct Batch {
  Batch(const Scheduled& c, int group, int64_t howMany, unsigned draw);

  int64_t count;
  int64_t part;                           // tokens that each rank owns, padding included
  std::vector<double> tokens, gradients;  // [count][kHidden]
  std::vector<int32_t> experts;           // [count][choices]
  std::vector<double> weights;
  std::vector<bool> kept;  // choices that have a place
  std::vector<double> output, tokenGradients, weightGradients;
};

// A pass of one rank. Experts multiply by numbers of their own; what their shards return adds up to
// that. Functions throw what is wrong.
class SchedulePass {
 public:
  static constexpr int64_t kHidden = 8;

  // Begins it: `tokens` of each MP group.
  SchedulePass(const Scheduled& c, moecclComm_t comm, moecclRoute_t route, int rank,
               const std::vector<int64_t>& tokens, unsigned draw, Memory& memory,
               moecclStream_t stream);
  ~SchedulePass();
  SchedulePass(const SchedulePass&) = delete;
  SchedulePass& operator=(const SchedulePass&) = delete;

  moecclRoutePass_t get() const { return pass_; }
  const moecclRows_t& rows() const { return rows_; }
  void forward();
  void backward();
  void both() {
    forward();
    backward();
  }

 private:
  struct At {
    int group;
    int64_t token;
  };
  using Token = std::array<double, kHidden>;

  const Batch& own() const { return batches_[static_cast<size_t>(rank_ / c_.grid.nMp)]; }
  int expertBegin() const;
  double factor(int expert) const;
  // The choice that a row of an expert is of.
  std::pair<const Batch*, size_t> choiceOf(int expert, const At& at) const;
  void begin(moecclRoute_t route);
  int copies() const;
  // Rows of an expert that are tokens, by MP group.
  std::vector<int64_t> keptOf(int expert) const;
  void checkCounts() const;
  void findTokens(const std::vector<double>& rows);
  // What the rank's experts make of rows or gradients. Places without a token: what counts for
  // nothing.
  std::vector<double> ofExperts(const std::vector<double>& rows) const;
  std::vector<double> read(const Buffer& buffer, moecclDataType_t datatype) const;
  Buffer filled(const std::vector<double>& values) const;
  void ok(moecclResult_t result) const { check(result, comm_); }

  const Scheduled c_;
  const moecclComm_t comm_;
  const int rank_, position_, shard_;
  Memory& memory_;
  const moecclStream_t stream_;
  std::vector<Batch> batches_;  // by MP group
  std::map<Token, At> tokens_;
  std::vector<At> at_;  // of each row; token -1: none
  std::vector<double> results_;
  moecclRoutePass_t pass_ = nullptr;
  moecclRows_t rows_ = MOECCL_ROWS_INITIALIZER;
};

// One rank's part: a route, several passes of it in flight, calls repeated, and the route destroyed
// before its last pass ends.
void exercise(const Scheduled& c, moecclComm_t comm, moecclGrid_t grid, int rank, Memory& memory,
              moecclStream_t stream);
// Passes with another number of tokens of each MP group each time.
void exerciseDrawn(const Scheduled& c, moecclComm_t comm, moecclGrid_t grid, int rank, int passes,
                   Memory& memory, moecclStream_t stream);

}  // namespace moeccl::test
