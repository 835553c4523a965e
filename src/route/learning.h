// A layer that learns: what it measured goes round its ranks, and changes the schedule it runs
// under.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "src/model/layer_model.h"
#include "src/model/schedule_list.h"
#include "src/route/groups.h"
#include "src/route/learner.h"
#include "src/route/mover.h"

namespace moeccl {

class Learning {
 public:
  // `groups` must outlive it.
  Learning(const Groups& groups, Mover& mover, Learner learner, std::vector<LayerShape> shapes);

  // A step begins, on all ranks. prepare(alternative): whether the layer can run under it from now
  // on; it must not throw. Throws Error where the ranks' numbers did not come through.
  void begin(const std::function<bool(std::size_t)>& prepare);

  Learner& learner() { return learner_; }
  const LayerShape& shape(std::size_t alternative) const { return shapes_[alternative]; }
  // Learner::settle, and rank 0 says so.
  void settle(std::size_t alternative);
  // The same schedule whole; itself where there is none.
  std::size_t withoutChunks(std::size_t alternative) const;

 private:
  void exchange();
  void logChange() const;

  const Groups& groups_;
  Learner learner_;
  const std::vector<LayerShape> shapes_;  // by alternative
  std::vector<std::int64_t> mine_, sums_;
  std::unique_ptr<SideStream> stream_;  // destroyed first: it waits for what is under way
};

// A word that tells the layer's config and grid from others.
std::string wordOf(const moecclMoeConfig_t& config, const moecclGridShape_t& grid);

// Nothing where the layer has nothing to choose among. `first`: that it begins with.
std::unique_ptr<Learning> learningOf(const Groups& groups, Mover& mover,
                                     const moecclMoeConfig_t& config, const LayerShape& first,
                                     std::vector<LayerModel::Candidate> candidates);

// A choice as text, with nothing learned, and back. `word`: the layer's; requested: its schedule,
// or auto. Throws Error where the text is not of the layer, or asks for another schedule.
std::string savedChoice(const std::string& word, const std::string& name);
InChunks scheduleIn(std::string_view text, const std::string& word, moecclSchedule_t requested);

}  // namespace moeccl
