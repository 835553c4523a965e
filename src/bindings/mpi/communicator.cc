// Decides by MPI_Allreduce, at the fourth call and whenever calls have doubled, whether a
// communicator of MPI's gets one of moeccl's. Timed trials then choose between moeccl and MPI, and
// the report is printed here.
#include "communicator.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace moeccl::mpi {
namespace {

// The first call that moeccl may serve. Ranks agree about it with this one, and with each whose
// number is twice that of the one before.
constexpr unsigned kFirstServed = 4;
// Communicators at once. Each has plans, and a number of 14 bits that is spent if it fails.
constexpr int kMostServed = 256;
// Time for others to learn that this rank has been refused a call, or to be refused the same.
constexpr std::int64_t kPatienceMs = 1000;
// Its trials must show a gain beyond their noise.
constexpr double kGain = 0.97;

std::mutex mutex;
std::set<Communicator*> living;
std::atomic<int> servedNow = 0;

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

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::array<std::array<std::atomic<std::int64_t>, 2>, kNames.size()> served;
std::array<std::atomic<std::int64_t>, kNames.size()> floatSums;

// By how many times moeccl was as fast as MPI in the last trial, by collective and the bits of the
// number of bytes.
std::map<std::pair<Collective, int>, double> shown;
// Whether a call could have been moeccl's, whether ranks began to connect for such calls, and
// whether they succeeded.
std::atomic<bool> everAsked = false, everOpened = false, everJoined = false;

std::string sizeText(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return std::to_string(bytes) + ' ' + kUnits[unit];
}

}  // namespace

double Choice::took(double seconds, MPI_Comm comm) {
  if (decided_) return 0;
  // The first call of each makes connections.
  if (calls_ >= 2) seconds_[static_cast<std::size_t>(turn())].push_back(seconds);
  if (++calls_ < 2 * (settings().trials + 1)) return 0;
  double mine[2] = {median(seconds_[0]), median(seconds_[1])}, all[2];
  decided_ = true;
  const bool summed = PMPI_Allreduce(mine, all, 2, MPI_DOUBLE, MPI_SUM, comm) == MPI_SUCCESS;
  moecclIsFaster_ = summed && all[0] < kGain * all[1];
  return summed && all[0] > 0 ? all[1] / all[0] : 0;
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
  return known != nullptr && known->comm() != nullptr ? known : nullptr;
}

Communicator* Communicator::of(MPI_Comm comm, std::size_t bytes) {
  Communicator* known = Communicator::known(comm);
  if (known == nullptr) {
    int isInter = 0;
    if (comm == MPI_COMM_NULL || PMPI_Comm_test_inter(comm, &isInter) != MPI_SUCCESS ||
        isInter != 0)
      return nullptr;
    known = new Communicator;
    PMPI_Comm_size(comm, &known->ranks_);
    known->usable_ = known->ranks_ > 1;
    if (known->usable_) known->own_ = Connections::of(comm);
    {
      const std::lock_guard lock(mutex);
      living.insert(known);
    }
    PMPI_Comm_set_attr(comm, keyval(), known);
  }
  if (known->usable_ && known->comm() == nullptr) known->mayJoin(comm, bytes);
  return known->comm() != nullptr ? known : nullptr;
}

void Communicator::mayJoin(MPI_Comm comm, std::size_t bytes) {
  everAsked = true;
  if (own_ != nullptr) own_->note(bytes);
  if (++calls_ < kFirstServed || !std::has_single_bit(calls_)) return;
  Connections* const shared = Connections::around(comm);
  int level = MPI_THREAD_SINGLE;
  PMPI_Query_thread(&level);
  const bool room = servedNow < kMostServed;
  const std::int64_t id = room && shared != nullptr ? shared->id() : 0;
  const bool opens = room && own_ != nullptr && own_->areWorthIt();
  const bool threads =
      level == MPI_THREAD_MULTIPLE && settings().serves[static_cast<int>(Collective::iAllToAll)];
  // Where threads use several communicators, ranks may know of different connections.
  std::int64_t mine[] = {id, -id, opens, threads}, least[std::size(mine)];
  if (PMPI_Allreduce(mine, least, std::size(mine), MPI_INT64_T, MPI_MIN, comm) != MPI_SUCCESS ||
      least[0] != -least[1])
    return;
  if (id != 0) {
    usable_ = shared->share(comm, &pair_);
  } else if (least[2] != 0) {
    everOpened = true;
    usable_ = own_->open(comm, least[3] != 0) && own_->share(comm, &pair_);
  }
  if (pair_.waiting == nullptr) return;
  ++servedNow;
  everJoined = true;
}

