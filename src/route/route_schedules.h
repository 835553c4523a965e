// The schedules that a route's passes run under, and what its passes share.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moeccl/moe.h"
#include "src/route/learning.h"
#include "src/route/pass_run.h"
#include "src/route/route_shape.h"
#include "src/route/schedule_work.h"

namespace moeccl {

// A schedule, and how rows go under it.
struct ScheduleChoice {
  moecclSchedule_t schedule;
  bool routed;

  bool operator==(const ScheduleChoice&) const = default;
};

// Why passes around the caller's experts cannot run so; null: they can.
const char* whyNotAround(moecclSchedule_t schedule, const moecclGridShape_t& grid, bool training);

class RouteSchedules {
 public:
  // What a layer of that config may run under by itself, on all ranks alike.
  using Candidates = std::function<std::vector<LayerModel::Candidate>(const moecclMoeConfig_t&)>;

  // Local. device: of a GPU's communicator; -1: host memory. The grid must outlive it. Throws
  // Error.
  RouteSchedules(moecclGrid_t grid, const RouteShape& shape, int device, Candidates candidates);
  ~RouteSchedules();

  // Passes may route tokens where mayRoute() says so. Then makeRoute() makes the route that they
  // use, before the first pass. It is collective over the grid.
  bool mayRoute() const;
  void makeRoute();

  // A Begin, with the largest number of tokens of all ranks, so that all choose alike. Returns what
  // the pass runs under, and whether it is timed. Throws Error.
  struct Begun {
    ScheduleChoice choice;
    std::optional<std::size_t> alternative;  // to be timed
  };
  Begun begin(std::int64_t tokens);
  void record(std::size_t alternative, Pass pass, const schedules::PassRun& run);

  // The shape of a layer with so many tokens under that choice.
  LayerShape shapeOf(std::int64_t tokens, const ScheduleChoice& choice) const;
  std::string explain() const;
  std::string save() const;
  // Local: all that can fail. What it returns does the rest, on all ranks or none.
  std::function<void()> restore(std::string_view text);

  const Groups& groups() const { return groups_; }
  GivenCompute& compute() { return *compute_; }
  // For orders on GPUs: behind the last call of any pass.
  Mark& passed() { return *passed_; }
  schedules::PassMemory& memory() { return memory_; }
  moecclRoute_t route() const { return route_.get(); }
  // While it lives the GPU, if there is one, is the thread's current device.
  class Device {
   public:
    explicit Device(RouteSchedules& of)
        : of_(of), before_(of.device_ < 0 ? -1 : of.compute_->exchangeDevice(of.device_)) {}
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    ~Device() {
      try {
        if (before_ >= 0) of_.compute_->exchangeDevice(before_);
      } catch (...) {  // it was current before
      }
    }

   private:
    RouteSchedules& of_;
    const int before_;
  };
  // When the last call of any pass came back.
  schedules::Clock::time_point returned{};

 private:
  moecclMoeConfig_t configOf(std::int64_t tokens) const;
  void requireRoomFor(std::int64_t tokens, const char* what) const;
  ScheduleChoice predicted(std::int64_t tokens) const;
  bool learns() const { return shape_.learn && shape_.schedule == moecclScheduleAuto; }
  std::shared_ptr<Learning> learningFor(std::int64_t tokens, const ScheduleChoice& first) const;
  void requireBegun() const;
  std::string explanation() const;
  void tell() const;

  const RouteShape shape_;
  const int device_;
  const Candidates candidates_;
  const Groups groups_;
  const std::unique_ptr<GivenCompute> compute_;
  std::unique_ptr<Mark> passed_;
  schedules::PassMemory memory_;
  schedules::Route route_;
  std::map<std::int64_t, ScheduleChoice> chosen_;  // by tokens, in eighths of a power of two
  std::int64_t last_ = -1;                         // tokens of the last Begin
  std::int64_t learned_ = -1;                      // tokens of what is learned
  std::shared_ptr<Learning> learning_;
  std::optional<ScheduleChoice> kept_;  // restored, and not learned from
};

}  // namespace moeccl
