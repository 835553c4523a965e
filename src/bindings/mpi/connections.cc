// Opens moeccl's communicators for sets of ranks, and makes those of subsets out of them. After
// each step ranks agree by MPI on whether it succeeded everywhere.
#include "connections.h"

#include <algorithm>
#include <cstdio>
#include <list>
#include <mutex>
#include <numeric>
#include <random>
#include <utility>

#include "settings.h"
#include "waits.h"

// The shim's own calls are MPI's.
#define MPI_Allgather PMPI_Allgather
#define MPI_Comm_rank PMPI_Comm_rank
#define MPI_Comm_size PMPI_Comm_size
#include <moeccl/mpi.h>

namespace moeccl::mpi {
namespace {

// Opening takes tens of milliseconds, and descriptors; so many calls, or bytes, are worth it.
constexpr std::int64_t kCallsWorthIt = 30;
constexpr std::size_t kBytesWorthIt = std::size_t{16} << 20;
// Bounds for one process. The guide names the first.
constexpr std::ptrdiff_t kMostOpen = 4;
constexpr std::size_t kMostNoted = 64;
// Time for all ranks to connect, once they have agreed to.
constexpr std::int64_t kOpeningMs = 60'000;

std::mutex mutex;
std::list<Connections> noted;  // those that are open first, in the order in which they were opened

// What a peer waits for may be a message that this rank's MPI has not sent yet. Any communicator
// will do but MPI_COMM_SELF, on which MPICH probes without progressing others; this one stays.
void progressMpi(void*) {
  int flag;
  PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
  Wait::look();
}

MPI_Group groupOf(MPI_Comm comm) {
  MPI_Group group = MPI_GROUP_NULL;
  PMPI_Comm_group(comm, &group);
  return group;
}

// The places of comm's ranks in `group`; MPI_UNDEFINED: not there.
std::vector<int> placesIn(MPI_Group group, MPI_Comm comm) {
  int ranks = 0;
  PMPI_Comm_size(comm, &ranks);
  std::vector<int> all(static_cast<std::size_t>(ranks)), places(all.size());
  std::iota(all.begin(), all.end(), 0);
  MPI_Group mine = groupOf(comm);
  PMPI_Group_translate_ranks(mine, ranks, all.data(), group, places.data());
  PMPI_Group_free(&mine);
  return places;
}

bool allSucceeded(MPI_Comm comm, bool mine) {
  int one = mine ? 1 : 0, all = 0;
  return PMPI_Allreduce(&one, &all, 1, MPI_INT, MPI_MIN, comm) == MPI_SUCCESS && all != 0;
}

// A number that rank 0 has drawn; never 0.
std::int64_t drawn(MPI_Comm comm) {
  std::random_device random;
  std::int64_t number = (std::int64_t{random()} << 31 ^ std::int64_t{random()}) | 1;
  PMPI_Bcast(&number, 1, MPI_INT64_T, 0, comm);
  return number;
}

void tell(MPI_Comm comm, const char* library) {
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  std::fprintf(stderr, "moeccl-mpi: rank %d: %s; MPI goes on alone\n", rank, library);
}

// A communicator of those ranks of `whole` that are at `places`, which are comm's. Another thread
// may be making one of the same ranks, and on another rank the other way round: a number that came
// by MPI tells the two apart.
moecclComm_t subsetOf(moecclComm_t whole, const std::vector<int>& places, MPI_Comm comm) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.timeoutMs = -1;  // as MPI waits
  const std::int64_t number = drawn(comm);
  std::vector<std::int64_t> numbers(places.size());
  moecclComm_t made = nullptr;
  moecclResult_t result =
      moecclCommCreateSubset(whole, places.data(), static_cast<int>(places.size()), &made, &config);
  if (result == moecclSuccess)
    result = moecclAllGather(&number, numbers.data(), sizeof number, moecclUint8, made, nullptr);
  const bool good =
      result == moecclSuccess && std::ranges::count(numbers, number) == std::ssize(numbers);
  if (allSucceeded(comm, good)) return made;
  // This thread's: another one may be failing to make a subset of `whole` as well.
  if (result != moecclSuccess) tell(comm, moecclGetLastError(nullptr));
  moecclCommRelease(made);
  return nullptr;
}

}  // namespace

