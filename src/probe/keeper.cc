// Describes the cluster of the job, looks for its links in the process and in the cache file, and
// fits and keeps new ones in both.
#include "src/probe/keeper.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "src/base/error.h"
#include "src/bootstrap/hardware.h"
#include "src/bootstrap/network.h"
#include "src/bootstrap/origin.h"
#include "src/exec/gpu.h"
#include "src/model/group_text.h"
#include "src/model/link_fit.h"
#include "src/probe/cache.h"
#include "src/probe/probe.h"

namespace moeccl {
namespace {

// The links that this process knows, by cluster.
struct Memory {
  std::mutex mutex;
  std::map<std::string, Known> known;
  static Memory& instance() {
    static Memory& memory = *new Memory;
    return memory;
  }
};

// The variables that choose between the ways that UCX and NCCL know.
std::string transportVariables() {
  std::vector<std::string> all;
  for (char** variable = environ; *variable != nullptr; ++variable)
    for (const std::string_view prefix : {"UCX_", "NCCL_"})
      if (std::string_view(*variable).starts_with(prefix)) all.emplace_back(*variable);
  std::ranges::sort(all);
  std::string text;
  for (const std::string& each : all) text += each + ' ';
  return text;
}

}  // namespace

std::shared_ptr<Profile> profileOf(const Fingerprint& mine, const Known& known) {
  auto profile = std::make_shared<Profile>();
  profile->fingerprint = mine;
  profile->fingerprint.processorsPerNode = known.processors;
  profile->links = known.fit;
  return profile;
}

Keeper::Keeper(const Communicator& communicator, Fingerprint& mine)
    : mine_(mine), source_{communicator.rank(), communicator.ranks()}, folder_(cacheFolder()) {
  const Hardware hardware = describeHardware();
  mine_.processor = hardware.processor;
  if (const auto device = communicator.device())
    mine_.processor += (mine_.processor.empty() ? "" : ", ") + device->gpu->model(device->number);
  mine_.processorsPerNode = hardware.processors;
  const std::string process = processName();  // "host:1234"
  for (const std::string& part :
       {process.substr(0, process.rfind(':')), textOf(communicator.topology()), mine_.transport,
        mine_.processor, std::to_string(mine_.processorsPerNode), mine_.library,
        describeNetwork(communicator.settings().interfaces),
        std::to_string(communicator.settings().socketsPerPeer), transportVariables()})
    cluster_ += part + '\n';
}

Known Keeper::known() {
  Memory& memory = Memory::instance();
  const std::lock_guard lock(memory.mutex);
  if (const auto found = memory.known.find(cluster_); found != memory.known.end())
    return found->second;
  std::string why;
  const auto kept = loadProbed(folder_, cluster_, mine_, &why);
  if (!why.empty())
    log(LogLevel::info, source_, "%s is measured anew: %s", probedFile(folder_, cluster_).c_str(),
        why.c_str());
  if (!kept) return {};
  log(LogLevel::info, source_, "links as measured before: %s",
      probedFile(folder_, cluster_).c_str());
  return memory.known[cluster_] = {1, mine_.processorsPerNode, *kept->links};
}

Known Keeper::fit(std::vector<Curve> curves, double copySeconds, Links typical, TimePoint begun) {
  const bool copied = copySeconds > 0;
  if (copied) typical.betaMemory = copySeconds;
  Profile measured;
  measured.fingerprint = mine_;
  std::size_t samples = 0;
  for (Curve& curve : curves) {
    samples += curve.samples.size();
    measured.add(std::move(curve.key), std::move(curve.samples));
  }
  const auto fit = fitLinks(
      measured, [begun] { return probeSecondsSince(begun) >= kProbeSeconds; }, typical,
      copied ? &Links::betaMemory : nullptr);
  if (!fit) return {};
  log(LogLevel::info, source_,
      "no MOECCL_PROFILE: links measured in %.0f ms by %zu samples (median error %.0f %%); "
      "moeccl-fit measures a cluster well",
      probeSecondsSince(begun) * 1e3, samples, fit->medianError * 100);
  const Known known{1, mine_.processorsPerNode, *fit};
  keep(known, samples);
  return known;
}

void Keeper::keep(const Known& known, std::size_t samples) {
  {
    Memory& memory = Memory::instance();
    const std::lock_guard lock(memory.mutex);
    memory.known[cluster_] = known;
  }
  if (folder_.empty()) return;
  if (!isWorthKeeping(known.fit, samples)) {
    log(LogLevel::info, source_, "links are not kept: too little was measured, or disturbed");
    return;
  }
  const std::shared_ptr<Profile> profile = profileOf(mine_, known);
  const Origin now = origin();
  profile->date = now.date;
  profile->command = now.command;
  try {
    saveProbed(folder_, cluster_, *profile);
    log(LogLevel::info, source_, "links are kept for a week: %s",
        probedFile(folder_, cluster_).c_str());
  } catch (const Error& error) {
    log(LogLevel::info, source_, "links are not kept: %s", error.what());
  }
}

}  // namespace moeccl
