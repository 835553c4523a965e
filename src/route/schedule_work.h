// What a pass of a route does on its rank under a schedule: its callers have chosen.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/reduce.h"
#include "src/route/row_work.h"

namespace moeccl {

// What the tokens of a batch, or of a part of one, chose: [tokens][choices] each, on the host.
struct GivenChoices {
  std::int64_t tokens = 0;
  std::vector<std::int32_t> experts;  // -1: none
  std::vector<std::byte> weights;     // float64 where the elements are, else float32
};

class ScheduleWork final : public RowWork {
 public:
  // `compute` and `groups` must outlive this.
  ScheduleWork(const Groups& groups, GivenCompute& compute, const LayerShape& shape);

  // Before a pass. By ESP rank where the schedule gates batches of all of them, else the one that
  // this rank gates; groupTokens and groupSlots: of a capacity group of each, where the shape has
  // as many places as the largest needs.
  struct Given {
    GivenChoices choices;
    std::int64_t groupTokens, groupSlots;
  };
  // first, count: the tokens of its own batch that this rank owns.
  void set(std::vector<Given> given, std::int64_t first, std::int64_t count, moecclStream_t stream);
  // Choices of these that got no place.
  std::int64_t dropped() const { return dropped_; }
  // Whether it gates a part of its batch alone.
  bool gatesPart() const { return gatesPart_; }
  bool gatesBatches() const { return ofBatches(); }

  // weightGradients [tokens][choices] of the whole batch, as GivenChoices has weights, once rows
  // have come back in the backward pass.
  void takeWeightGradients(void* weightGradients, moecclStream_t stream);

  void gate(const schedules::Step& step) override;
  void setWeightGradients(const schedules::Table& routing, const float* from, void* to,
                          moecclStream_t stream) override;
  void combineBackward(const schedules::Step& step) override;

 private:
  // The choices of one router, with what follows from them.
  struct Tables {
    Given given;
    std::vector<std::int64_t> slots, used, begins, listed;
  };
  std::int64_t choicesOf(std::int64_t tokens) const { return tokens * shape().choices; }
  // Of the own batch, or of the part of it that this rank gates.
  std::int64_t ownChoices() const { return choicesOf(tables_[ownRouter()].given.choices.tokens); }
  moecclDataType_t weightType() const;
  std::size_t weightBytes() const { return sizeOf(weightType()); }

  GivenCompute& compute_;
  bool gatesPart_ = false, lists_ = false;
  bool addsGradients_ = false;  // ranks of the MP group have summands of those of weights
  std::int64_t dropped_ = 0;
  std::vector<std::unique_ptr<GivenRouter>> routers_;
  std::vector<Tables> tables_;  // by router
  std::vector<std::int64_t> counts_;
  // Gradients of the weights: as rows gave them, and as the caller wants them.
  Memory ofRows_, wide_;
  std::size_t ofRowsRoom_ = 0, wideRoom_ = 0;
  std::vector<std::size_t> sendCounts_, sendBegins_, recvCounts_, recvBegins_;
};

}  // namespace moeccl
