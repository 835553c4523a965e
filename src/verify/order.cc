// Inside one rank: every block is written at most once, every promised output block is written, and
// whoever reads a block depends on its writer.
#include <algorithm>
#include <numeric>

#include "src/verify/job.h"

namespace moeccl::verification {
namespace {

constexpr std::int32_t kNobody = -1;

class OrderCheck {
 public:
  explicit OrderCheck(Job& job) : job_(job) {}

  void run(int rank) {
    rank_ = rank;
    plan_ = &job_.plans[rank];
    findWriters();
    for (int block = 0; block < job_.outputs[rank] && !job_.full(); ++block) checkWritten(block);
    ancestorsOf_ = -1;
    reader_.assign(static_cast<size_t>(job_.inputs[rank]), kNobody);
    for (size_t i = 0; i < plan_->ops.size() && !job_.full(); ++i) checkReads(static_cast<int>(i));
  }

 private:
  size_t cell(Buffer buffer, std::int32_t block) const {
    return static_cast<size_t>(block) + (buffer == Buffer::output ? 0 : job_.outputs[rank_]);
  }

  std::string alsoNames(int op) const {
    return "op " + std::to_string(op) + " (" + describe(*plan_, op) + ")";
  }

  void findWriters() {
    writer_.assign(job_.outputs[rank_] + plan_->scratch.size(), kNobody);
    for (size_t i = 0; i < plan_->ops.size() && !job_.full(); ++i) {
      const auto op = static_cast<std::int32_t>(i);
      for (Walk dst(plan_->dst(plan_->ops[i])); !dst.done(); dst.next()) {
        std::int32_t& writer = writer_[cell(dst.buffer(), dst.block())];
        if (writer == kNobody) {
          writer = op;
          continue;
        }
        job_.report(
            rank_, op,
            "writes " + blockName(dst.buffer(), dst.block()) + ", which " +
                (writer == op ? "it has already written" : alsoNames(writer) + " writes too"));
        break;
      }
    }
  }

  void checkWritten(int block) {
    const std::int32_t writer = writer_[cell(Buffer::output, block)];
    if (writer != kNobody) return;
    job_.expected(rank_, block, expected_);
    if (expected_.empty()) return;
    job_.report(rank_, -1,
                "never writes " + blockName(Buffer::output, block) + ", which must hold " +
                    payloadName(expected_[0]) + (expected_.size() > 1 ? " and others" : ""));
  }

  void checkReads(int op) {
    for (const Blocks& run : plan_->src(plan_->ops[op])) {
      if (run.buffer == Buffer::input) {
        if (job_.promise.readOnce) checkReadOnce(op, run);
        continue;
      }
      if (run.buffer == Buffer::output) job_.readsOutputs[rank_] = true;
      // A run may name one block over and over; once is enough to judge it.
      const int different = run.stride == 0 ? 1 : run.count;
      for (int i = 0; i < different; ++i) {
        const std::int32_t writer = writer_[cell(run.buffer, run[i])];
        if (writer != kNobody && waitsFor(op, writer)) continue;
        job_.report(rank_, op,
                    "reads " + blockName(run.buffer, run[i]) +
                        (writer == kNobody ? ", which nothing writes"
                                           : " but does not depend on " + alsoNames(writer) +
                                                 ", which writes it"));
        return;
      }
    }
  }

  void checkReadOnce(int op, const Blocks& run) {
    for (int i = 0; i < run.count; ++i) {
      std::int32_t& reader = reader_[static_cast<size_t>(run[i])];
      if (reader != kNobody) {
        job_.report(rank_, op,
                    "reads " + blockName(Buffer::input, run[i]) + ", which " + alsoNames(reader) +
                        " reads too; a result in place may overwrite it after the first read");
        return;
      }
      reader = op;
    }
  }

  bool waitsFor(int op, int earlier) {
    for (OpRange range : plan_->deps(plan_->ops[op]))
      if (range.first <= earlier && earlier < range.first + range.count) return true;
    if (ancestorsOf_ != op) findAncestors(op);
    return isAncestor_[earlier];
  }

  // Seldom needed: most readers name their writers.
  void findAncestors(int op) {
    ancestorsOf_ = op;
    isAncestor_.assign(plan_->ops.size(), false);
    std::vector<int> open{op};
    while (!open.empty()) {
      const int next = open.back();
      open.pop_back();
      for (OpRange range : plan_->deps(plan_->ops[next]))
        for (int d = range.first; d < range.first + range.count; ++d)
          if (!isAncestor_[d]) {
            isAncestor_[d] = true;
            open.push_back(d);
          }
    }
  }

  Job& job_;
  int rank_ = 0;
  const Plan* plan_ = nullptr;
  std::vector<std::int32_t> writer_;  // by block: outputs, then scratch
  std::vector<std::int32_t> reader_;  // by input block
  std::vector<Payload> expected_;
  int ancestorsOf_ = -1;
  std::vector<bool> isAncestor_;
};

}  // namespace

void checkOrder(Job& job) {
  job.readsOutputs.assign(static_cast<size_t>(job.ranks()), false);
  OrderCheck check(job);
  for (int rank = 0; rank < job.ranks() && !job.full(); ++rank) check.run(rank);
}

}  // namespace moeccl::verification
