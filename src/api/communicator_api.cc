// The public functions that make communicators, tell about them and end them. A new communicator
// gets the profile that MOECCL_PROFILE names, or the links that the probe measures.
#include <algorithm>
#include <vector>

#include "moeccl/moeccl.h"
#include "moeccl/nccl.h"
#include "src/api/handles.h"
#include "src/base/environment.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/bootstrap/launched.h"
#include "src/bootstrap/rendezvous.h"
#include "src/comm/adopt_profile.h"
#include "src/comm/gpu_communicator.h"
#include "src/comm/release.h"
#include "src/probe/probe.h"

using moeccl::boundary;
using moeccl::communicatorOf;
using moeccl::lastErrorOf;
using moeccl::require;

namespace {

void requireRank(int nRanks, int rank) {
  if (nRanks < 1)
    throw moeccl::Error(moecclInvalidArgument, "nRanks is " + std::to_string(nRanks) +
                                                   "; a communicator has at least one rank");
  if (nRanks > 1 << moeccl::kSourceBits)
    throw moeccl::Error(moecclInvalidArgument,
                        "nRanks is " + std::to_string(nRanks) + "; at most " +
                            std::to_string(1 << moeccl::kSourceBits) + " are possible");
  if (rank < 0 || rank >= nRanks)
    throw moeccl::Error(moecclInvalidArgument, "rank is " + std::to_string(rank) +
                                                   ", outside [0, " + std::to_string(nRanks) + ")");
}

moecclComm_t handleOf(std::unique_ptr<moeccl::Communicator> communicator) {
  auto comm = std::make_unique<moecclComm>();
  moeccl::addHandle(moeccl::HandleKind::communicator, comm.get(),
                    std::shared_ptr<moeccl::Communicator>(std::move(communicator)));
  return comm.release();
}

// The handle of one that was made of ranks of `parent`.
moecclComm_t handleOf(std::unique_ptr<moeccl::Communicator> communicator,
                      moeccl::Communicator& parent) {
  communicator->chooseAs(parent);
  return handleOf(std::move(communicator));
}

// A new communicator, with the profile that MOECCL_PROFILE names, else with the links that are
// measured. Ranks agree on whether there is one.
moecclComm_t withProfile(std::unique_ptr<moeccl::Communicator> communicator) {
  moeccl::Communicator& made = *communicator;
  const std::string& profile = made.settings().profile;
  if (made.rank() == 0) moeccl::warnOfUnknownVariables();
  try {
    if (!profile.empty()) {
      moeccl::adoptProfile(made, [&] {
        return std::make_shared<const moeccl::Profile>(moeccl::loadProfile(profile));
      });
      if (made.rank() == 0)
        moeccl::log(moeccl::LogLevel::info, {made.rank(), made.ranks()}, "chooses by %s",
                    profile.c_str());
    } else if (auto probed = moeccl::probeLinks(made, typicalOf(made))) {
      made.setProfile(std::move(probed));
    } else if (made.rank() == 0) {
      moeccl::log(moeccl::LogLevel::info, {made.rank(), made.ranks()},
                  "no MOECCL_PROFILE: algorithms and schedules are chosen by the costs of typical "
                  "links; moeccl-fit measures those of a cluster");
    }
  } catch (...) {
    made.destroy();
    throw;
  }
  return handleOf(std::move(communicator));
}

// Ends a communicator by `end`. Why it had failed, if it had, stays with the thread.
moecclResult_t leave(const char* function, moecclComm_t comm, void (moeccl::Communicator::*end)()) {
  if (comm == nullptr) return moecclSuccess;
  const moeccl::KnownHandle known = moeccl::removeHandle(moeccl::HandleKind::communicator, comm);
  return boundary(function, nullptr, [&] {
    moeccl::requireLive(moeccl::HandleKind::communicator, known.state);
    const std::unique_ptr<moecclComm> freed(comm);
    moeccl::Communicator& communicator = *static_cast<moeccl::Communicator*>(known.object.get());
    if (const std::string why = communicator.failureText(); !why.empty())
      moeccl::report(function, moecclSuccess, ("the communicator had failed: " + why).c_str(),
                     nullptr);
    (communicator.*end)();
  });
}

std::vector<int> excludedRanks(const moeccl::Communicator& parent, const int* exclude,
                               int nExclude) {
  if (nExclude < 0 || nExclude > parent.ranks())
    throw moeccl::Error(moecclInvalidArgument, "nExclude is " + std::to_string(nExclude) +
                                                   "; it must be how many ranks are at exclude, 0 "
                                                   "to " +
                                                   std::to_string(parent.ranks()));
  require(exclude != nullptr || nExclude == 0, "exclude is NULL, and nExclude is not 0");
  std::vector<int> excluded(exclude, exclude + nExclude);
  for (int i = 0; i < nExclude; ++i) {
    const std::string which = "exclude[" + std::to_string(i) + "] is " + std::to_string(exclude[i]);
    if (exclude[i] < 0 || exclude[i] >= parent.ranks())
      throw moeccl::Error(moecclInvalidArgument,
                          which + ", outside [0, " + std::to_string(parent.ranks()) + ")");
    if (exclude[i] == parent.rank())
      throw moeccl::Error(moecclInvalidArgument,
                          which + ", the rank that calls; a rank that is excluded does not");
  }
  return excluded;
}

moecclComm_t create(moeccl::Oob& oob, const moeccl::Settings& settings) {
  return withProfile(settings.memory == moecclMemoryCuda
                         ? moeccl::GpuCommunicator::create(oob, settings)
                         : moeccl::HostCommunicator::create(oob, settings));
}

moecclResult_t initRank(const char* function, moecclComm_t* comm, int nRanks,
                        const moecclUniqueId& id, int rank, const moecclConfig_t* config) {
  return boundary(function, nullptr, [&] {
    require(comm != nullptr, "comm is NULL; pass where to store the communicator");
    requireRank(nRanks, rank);
    const moeccl::Settings settings = moeccl::readSettings(config);
    const auto oob = moeccl::join(id, nRanks, rank, settings.timeoutMs);
    *comm = create(*oob, settings);
    oob->finish();
  });
}

}  // namespace

