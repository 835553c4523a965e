// A pass under a schedule: its phases before the experts, and those behind them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/route/route_pass.h"
#include "src/route/route_schedules.h"

namespace moeccl {

class SchedulePass final : public RoutePass {
 public:
  // `schedules` must outlive this.
  SchedulePass(Communicator& communicator, const RouteShape& shape, const RoutePrices& prices,
               RouteSchedules& schedules);
  ~SchedulePass() override;

  bool tellsOthers() const override { return shape_.maxTokens <= 0; }
  void begin(Communicator& communicator, const Routing& routing, void* stream) override;
  bool isCounted() const override { return true; }
  std::int64_t roomForRows() const override { return begins_.back(); }
  const std::vector<std::int64_t>& expertBegins(Communicator&) override { return begins_; }
  std::int64_t dropped() const override;
  void rankCounts(Communicator& communicator, std::int64_t* counts) const override;
  std::int64_t tokens() const override { return tokens_; }
  const char* algorithmName() const override;

  void dispatch(Communicator& communicator, const void* tokens, void* rows, void* stream) override;
  void combine(Communicator& communicator, const void* rows, void* output, bool forward,
               void* stream) override;
  void combineBackward(Communicator& communicator, const void* outputGradients, const void* rows,
                       void* rowGradients, void* weightGradients, void* stream) override;

 private:
  struct Setup;

  std::int64_t agree(Communicator& communicator, const Routing& routing);
  void agreeInGroup(Communicator& communicator, std::int64_t tokens) const;
  void requireShared(int first, const std::vector<std::int64_t>& tokensOf) const;
  // World ranks.
  std::vector<int> mpRanks() const;
  std::vector<int> espRanks() const;
  // Sets up a pass of tokens_ tokens, where `largest` is the largest number of all ranks.
  void setUp(std::int64_t largest, const ScheduleChoice& choice);
  std::vector<ScheduleWork::Given> given(Communicator& communicator, const Routing& routing);
  GivenChoices choicesOf(const Routing& routing, std::int64_t first, std::int64_t count) const;
  std::vector<GivenChoices> gather(Communicator& communicator, const std::vector<int>& ranks,
                                   const GivenChoices& own, std::int64_t room) const;
  void gatherParts(Communicator& communicator, const Routing& routing, GivenChoices& all) const;
  std::vector<std::byte> packed(const GivenChoices& choices, std::int64_t room) const;
  GivenChoices unpacked(const std::vector<std::byte>& bytes) const;
  // Runs one of the pass's calls.
  template <typename Call>
  void run(Communicator& communicator, void* stream, Call call);
  using Part = schedules::PassRun::Part;
  void runPart(Pass pass, Part part, const schedules::PassRun::Callers& callers,
               moecclStream_t stream);
  // Where the schedule takes more tokens than the caller brings: in memory of the pass's own.
  const void* padded(const void* tokens, moecclStream_t stream);
  void* roomFor(void* tokens);
  void unpad(void* tokens, moecclStream_t stream);
  std::int64_t elements() const { return tokens_ * shape_.hidden; }

  RouteSchedules& schedules_;
  const std::shared_ptr<const PlanName> beginName_, sharedName_, gatherName_;
  std::int64_t tokens_ = 0;
  bool combined_ = false;  // since begin()
  std::optional<std::size_t> alternative_;
  schedules::PassMemory memory_;
  std::unique_ptr<Setup> setup_;
  std::vector<std::int64_t> begins_;
  Memory padding_;
  std::size_t paddingRoom_ = 0;
};

}  // namespace moeccl
