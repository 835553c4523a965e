// Brings the unique id to all ranks, by a file or from MASTER_ADDR and MASTER_PORT. A thread says
// on stderr what a rank waits for.
#include "src/bootstrap/launched.h"

#include <netdb.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/bootstrap/clock.h"
#include "src/bootstrap/id_file.h"
#include "src/bootstrap/rendezvous.h"
#include "src/bootstrap/signals.h"
#include "src/bootstrap/socket.h"

namespace moeccl {
namespace {

constexpr std::chrono::seconds kSilent(2);
constexpr std::chrono::milliseconds kPause(20);

// Says once, after a while, what this rank waits for. Where no thread can be had it is silent.
class Teller {
 public:
  explicit Teller(const LaunchedRank& launch) : launch_(launch) {
    const SignalsBlocked blocked;
    try {
      thread_ = std::thread([this] { tell(); });
    } catch (const std::system_error&) {
    }
  }
  ~Teller() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  Teller(const Teller&) = delete;
  Teller& operator=(const Teller&) = delete;

  void waitsFor(const std::string& what) {
    const std::lock_guard lock(mutex_);
    what_ = what;
  }

 private:
  void tell() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kSilent, [this] { return over_; }))
      warn(launch_.text() + " waits for " + what_);
  }

  const LaunchedRank& launch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::string what_ = "the others to join";
  std::thread thread_;
};

[[noreturn]] void timedOut(const std::string& what, std::int64_t timeoutMs) {
  throw Error(moecclTimeout, stringf("%s in %lld ms: was rank 0 started?", what.c_str(),
                                     static_cast<long long>(timeoutMs)));
}

moecclUniqueId receiveId(const std::string& path, std::int64_t timeoutMs, Teller& teller) {
  const TimePoint deadline = afterMs(timeoutMs);
  for (;; std::this_thread::sleep_for(kPause)) {
    const FoundId found = readIdFile(path);
    if (found.id) return *found.id;
    if (isPast(deadline)) timedOut("rank 0 has not written MOECCL_ID_FILE " + path, timeoutMs);
    teller.waitsFor("rank 0 to write MOECCL_ID_FILE " + path +
                    (found.left ? ", which is still that of a run that has ended" : ""));
  }
}

// "" or why there are none.
std::string resolve(const std::string& host, std::vector<IpAddress>* addresses) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0)
    return ::gai_strerror(error);
  for (const addrinfo* it = found; it != nullptr; it = it->ai_next)
    if (it->ai_family == AF_INET || it->ai_family == AF_INET6)
      addresses->push_back(addressOf(it->ai_addr));
  ::freeaddrinfo(found);
  return addresses->empty() ? "it has no address" : "";
}

// A name may be known a little after the ranks have been started.
moecclUniqueId idAt(const LaunchedRank& launch, std::int64_t timeoutMs) {
  const TimePoint deadline = afterMs(timeoutMs);
  RendezvousId id{launch.port, launch.secret, {}};
  for (;; std::this_thread::sleep_for(kPause)) {
    const std::string problem = resolve(launch.host, &id.addresses);
    if (problem.empty()) return encodeId(id);
    if (isPast(deadline)) timedOut("MASTER_ADDR " + launch.host + ": " + problem, timeoutMs);
  }
}

}  // namespace

std::unique_ptr<Oob> joinLaunched(const LaunchedRank& launch, std::string_view interfaces,
                                  std::int64_t timeoutMs) {
  std::optional<Teller> teller;
  if (launch.ranks > 1) teller.emplace(launch);
  std::optional<IdFile> file;
  moecclUniqueId id;
  const bool atPort = launch.port != 0;
  if (launch.rank == 0) {
    // MASTER_ADDR says which of this host's addresses the others take.
    id = atPort ? makeUniqueId(launch.port, launch.secret) : makeUniqueId(interfaces);
    if (!launch.idFile.empty()) file.emplace(launch.idFile, id);
  } else if (atPort) {
    teller->waitsFor(stringf("rank 0 to answer at %s, port %u, or others to join",
                             launch.host.c_str(), launch.port));
    id = idAt(launch, timeoutMs);
  } else {
    id = receiveId(launch.idFile, timeoutMs, *teller);
    teller->waitsFor("the others to join");
  }
  return join(id, launch.ranks, launch.rank, timeoutMs, atPort);
}

}  // namespace moeccl