moecclResult_t moecclGetUniqueId(moecclUniqueId* uniqueId) {
  return boundary("moecclGetUniqueId", nullptr, [&] {
    require(uniqueId != nullptr, "uniqueId is NULL; pass where to store it");
    *uniqueId = moeccl::makeUniqueId(moeccl::socketInterfaces());
  });
}

moecclResult_t moecclCommInitRank(moecclComm_t* comm, int nRanks, moecclUniqueId id, int rank) {
  return initRank("moecclCommInitRank", comm, nRanks, id, rank, nullptr);
}

moecclResult_t moecclCommInitRankConfig(moecclComm_t* comm, int nRanks, moecclUniqueId id, int rank,
                                        const moecclConfig_t* config) {
  return initRank("moecclCommInitRankConfig", comm, nRanks, id, rank, config);
}

moecclResult_t moecclCommInitEnv(moecclComm_t* comm, const moecclConfig_t* config) {
  return boundary("moecclCommInitEnv", nullptr, [&] {
    require(comm != nullptr, "comm is NULL; pass where to store the communicator");
    const moeccl::Settings settings = moeccl::readSettings(config);
    const moeccl::LaunchedRank launch = moeccl::findLaunch();
    requireRank(launch.ranks, launch.rank);
    const auto oob = moeccl::joinLaunched(launch, settings.interfaces, settings.timeoutMs);
    *comm = create(*oob, settings);
    oob->finish();
  });
}

moecclResult_t moecclCommInitOob(moecclComm_t* comm, int nRanks, int rank, const moecclOob_t* oob,
                                 const moecclConfig_t* config) {
  return boundary("moecclCommInitOob", nullptr, [&] {
    require(comm != nullptr, "comm is NULL; pass where to store the communicator");
    require(oob != nullptr, "oob is NULL; pass the launcher's all-gather");
    requireRank(nRanks, rank);
    moeccl::CallbackOob callback(*oob, nRanks, rank);
    *comm = create(callback, moeccl::readSettings(config));
  });
}

moecclResult_t moecclCommInitNccl(moecclComm_t* comm, ncclComm* ncclComm,
                                  const moecclConfig_t* config) {
  return boundary("moecclCommInitNccl", nullptr, [&] {
    require(comm != nullptr, "comm is NULL; pass where to store the communicator");
    require(ncclComm != nullptr, "ncclComm is NULL; pass a communicator of NCCL");
    moeccl::Settings settings = moeccl::readSettings(config);
    settings.memory = moecclMemoryCuda;
    *comm = withProfile(moeccl::GpuCommunicator::adopt(ncclComm, settings));
  });
}

