// What the parts of the verifier share about one set of plans. The parts run in the order in which
// they are declared here; each may rely on what the earlier ones have proved.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "algorithms/plan.h"
#include "src/verify/verify.h"

namespace moeccl::verification {

struct Job {
  Job(const Promise& promise, std::span<const Plan> plans, const VerifyLimits& limits);

  const Promise& promise;
  std::span<const Plan> plans;
  const VerifyLimits& limits;
  const int pieces;                  // of the collective's blocks; the counts below are of pieces
  std::vector<int> inputs, outputs;  // number of blocks, by rank

  // Ops of all ranks are numbered through: op i of rank r is firstOp[r] + i.
  std::vector<std::int64_t> firstOp;
  std::vector<std::int32_t> rankOf;
  // By rank: whether an op of it reads output blocks. Filled by checkOrder.
  std::vector<bool> readsOutputs;
  // By sends and receives: the index of the other end among the ops of its rank. Filled by
  // checkMatching.
  std::vector<std::int32_t> partner;

  std::vector<Violation> violations;

  int ranks() const { return static_cast<int>(plans.size()); }
  std::int64_t ops() const { return firstOp.back(); }
  int indexOf(std::int64_t op) const { return static_cast<int>(op - firstOp[rankOf[op]]); }
  const Op& at(std::int64_t op) const { return plans[rankOf[op]].ops[indexOf(op)]; }
  // The other end of a send or a receive.
  std::int64_t partnerOf(std::int64_t op) const { return firstOp[at(op).peer] + partner[op]; }

  // The promise, for pieces. Replaces what is in `payloads`.
  void expected(int rank, int outputBlock, std::vector<Payload>& payloads) const;
  Payload identity(Payload payload) const;

  bool full() const { return static_cast<int>(violations.size()) >= limits.violations; }
  // "rank 3 op 5 (send in[1] to rank 2) <what>"; just "rank 3 <what>" where op is -1.
  void report(int rank, int op, const std::string& what);
  std::string name(int rank, int op) const;
  std::string name(std::int64_t op) const { return name(rankOf[op], indexOf(op)); }
};

void checkShape(Job& job);
void checkOrder(Job& job);
void checkMatching(Job& job);
// Both report a cyclic wait on their machine; the first also follows the data.
void checkByDependencies(Job& job);
void checkByStreams(Job& job);
// The plans are right on the streams already.
void checkByLaunches(Job& job);

std::string blockName(Buffer buffer, int block);
std::string payloadName(Payload payload);

// The blocks of a list, one by one.
class Walk {
 public:
  explicit Walk(std::span<const Blocks> runs) : runs_(runs) {}
  bool done() const { return run_ == runs_.size(); }
  Buffer buffer() const { return runs_[run_].buffer; }
  std::int32_t block() const { return runs_[run_][used_]; }
  void next() {
    if (++used_ == runs_[run_].count) {
      ++run_;
      used_ = 0;
    }
  }

 private:
  std::span<const Blocks> runs_;
  std::size_t run_ = 0;
  std::int32_t used_ = 0;
};

}  // namespace moeccl::verification
