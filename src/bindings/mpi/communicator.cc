#include "communicator.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <mutex>
#include <set>

// The shim's own calls are MPI's.
#define MPI_Allgather PMPI_Allgather
#define MPI_Comm_rank PMPI_Comm_rank
#define MPI_Comm_size PMPI_Comm_size
#include <moeccl/mpi.h>

namespace moeccl::mpi {
namespace {

// A communicator that makes fewer calls than these is not worth one of moeccl's.
constexpr int kCallsBefore = 3;
// Its trials must show a gain beyond their noise.
constexpr double kGain = 0.97;

std::mutex mutex;
std::set<Communicator*> living;

int discard(MPI_Comm, int, void* value, void*) {
  const auto* const gone = static_cast<Communicator*>(value);
  const std::lock_guard lock(mutex);
  if (living.erase(const_cast<Communicator*>(gone)) > 0) delete gone;
  return MPI_SUCCESS;
}

int keyval() {
  static const int once = [] {
    int made = MPI_KEYVAL_INVALID;
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, discard, &made, nullptr);
    return made;
  }();
  return once;
}

// What a peer waits for may be a message that this rank's MPI has not sent yet. (On MPI_COMM_SELF
// MPICH probes without progressing others.)
void progressMpi(void* comm) {
  int flag;
  PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, *static_cast<MPI_Comm*>(comm), &flag, MPI_STATUS_IGNORE);
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::array<std::array<std::atomic<std::int64_t>, 2>, kNames.size()> served;

}  // namespace

void Choice::took(double seconds, MPI_Comm comm) {
  if (decided_) return;
  // The first call of each makes connections.
  if (calls_ >= 2) seconds_[static_cast<std::size_t>(turn())].push_back(seconds);
  if (++calls_ < 2 * (settings().trials + 1)) return;
  double mine[2] = {median(seconds_[0]), median(seconds_[1])}, all[2];
  decided_ = true;
  moecclIsFaster_ = PMPI_Allreduce(mine, all, 2, MPI_DOUBLE, MPI_SUM, comm) == MPI_SUCCESS &&
                    all[0] < kGain * all[1];
}

Communicator* Communicator::known(MPI_Comm comm) {
  if (comm == MPI_COMM_NULL || keyval() == MPI_KEYVAL_INVALID) return nullptr;
  void* value = nullptr;
  int found = 0;
  PMPI_Comm_get_attr(comm, keyval(), &value, &found);
  return found != 0 ? static_cast<Communicator*>(value) : nullptr;
}

Communicator* Communicator::joined(MPI_Comm comm) {
  Communicator* const known = Communicator::known(comm);
  return known != nullptr && known->comm_ != nullptr ? known : nullptr;
}

Communicator* Communicator::of(MPI_Comm comm) {
  Communicator* known = Communicator::known(comm);
  if (known == nullptr) {
    int isInter = 0;
    if (comm == MPI_COMM_NULL || PMPI_Comm_test_inter(comm, &isInter) != MPI_SUCCESS ||
        isInter != 0)
      return nullptr;
    known = new Communicator;
    PMPI_Comm_size(comm, &known->ranks_);
    known->usable_ = known->ranks_ > 1;
    {
      const std::lock_guard lock(mutex);
      living.insert(known);
    }
    PMPI_Comm_set_attr(comm, keyval(), known);
  }
  if (known->usable_ && known->comm_ == nullptr && ++known->calls_ > kCallsBefore)
    known->join(comm);
  return known->comm_ != nullptr ? known : nullptr;
}

void Communicator::join(MPI_Comm comm) {
  handle_ = comm;
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.timeoutMs = -1;  // as MPI waits
  config.idle = progressMpi;
  config.idleContext = &handle_;
  moecclResult_t result = moecclCommInitMpi(&comm_, comm, &config);
  int level = MPI_THREAD_SINGLE;
  PMPI_Query_thread(&level);
  int joined[2] = {result == moecclSuccess ? 1 : 0, level}, all[2] = {};
  PMPI_Allreduce(joined, all, 2, MPI_INT, MPI_MIN, comm);
  if (all[0] == 0) {
    usable_ = false;
    int rank = 0;
    PMPI_Comm_rank(comm, &rank);
    if (result != moecclSuccess)
      std::fprintf(stderr, "moeccl-mpi: rank %d: %s; MPI goes on alone\n", rank,
                   moecclGetLastError(nullptr));
    moecclCommAbort(comm_);
    comm_ = nullptr;
    return;
  }
  const bool threads = settings().serves[static_cast<std::size_t>(Collective::iAllToAll)];
  if (all[1] < MPI_THREAD_MULTIPLE || !threads) return;
  config.idle = nullptr;
  config.progressThread = 1;
  result = moecclCommInitMpi(&threaded_, comm, &config);
  if (result == moecclSuccess) result = moecclStreamCreate(threaded_, &stream_);
  joined[0] = result == moecclSuccess ? 1 : 0;
  PMPI_Allreduce(joined, all, 1, MPI_INT, MPI_MIN, comm);
  if (all[0] != 0) return;
  moecclStreamDestroy(stream_);
  moecclCommAbort(threaded_);
  stream_ = nullptr;
  threaded_ = nullptr;
}

Communicator::~Communicator() {
  moecclStreamDestroy(stream_);
  moecclCommRelease(threaded_);
  moecclCommRelease(comm_);
}

void Communicator::releaseAll() {
  const std::lock_guard lock(mutex);
  for (const Communicator* each : living) delete each;
  living.clear();
}

Choice& Communicator::choiceOf(Collective collective, std::size_t bytes) {
  return choices_[{collective, std::bit_width(bytes)}];
}

int Communicator::fail(moecclResult_t result, MPI_Comm comm) const {
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  std::fprintf(stderr, "moeccl-mpi: rank %d: %s: %s\n", rank, moecclGetErrorString(result),
               moecclGetLastError(comm_));
  PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
  return MPI_ERR_OTHER;
}

void noteServed(Collective collective, bool byMoeccl) {
  served[static_cast<std::size_t>(collective)][byMoeccl ? 0 : 1].fetch_add(
      1, std::memory_order_relaxed);
}

void report(MPI_Comm world) {
  int rank = 0;
  PMPI_Comm_rank(world, &rank);
  if (rank != 0 || !settings().report) return;
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (const std::int64_t ours = served[i][0], theirs = served[i][1];
        ours + theirs > 0 && settings().serves[i])
      std::fprintf(stderr, "moeccl-mpi: %s: %lld of %lld calls served by moeccl\n", kNames[i],
                   static_cast<long long>(ours), static_cast<long long>(ours + theirs));
}

}  // namespace moeccl::mpi