void Pair::release() {
  moecclStreamDestroy(stream);
  moecclCommRelease(threaded);
  moecclCommRelease(waiting);
  *this = {};
}

Connections* Connections::of(MPI_Comm comm) {
  MPI_Group group = groupOf(comm);
  const std::lock_guard lock(mutex);
  const auto known = std::ranges::find_if(noted, [&](const Connections& each) {
    int compared = MPI_UNEQUAL;
    PMPI_Group_compare(group, each.ranks_, &compared);
    return compared != MPI_UNEQUAL;
  });
  if (known == noted.end() && noted.size() < kMostNoted) return &noted.emplace_back(group);
  PMPI_Group_free(&group);
  return known == noted.end() ? nullptr : &*known;
}

Connections* Connections::around(MPI_Comm comm) {
  const std::lock_guard lock(mutex);
  const auto open = std::ranges::find_if(noted, [&](const Connections& each) {
    return each.id_ != 0 && std::ranges::count(placesIn(each.ranks_, comm), MPI_UNDEFINED) == 0;
  });
  return open == noted.end() ? nullptr : &*open;
}

void Connections::note(std::size_t bytes) {
  const std::lock_guard lock(mutex);
  ++calls_;
  bytes_ += bytes;
}

bool Connections::areWorthIt() const {
  const std::lock_guard lock(mutex);
  const auto open = std::ranges::count_if(noted, [](const auto& each) { return each.id_ != 0; });
  return !failed_ && open < kMostOpen &&
         (settings().trials == 0 || calls_ >= kCallsWorthIt || bytes_ >= kBytesWorthIt);
}

bool Connections::open(MPI_Comm comm, bool threads) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.timeoutMs = kOpeningMs;
  config.idle = progressMpi;
  Pair made;
  const moecclResult_t result = moecclCommInitMpi(&made.waiting, comm, &config);
  if (!allSucceeded(comm, result == moecclSuccess)) {
    if (result != moecclSuccess) tell(comm, moecclGetLastError(nullptr));
    moecclCommAbort(made.waiting);
    failed_ = true;
    return false;
  }
  if (threads) {
    config.idle = nullptr;
    config.progressThread = 1;
    const bool good = moecclCommInitMpi(&made.threaded, comm, &config) == moecclSuccess;
    if (!allSucceeded(comm, good)) {
      moecclCommAbort(made.threaded);
      made.threaded = nullptr;
    }
  }
  const std::int64_t id = drawn(comm);
  const std::lock_guard lock(mutex);
  // The ranks in the order of the communicator that the connections were made from.
  PMPI_Group_free(&ranks_);
  ranks_ = groupOf(comm);
  all_ = made;
  id_ = id;
  const auto self = std::ranges::find_if(noted, [this](const auto& each) { return &each == this; });
  noted.splice(std::ranges::find(noted, 0, &Connections::id_), noted, self);
  return true;
}

bool Connections::share(MPI_Comm comm, Pair* pair) const {
  const std::vector<int> places = placesIn(ranks_, comm);
  pair->waiting = subsetOf(all_.waiting, places, comm);
  if (pair->waiting == nullptr) return false;
  if (all_.threaded == nullptr) return true;
  pair->threaded = subsetOf(all_.threaded, places, comm);
  if (pair->threaded == nullptr) return true;
  const bool good = moecclStreamCreate(pair->threaded, &pair->stream) == moecclSuccess;
  if (allSucceeded(comm, good)) return true;
  moecclStreamDestroy(std::exchange(pair->stream, nullptr));
  moecclCommRelease(std::exchange(pair->threaded, nullptr));
  return true;
}

void Connections::release() {
  all_.release();
  PMPI_Group_free(&ranks_);
}

void Connections::releaseAll() {
  const std::lock_guard lock(mutex);
  for (Connections& each : noted) each.release();
  noted.clear();
}

}  // namespace moeccl::mpi