moecclResult_t moecclCommSplit(moecclComm_t comm, int color, int key, moecclComm_t* newComm,
                               const moecclConfig_t* config) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclCommSplit", lastErrorOf(state), [&] {
    moeccl::Communicator& parent = communicatorOf(state);
    // The others wait for this rank, and must learn what is wrong.
    moeccl::Settings settings = parent.settings();
    const std::optional<moeccl::Error> wrong = moeccl::failureOf([&] {
      require(newComm != nullptr, "newComm is NULL; pass where to store the communicator");
      if (color < MOECCL_SPLIT_NOCOLOR)
        throw moeccl::Error(moecclInvalidArgument,
                            "color is " + std::to_string(color) +
                                "; it must be at least 0, or MOECCL_SPLIT_NOCOLOR");
      settings = moeccl::readSplitSettings(parent.settings(), config);
    });
    auto communicator = parent.split(color, key, settings, wrong);
    *newComm = communicator == nullptr ? nullptr : handleOf(std::move(communicator), parent);
  });
}

moecclResult_t moecclCommCreateSubset(moecclComm_t comm, const int* ranks, int nRanks,
                                      moecclComm_t* newComm, const moecclConfig_t* config) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclCommCreateSubset", lastErrorOf(state), [&] {
    moeccl::Communicator& parent = communicatorOf(state);
    require(newComm != nullptr, "newComm is NULL; pass where to store the communicator");
    if (nRanks < 1 || nRanks > parent.ranks())
      throw moeccl::Error(moecclInvalidArgument, "nRanks is " + std::to_string(nRanks) +
                                                     "; it must be 1 to " +
                                                     std::to_string(parent.ranks()));
    require(ranks != nullptr, "ranks is NULL; pass the ranks of comm that the subset has");
    const std::vector<int> members(ranks, ranks + nRanks);
    std::vector<bool> listed(static_cast<std::size_t>(parent.ranks()));
    for (int i = 0; i < nRanks; ++i) {
      const int member = members[static_cast<std::size_t>(i)];
      const std::string which = "ranks[" + std::to_string(i) + "] is " + std::to_string(member);
      if (member < 0 || member >= parent.ranks())
        throw moeccl::Error(moecclInvalidArgument,
                            which + ", outside [0, " + std::to_string(parent.ranks()) + ")");
      if (listed[static_cast<std::size_t>(member)])
        throw moeccl::Error(moecclInvalidArgument, which + ", which is listed twice");
      listed[static_cast<std::size_t>(member)] = true;
    }
    if (!listed[static_cast<std::size_t>(parent.rank())])
      throw moeccl::Error(moecclInvalidArgument, "ranks does not have rank " +
                                                     std::to_string(parent.rank()) +
                                                     ", which calls; only members call");
    *newComm = handleOf(
        parent.subset(members, moeccl::readSplitSettings(parent.settings(), config)), parent);
  });
}

moecclResult_t moecclCommShrink(moecclComm_t comm, const int* exclude, int nExclude,
                                moecclComm_t* newComm, const moecclConfig_t* config) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclCommShrink", lastErrorOf(state), [&] {
    moeccl::Communicator& parent = communicatorOf(state);
    // The others wait for this rank, and must learn what is wrong.
    std::vector<int> excluded;
    moeccl::Settings settings = parent.settings();
    const std::optional<moeccl::Error> wrong = moeccl::failureOf([&] {
      require(newComm != nullptr, "newComm is NULL; pass where to store the communicator");
      settings = moeccl::readSplitSettings(parent.settings(), config);
      excluded = excludedRanks(parent, exclude, nExclude);
    });
    *newComm = handleOf(parent.shrink(excluded, settings, wrong), parent);
  });
}

moecclResult_t moecclCommDestroy(moecclComm_t comm) {
  if (comm == nullptr) return moecclSuccess;
  const moecclResult_t unused = boundary(
      "moecclCommDestroy", nullptr, [&] { communicatorOf(moeccl::hold(comm)).requireUnused(); });
  if (unused != moecclSuccess) return unused;
  return leave("moecclCommDestroy", comm, &moeccl::Communicator::destroy);
}

