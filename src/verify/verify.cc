// Runs the parts of the verifier one after another: shape, order, matching, then the three
// machines. Each group of parts runs only where those before found nothing wrong.
#include "src/verify/verify.h"

#include <stdexcept>
#include <utility>

#include "src/verify/job.h"

namespace moeccl {
namespace verification {

Job::Job(const Promise& promise, std::span<const Plan> plans, const VerifyLimits& limits)
    : promise(promise), plans(plans), limits(limits), pieces(plans[0].pieces) {
  firstOp.reserve(plans.size() + 1);
  firstOp.push_back(0);
  for (int rank = 0; rank < ranks(); ++rank) {
    inputs.push_back(promise.inputBlocks(rank) * pieces);
    outputs.push_back(promise.outputBlocks(rank) * pieces);
    firstOp.push_back(firstOp.back() + static_cast<std::int64_t>(plans[rank].ops.size()));
    rankOf.insert(rankOf.end(), plans[rank].ops.size(), rank);
  }
}

void Job::expected(int rank, int outputBlock, std::vector<Payload>& payloads) const {
  payloads.clear();
  promise.expected(rank, outputBlock / pieces, payloads);
  for (Payload& payload : payloads) payload.block = payload.block * pieces + outputBlock % pieces;
}

Payload Job::identity(Payload payload) const {
  if (!promise.identity) return payload;
  const Payload whole = promise.identity({payload.rank, payload.block / pieces});
  return {whole.rank, whole.block * pieces + payload.block % pieces};
}

std::string Job::name(int rank, int op) const {
  constexpr size_t kLongest = 100;
  std::string what = describe(plans[rank], op);
  if (what.size() > kLongest) what = what.substr(0, kLongest) + "...";
  return "rank " + std::to_string(rank) + " op " + std::to_string(op) + " (" + what + ")";
}

void Job::report(int rank, int op, const std::string& what) {
  if (full()) return;
  const std::string subject = op < 0 ? "rank " + std::to_string(rank) : name(rank, op);
  violations.push_back({rank, op, subject + " " + what});
}

std::string blockName(Buffer buffer, int block) { return describe(Blocks{buffer, block}); }

std::string payloadName(Payload payload) {
  return "block " + std::to_string(payload.block) + " of rank " + std::to_string(payload.rank);
}

}  // namespace verification

Promise promiseOf(const Contract& contract) {
  return {
      .ranks = contract.ranks,
      .inputBlocks = [contract](int rank) { return contract.inputBlocks(rank); },
      .outputBlocks = [contract](int rank) { return contract.outputBlocks(rank); },
      .expected =
          [contract](int rank, int outputBlock, std::vector<Payload>& payloads) {
            const std::vector<Payload> expected = contract.expected(rank, outputBlock);
            payloads.insert(payloads.end(), expected.begin(), expected.end());
          },
      .sums = contract.outputBlocks(contract.root) > 0 &&
              contract.expected(contract.root, 0).size() > 1,
      .sized = contract.collective == Collective::allToAllv,
      .ordered = contract.ordered(),
      .readOnce = contract.reducesInPlace(),
      .identity = [contract](Payload payload) { return contract.identity(payload); },
  };
}

std::vector<Violation> verify(const Promise& promise, std::span<const Plan> plans,
                              const VerifyLimits& limits) {
  if (plans.size() != static_cast<size_t>(promise.ranks))
    throw std::invalid_argument("verify: " + std::to_string(plans.size()) + " plans for " +
                                std::to_string(promise.ranks) + " ranks");
  verification::Job job(promise, plans, limits);
  checkShape(job);
  if (!job.violations.empty()) return std::move(job.violations);
  checkOrder(job);
  checkMatching(job);
  if (!job.violations.empty()) return std::move(job.violations);
  checkByDependencies(job);
  checkByStreams(job);
  if (job.violations.empty()) checkByLaunches(job);
  return std::move(job.violations);
}

std::vector<Violation> verify(const Contract& contract, std::span<const Plan> plans,
                              const VerifyLimits& limits) {
  return verify(promiseOf(contract), plans, limits);
}

}  // namespace moeccl