Communicator::~Communicator() {
  if (pair_.waiting != nullptr) --servedNow;
  // Nobody may have come.
  if (skips_ && moecclStreamQuery(stream()) == moecclInProgress)
    moecclCommRevoke(threaded(), "it ends after a call that MPI has refused on one rank");
  pair_.release();
}

void Communicator::releaseAll() {
  {
    const std::lock_guard lock(mutex);
    for (const Communicator* each : living) delete each;
    living.clear();
  }
  Connections::releaseAll();
}

Choice& Communicator::choiceOf(Collective collective, std::size_t bytes) {
  return choices_[{collective, std::bit_width(bytes)}];
}

std::string Communicator::lastError(moecclResult_t result) const {
  return std::string(moecclGetErrorString(result)) + ": " + moecclGetLastError(comm());
}

int Communicator::fail(int code, const std::string& why, MPI_Comm comm) const {
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  std::fprintf(stderr, "moeccl-mpi: rank %d: %s\n", rank, why.c_str());
  PMPI_Comm_call_errhandler(comm, code);
  return code;
}

// Ranks that do make the call find another one in its place.
void Communicator::tellRefusal(MPI_Comm comm) {
  moecclCommSetTimeout(pair_.waiting, kPatienceMs);
  const moecclResult_t result = moecclBarrier(pair_.waiting, nullptr);
  moecclCommSetTimeout(pair_.waiting, 0);
  if (result == moecclSuccess) return;
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  std::fprintf(stderr,
               "moeccl-mpi: rank %d: MPI has refused a call on this rank alone; later calls on its "
               "communicator fail\n",
               rank);
}

void Communicator::tellThreadedRefusal() {
  skips_ = true;
  moecclBarrier(threaded(), stream());
}

void noteServed(Collective collective, bool byMoeccl) {
  served[static_cast<std::size_t>(collective)][byMoeccl ? 0 : 1].fetch_add(
      1, std::memory_order_relaxed);
}

void noteFloatSum(Collective collective) {
  floatSums[static_cast<std::size_t>(collective)].fetch_add(1, std::memory_order_relaxed);
}

void noteTrial(Collective collective, std::size_t bytes, double timesAsFast) {
  const std::lock_guard lock(mutex);
  shown[{collective, std::bit_width(bytes)}] = timesAsFast;
}

namespace {

// "alltoall of 512 B to 1 KiB: moeccl is 1.43 times as fast as MPI"
void reportTrials(Collective collective) {
  const std::lock_guard lock(mutex);
  for (const auto& [what, timesAsFast] : shown) {
    if (what.first != collective) continue;
    std::string text = kNames[static_cast<std::size_t>(collective)];
    if (what.second > 0) {
      const std::uint64_t least = std::uint64_t{1} << (what.second - 1);
      text += " of " + sizeText(least) + " to " + sizeText(2 * least);
    }
    const bool faster = timesAsFast >= 1;
    std::fprintf(stderr, "moeccl-mpi: %s: %s is %.2f times as fast as %s", text.c_str(),
                 faster ? "moeccl" : "MPI", faster ? timesAsFast : 1 / timesAsFast,
                 faster ? "MPI" : "moeccl");
    const char* const why = !faster                   ? "; MPI serves them"
                            : timesAsFast * kGain > 1 ? ""
                                                      : ", 1.03 are needed; MPI serves them";
    std::fprintf(stderr, "%s\n", why);
  }
}

}  // namespace

void report(MPI_Comm world) {
  int rank = 0;
  PMPI_Comm_rank(world, &rank);
  if (rank != 0 || !settings().report) return;
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (const std::int64_t ours = served[i][0], theirs = served[i][1];
        ours + theirs > 0 && settings().serves[i]) {
      std::fprintf(stderr, "moeccl-mpi: %s: %lld of %lld calls served by moeccl\n", kNames[i],
                   static_cast<long long>(ours), static_cast<long long>(ours + theirs));
      if (const std::int64_t sums = floatSums[i]; sums > 0)
        std::fprintf(stderr,
                     "moeccl-mpi: %s: %lld sums or products of floats stayed with MPI; "
                     "MOECCL_MPI_FLOAT_SUMS=1 lets moeccl try them\n",
                     kNames[i], static_cast<long long>(sums));
      reportTrials(static_cast<Collective>(i));
    }
  // If opening has failed, the reason is told already.
  if (everAsked && !everOpened && !everJoined)
    std::fprintf(
        stderr,
        "moeccl-mpi: no connections were opened: too few calls of the same ranks for that\n");
}

}  // namespace moeccl::mpi