moecclResult_t moecclCommRelease(moecclComm_t comm) {
  if (comm == nullptr) return moecclSuccess;
  const moecclResult_t unused = boundary("moecclCommRelease", nullptr, [&] {
    moeccl::Communicator& communicator = communicatorOf(moeccl::hold(comm));
    communicator.requireUnused();
    communicator.requireIdle();
  });
  if (unused != moecclSuccess) return unused;
  const moeccl::KnownHandle known = moeccl::removeHandle(moeccl::HandleKind::communicator, comm);
  return boundary("moecclCommRelease", nullptr, [&] {
    moeccl::requireLive(moeccl::HandleKind::communicator, known.state);
    const std::unique_ptr<moecclComm> freed(comm);
    moeccl::releaseLater(std::static_pointer_cast<moeccl::Communicator>(known.object));
  });
}

moecclResult_t moecclCommSetTimeout(moecclComm_t comm, int64_t timeoutMs) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclCommSetTimeout", lastErrorOf(state), [&] {
    moeccl::Communicator& communicator = communicatorOf(state);
    communicator.setTimeout(timeoutMs == 0 ? communicator.settings().timeoutMs
                                           : moeccl::timeoutOf(timeoutMs));
  });
}

moecclResult_t moecclCommAbort(moecclComm_t comm) {
  return leave("moecclCommAbort", comm, &moeccl::Communicator::abort);
}

// Another thread may be in a call of `comm`, so its last error is left alone.
moecclResult_t moecclCommRevoke(moecclComm_t comm, const char* text) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclCommRevoke", nullptr, [&] {
    communicatorOf(state).revoke(
        moeccl::clipped(text == nullptr ? "" : text, MOECCL_REVOKE_TEXT_BYTES));
  });
}

moecclResult_t moecclCommGetAsyncError(moecclComm_t comm, moecclResult_t* asyncError) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclCommGetAsyncError", lastErrorOf(state), [&] {
    moeccl::Communicator& communicator = communicatorOf(state);
    require(asyncError != nullptr, "asyncError is NULL; pass where to store it");
    *asyncError = communicator.asyncFailure();
    if (*asyncError != moecclSuccess)
      moeccl::report("moecclCommGetAsyncError", *asyncError, communicator.failureText().c_str(),
                     lastErrorOf(state));
  });
}

moecclResult_t moecclCommGetFailedRanks(moecclComm_t comm, int* ranks, int* nRanks) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclCommGetFailedRanks", lastErrorOf(state), [&] {
    moeccl::Communicator& communicator = communicatorOf(state);
    require(nRanks != nullptr,
            "nRanks is NULL; pass where the room at ranks is, and the number goes");
    if (*nRanks < 0)
      throw moeccl::Error(moecclInvalidArgument, "*nRanks is " + std::to_string(*nRanks) +
                                                     "; it must be the room at ranks, 0 or more");
    require(ranks != nullptr || *nRanks == 0, "ranks is NULL, and *nRanks says that there is room");
    const std::vector<int> failed = communicator.failedRanks();
    const std::size_t room = std::min(static_cast<std::size_t>(*nRanks), failed.size());
    std::copy_n(failed.begin(), room, ranks);
    *nRanks = static_cast<int>(failed.size());
  });
}

moecclResult_t moecclCommCount(moecclComm_t comm, int* nRanks) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclCommCount", lastErrorOf(state), [&] {
    const moeccl::Communicator& communicator = communicatorOf(state);
    require(nRanks != nullptr, "nRanks is NULL; pass where to store it");
    *nRanks = communicator.ranks();
  });
}

moecclResult_t moecclCommUserRank(moecclComm_t comm, int* rank) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclCommUserRank", lastErrorOf(state), [&] {
    const moeccl::Communicator& communicator = communicatorOf(state);
    require(rank != nullptr, "rank is NULL; pass where to store it");
    *rank = communicator.rank();
  });
}

moecclResult_t moecclCommNodeCount(moecclComm_t comm, int* nNodes) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclCommNodeCount", lastErrorOf(state), [&] {
    const moeccl::Communicator& communicator = communicatorOf(state);
    require(nNodes != nullptr, "nNodes is NULL; pass where to store it");
    *nNodes = communicator.topology().nodes();
  });
}

moecclResult_t moecclCommNodeOfRank(moecclComm_t comm, int rank, int* node) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclCommNodeOfRank", lastErrorOf(state), [&] {
    const moeccl::Communicator& communicator = communicatorOf(state);
    require(node != nullptr, "node is NULL; pass where to store it");
    requireRank(communicator.ranks(), rank);
    *node = communicator.topology().nodeOf(rank);
  });
}
