// Checks what each competitor makes of known blocks, out of place and in place, and times all of
// them in turns.
#include "perf/perf/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stdexcept>

#include "perf/common/pattern.h"
#include "perf/common/statistics.h"

namespace moeccl::perf {
namespace {

std::byte* blockAt(std::byte* buffer, int block, std::size_t bytes) {
  return buffer + static_cast<std::size_t>(block) * bytes;
}

// The fastest MPI competitor if there is one, else the first competitor; in the same place.
void chooseReferences(std::vector<Result>& results) {
  for (Result& result : results) {
    std::size_t best = results.size();
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i].inPlace != result.inPlace) continue;
      if (best == results.size() ||
          (results[i].competitor->isMpi() &&
           (!results[best].competitor->isMpi() ||
            spreadOf(results[i].times).median < spreadOf(results[best].times).median)))
        best = i;
    }
    result.reference = best;
  }
}

}  // namespace

Measurement::Buffers Measurement::buffers(bool inPlace, std::size_t block) {
  const MeasuredCollective& collective = *options_.collective;
  if (!inPlace) return {send_.data(), recv_.data()};
  const int own = collective.inPlaceBlock(job_.rank());
  if (collective.sendBlocks(world_) > collective.recvBlocks(world_))
    return {send_.data(), blockAt(send_.data(), own, block)};
  return {blockAt(recv_.data(), own, block), recv_.data()};
}

std::int64_t Measurement::check(Competitor& competitor, bool inPlace, std::size_t count,
                                const DataType& type) {
  const MeasuredCollective& collective = *options_.collective;
  const std::size_t block = count * type.bytes;
  const Elements elements{type.bytes, collective.sums};
  const auto [send, recv] = buffers(inPlace, block);
  Memory& memory = job_.memory();
  std::vector<std::byte> one(block);  // in the host's memory
  const int received = collective.toRoot && job_.rank() != 0 ? 0 : collective.recvBlocks(world_);
  std::int64_t wrong = 0;
  for (int i = 0; i < options_.checkIterations; ++i, ++checks_) {
    for (int b = 0; b < received; ++b) {
      poisonBlock(one, elements, collective.received(world_, job_.rank(), b), checks_);
      memory.put(blockAt(recv, b, block), one.data(), block);
    }
    for (int b = 0; b < collective.sendBlocks(world_); ++b) {
      fillBlock(one, elements, collective.sent(world_, job_.rank(), b), checks_);
      memory.put(blockAt(send, b, block), one.data(), block);
    }
    competitor.exchange(send, recv, count, type);
    memory.synchronize();
    competitor.barrier();
    competitor.settle(send, recv, count, type);
    for (int b = 0; b < received; ++b) {
      const BlockData payload = collective.received(world_, job_.rank(), b);
      poisonBlock(one, elements, payload, checks_);  // it may still hold what was sent
      memory.get(one.data(), blockAt(recv, b, block), block);
      wrong += countWrong(one, elements, payload, checks_);
    }
  }
  return job_.sum(wrong);
}

double Measurement::time(Competitor& competitor, bool inPlace, std::size_t count,
                         const DataType& type) {
  const auto [send, recv] = buffers(inPlace, count * type.bytes);
  competitor.barrier();
  for (int i = 0; i < options_.warmupIterations; ++i) competitor.exchange(send, recv, count, type);
  job_.memory().synchronize();
  // Else a rank whose last call was over early would count what others still needed for theirs.
  competitor.barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < options_.iterations; ++i) competitor.exchange(send, recv, count, type);
  job_.memory().synchronize();
  const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - begin;
  // MPI sends what it has not sent yet while it is called, not while another library is.
  competitor.barrier();
  return passed.count() / options_.iterations;
}

std::uint64_t Measurement::seedOf(const Job& job) {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return static_cast<std::uint64_t>(job.gather(std::vector<std::int64_t>{now})[0]);
}

std::vector<Result> Measurement::measure(std::uint64_t size, const DataType& type) {
  const MeasuredCollective& collective = *options_.collective;
  const auto sendBlocks = static_cast<std::size_t>(collective.sendBlocks(world_));
  const auto recvBlocks = static_cast<std::size_t>(collective.recvBlocks(world_));
  const std::size_t blocks = std::max(sendBlocks, recvBlocks);
  const std::size_t count = size / type.bytes / (options_.sizesOfBlocks ? 1 : blocks);
  std::size_t block = 0, total = 0;
  if (__builtin_mul_overflow(count, type.bytes, &block) ||
      __builtin_mul_overflow(block, blocks, &total) || total > PTRDIFF_MAX)
    throw std::runtime_error("blocks of " + std::to_string(size) +
                             " bytes for all ranks are more than there are addresses");
  send_.atLeast(block * sendBlocks);
  recv_.atLeast(block * recvBlocks);

  std::vector<Result> results;
  for (const auto& competitor : competitors_)
    for (const bool inPlace : {false, true})
      if (!inPlace || collective.inPlaceBlock != nullptr)
        results.push_back(
            {total, block, count, type.name, competitor.get(), inPlace, {}, -1, 0, 0, 0});

  if (options_.checkIterations > 0)
    for (Result& result : results)
      result.wrong = check(*result.competitor, result.inPlace, count, type);

  const std::vector<Turns> turns =
      takeTurns(results.size(), options_.repetitions, draws_, options_.average, job_.overRanks(),
                [&](std::size_t i) {
                  return std::vector{time(*results[i].competitor, results[i].inPlace, count, type)};
                });
  for (std::size_t i = 0; i < results.size(); ++i) {
    Result& result = results[i];
    for (const std::vector<double>& turn : turns[i].values) result.times.push_back(turn[0]);
    const double seconds = spreadOf(result.times).median * 1e-6;
    result.algorithmBandwidth = static_cast<double>(total) / 1e9 / seconds;
    result.busBandwidth = result.algorithmBandwidth * collective.busFactor(world_);
  }
  chooseReferences(results);
  return results;
}

}  // namespace moeccl::perf
