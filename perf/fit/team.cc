// Gathers what ranks have measured, together with their clocks and signals, so that all of them go
// on or end alike. Ranks that only wait sleep meanwhile.
#include "perf/fit/team.h"

#include <algorithm>
#include <csignal>
#include <thread>

#include "perf/common/statistics.h"

namespace moeccl::perf {
namespace {

volatile std::sig_atomic_t interrupted = 0;

// The second one ends the process, wherever it is.
extern "C" void interrupt(int signal) {
  interrupted = 1;
  std::signal(signal, SIG_DFL);
}

constexpr int kSignals[] = {SIGINT, SIGTERM};
constexpr std::chrono::microseconds kNap{200};

}  // namespace

Team::Team(const Job& job) : job_(job) {
  if (job.memory().kind() == moecclMemoryHost) {
    moecclStream_t stream = nullptr;
    require(moecclStreamCreate(job.comm(), &stream), "make a stream", job.comm());
    stream_.reset(stream);
  }
  for (const int signal : kSignals) std::signal(signal, interrupt);
}

Team::~Team() {
  for (const int signal : kSignals) std::signal(signal, SIG_DFL);
}

std::vector<double> Team::gather(const std::vector<double>& mine) {
  if (!asleep_ || !stream_) return job_.gather(mine);
  std::vector<double> all(mine.size() * static_cast<std::size_t>(job_.ranks()));
  require(moecclAllGather(mine.data(), all.data(), mine.size() * sizeof(double), moecclUint8,
                          job_.comm(), stream_.get()),
          "gather the results", job_.comm());
  moecclResult_t result = moecclInProgress;
  while ((result = moecclStreamQuery(stream_.get())) == moecclInProgress)
    std::this_thread::sleep_for(kNap);
  require(result, "gather the results", nullptr);
  return all;
}

std::vector<double> Team::slowest(const std::vector<double>& mine) {
  std::vector<double> values = mine;
  values.push_back(std::chrono::duration<double>(Clock::now() - begin_).count());
  values.push_back(interrupted);
  const std::vector<double> all = gather(values);
  elapsed_ = all[mine.size()];
  std::vector<double> largest = overRanks(all, values.size(), Average::kMax);
  if (largest.back() > 0) throw Interrupted();
  largest.resize(mine.size());
  return largest;
}

void Team::barrier() { gather({0}); }

}  // namespace moeccl::perf
