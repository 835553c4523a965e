// A layer under one of the schedules that it may run under, with all that its passes need.
#pragma once

#include <memory>
#include <optional>

#include "src/route/executor.h"
#include "src/route/layer_work.h"

namespace moeccl {

class Running {
 public:
  // `compute`: for this shape. timed: passes take the time of their phases. Throws Error. The
  // groups must outlive it.
  Running(const Groups& groups, const LayerShape& layerShape, std::shared_ptr<Compute> compute,
          bool timed);
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  Compute& compute() { return *compute_; }
  // Sets the route that passes use where they route tokens.
  void setRoute(moecclRoute_t route) { executor_.setRoute(route); }

  const LayerShape shape;

 private:
  const schedules::Schedule* backward() const { return backward_ ? &*backward_ : nullptr; }

  const std::shared_ptr<Compute> compute_;
  // GPUs are given all experts at once.
  const schedules::Schedule forward_;
  const std::optional<schedules::Schedule> backward_;  // of a layer for training
  const schedules::Sizes sizes_;
  schedules::PassMemory shared_;
  schedules::Executor executor_;
  schedules::PassMemory own_;

 public:
  LayerWork work;
  schedules::PassRun pass;  // of the layer's own gate and experts
};

}  // namespace moeccl
