// How control connections are made: the lower rank of two listens, the higher one dials.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "src/base/error.h"
#include "src/base/file_limit.h"
#include "src/base/text.h"
#include "src/bootstrap/acceptor.h"
#include "src/bootstrap/clock.h"
#include "src/bootstrap/interfaces.h"
#include "src/watch/control_dial.h"
#include "src/watch/mesh.h"

namespace moeccl {
namespace {

// Time between two looks whether the job still stands.
constexpr std::int64_t kLookMs = 50;
// How long a rank that cannot reach another waits to be told that that one has ended.
constexpr std::int64_t kHearMs = 500;
// The folder of Unix sockets. Ranks of a node share /dev/shm: that makes them one (host.cc).
constexpr char kFolder[] = "/dev/shm";
constexpr std::string_view kFiles = "/dev/shm/moeccl.";
constexpr std::size_t kNameLength = 32;  // of what follows, in hexadecimal digits
// Within this time a process has bound a socket for which it has made a file.
constexpr std::chrono::seconds kNewFile{1};

// What peers need to know of a rank. Plain bytes.
struct Contact {
  ProcessIdentity process;
  std::array<IpEndpoint, kFamilies> endpoints{};  // port 0: none
  char path[64] = {};                             // of a Unix socket, or '@...'; empty: none
};

// A Unix socket's name: a file that is gone with this or, where there can be none, a name in the
// network's namespace, which begins with '@'. There anybody may dial it, as with TCP, and must
// prove himself.
class SocketFile {
 public:
  SocketFile() = default;
  ~SocketFile() {
    if (path_.starts_with('/')) unlink(path_.c_str());
  }
  SocketFile(const SocketFile&) = delete;
  SocketFile& operator=(const SocketFile&) = delete;

  // Throws Error.
  Socket listen();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Whether a file is one that listen() makes, of this user's.
bool isOurs(const std::string& path) {
  const std::string_view name = std::string_view(path).substr(kFiles.size());
  struct stat file {};
  return name.size() == kNameLength &&
         name.find_first_not_of("0123456789abcdef") == std::string_view::npos &&
         lstat(path.c_str(), &file) == 0 && S_ISSOCK(file.st_mode) && file.st_uid == geteuid();
}

// Removes the files of processes that were killed before they could.
void removeLeftFiles() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder, ignored)) {
    const std::string& path = entry.path().native();
    if (!path.starts_with(kFiles) || !isOurs(path)) continue;
    // Nobody listens for datagrams: a living socket is of another type, and a file that was just
    // made may have none yet.
    const Socket probe(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = unixAddress(path);
    if (probe &&
        ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
        errno == ECONNREFUSED &&
        entry.last_write_time(ignored) < std::filesystem::file_time_type::clock::now() - kNewFile)
      unlink(path.c_str());
  }
}

Socket SocketFile::listen() {
  removeLeftFiles();
  std::uint64_t name[2];
  fillRandom(std::as_writable_bytes(std::span(name)));
  const std::string unique = stringf("%016llx%016llx", static_cast<unsigned long long>(name[0]),
                                     static_cast<unsigned long long>(name[1]));
  std::string path = std::string(kFiles) + unique;
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto bound = [&] {
    const sockaddr_un address = unixAddress(path);
    return bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  };
  const bool made = socket && (bound() || (path = "@moeccl." + unique, bound()));
  if (!made)
    throw Error(moecclSystemError, "cannot make a Unix socket: " + descriptorErrorText(errno));
  path_ = path;
  if (::listen(socket.get(), SOMAXCONN) != 0)
    throw Error(moecclSystemError,
                stringf("cannot listen on %s: %s", path.c_str(), std::strerror(errno)));
  return socket;
}

class Connector {
 public:
  Connector(Oob& oob, const Topology& topology, const MeshOptions& options);
  void connect(const std::function<void(Mesh)>& take);

 private:
  // A connection that this rank makes with a peer of a lower rank.
  struct Dial {
    int peer;
    std::optional<ControlDial> dial;  // none: another try is due at `next`
    TimePoint next;
  };

  void reserveDescriptors();
  bool sameNode(int peer) const { return topology_.nodeOf(peer) == topology_.nodeOf(oob_.rank()); }
  void exchangeContacts();
  void connectAll();
  // Returns whether the peer has welcomed the connection, so that it is a link.
  bool advanceDial(Dial& dial, bool ready);
  void takeGuests(Acceptor& acceptor);
  void round();
  void hearWhoHasEnded();
  [[noreturn]] void unreachable(int peer, int error) const;
  std::vector<int> missing() const;

  Oob& oob_;
  const Topology& topology_;
  const MeshOptions& options_;
  const std::vector<int> peers_;
  SocketFile file_;
  Acceptor node_, network_;
  std::vector<IpAddress> mine_;  // of this rank, where it has peers on other nodes
  std::vector<ProcessIdentity> processes_;
  std::vector<ControlAddress> addresses_;
  std::vector<FileDescriptor> reserved_;  // one for each connection, while ranks agree
  std::vector<Dial> dials_;
  std::vector<ControlLink> links_;
};

Connector::Connector(Oob& oob, const Topology& topology, const MeshOptions& options)
    : oob_(oob),
      topology_(topology),
      options_(options),
      peers_(controlPeers(topology, oob.rank())),
      node_(options.secret),
      network_(options.secret) {}

[[noreturn]] void Connector::unreachable(int peer, int error) const {
  if (isOwnError(error))
    throw Error(moecclSystemError, stringf("rank %d cannot make a connection with rank %d: %s",
                                           oob_.rank(), peer, descriptorErrorText(error).c_str()));
  std::string why = error == EPROTO ? "something else listens there" : std::strerror(error);
  if (error == ETIMEDOUT && options_.failureDetectionMs >= 0)
    why = stringf("its host has not answered for %lld ms",
                  static_cast<long long>(options_.failureDetectionMs));
  throw Error(moecclRemoteError,
              stringf("rank %d cannot reach rank %d on %s: %s", oob_.rank(), peer,
                      options_.hosts[static_cast<std::size_t>(peer)].c_str(), why.c_str()));
}

// Keeps a descriptor for each connection. A rank that runs out of them while others connect cannot
// tell those who wait for it.
void Connector::reserveDescriptors() {
  while (reserved_.size() < peers_.size()) {
    FileDescriptor one(fcntl(node_.fd(), F_DUPFD_CLOEXEC, 0));
    if (!one && errno == EMFILE && raiseDescriptorLimit()) continue;
    if (!one)
      throw Error(moecclSystemError, stringf("connections with %zu ranks: ", peers_.size()) +
                                         descriptorErrorText(errno));
    reserved_.push_back(std::move(one));
  }
}

void Connector::exchangeContacts() {
  Contact mine;
  agreeAfter(oob_, [&] {
    mine.process = ProcessIdentity::self();
    // Both ends of a connection between nodes listen: either may have to make it again.
    if (!std::ranges::all_of(peers_, [this](int peer) { return sameNode(peer); }))
      mine_ = addressesToListenOn(options_.interfaces, interfaceAddresses());
    for (std::size_t i = 0; i < mine_.size(); ++i)
      mine.endpoints[i] = {mine_[i], network_.listen(mine_[i])};
    if (std::ranges::any_of(peers_,
                            [this](int peer) { return peer > oob_.rank() && sameNode(peer); }))
      node_.listen(file_.listen());
    std::strncpy(mine.path, file_.path().c_str(), sizeof mine.path - 1);
    reserveDescriptors();
  });
  for (const Contact& contact : exchangeValue(oob_, mine)) {
    const int rank = static_cast<int>(processes_.size());
    processes_.push_back(contact.process);
    ControlAddress& address = addresses_.emplace_back();
    if (!std::ranges::binary_search(peers_, rank)) continue;
    const auto none = std::ranges::find(contact.endpoints, 0, &IpEndpoint::port);
    if (sameNode(rank))
      address.path.assign(contact.path, strnlen(contact.path, sizeof contact.path));
    else
      address.endpoint = endpointToDial({contact.endpoints.begin(), none}, mine_);
  }
}

bool Connector::advanceDial(Dial& dial, bool ready) {
  if (!dial.dial) {
    if (isPast(dial.next))
      dial.dial.emplace(options_.secret, oob_.rank(), 0,
                        addresses_[static_cast<std::size_t>(dial.peer)],
                        ControlDial::Limits{options_.failureDetectionMs, options_.doubtMs()});
    ready = false;
    if (!dial.dial) return false;
  }
  switch (dial.dial->advance(ready)) {
    case ControlDial::State::welcome:
      return true;
    case ControlDial::State::failed:
      hearWhoHasEnded();
      unreachable(dial.peer, dial.dial->error());
    case ControlDial::State::closed:
      // A peer that has ended has closed its port, and that is found then.
      dial.dial.reset();
      dial.next = afterMs(kLookMs);
      return false;
    default:
      return false;
  }
}

void Connector::takeGuests(Acceptor& acceptor) {
  acceptor.serve();
  for (Acceptor::Guest guest; acceptor.next(&guest);) {
    const auto peer = static_cast<int>(guest.hello.rank);
    // One with an index takes the place of a link of which this rank has not made a watch yet.
    if (guest.hello.purpose != static_cast<std::uint32_t>(ConnectionPurpose::control) ||
        guest.hello.index != 0 || peer <= oob_.rank() ||
        !std::ranges::binary_search(peers_, peer) ||
        send(guest.socket.get(), &kControlWelcome, sizeof kControlWelcome, MSG_NOSIGNAL) !=
            sizeof kControlWelcome)
      continue;
    // One that it had before has ended before it was welcome.
    std::erase_if(links_, [peer](const ControlLink& link) { return link.peer == peer; });
    if (!sameNode(peer)) breakWhenSilent(guest.socket, options_.doubtMs());
    links_.push_back({peer, std::move(guest.socket)});
  }
}

std::vector<int> Connector::missing() const {
  std::vector<int> missing;
  for (int peer : peers_)
    if (std::ranges::find(links_, peer, &ControlLink::peer) == links_.end())
      missing.push_back(peer);
  return missing;
}

void Connector::round() {
  std::vector<pollfd> polled = {{node_.fd(), POLLIN, 0}, {network_.fd(), POLLIN, 0}};
  for (const Dial& dial : dials_)
    polled.push_back(dial.dial ? dial.dial->wanted() : pollfd{-1, 0, 0});
  poll(polled.data(), polled.size(), static_cast<int>(kLookMs));
  for (std::size_t i = 0; i < dials_.size(); ++i) {
    Dial& dial = dials_[i];
    if (!advanceDial(dial, polled[i + 2].revents != 0)) continue;
    links_.push_back({dial.peer, dial.dial->take()});
    dial.peer = -1;
  }
  std::erase_if(dials_, [](const Dial& dial) { return dial.peer < 0; });
  takeGuests(node_);
  takeGuests(network_);
}

void Connector::connectAll() {
  for (int peer : peers_) {
    if (peer > oob_.rank()) continue;
    dials_.push_back({peer, {}, Clock::now()});
    advanceDial(dials_.back(), false);
  }
  const TimePoint deadline = afterMs(options_.timeoutMs);
  TimePoint look = afterMs(kLookMs);
  while (links_.size() < peers_.size()) {
    round();
    if (!isPast(look)) continue;
    look = afterMs(kLookMs);
    oob_.check();
    if (isPast(deadline))
      throw Error(moecclTimeout,
                  stringf("rank %d has waited %lld ms for %s to connect", oob_.rank(),
                          static_cast<long long>(options_.timeoutMs), rankList(missing()).c_str()));
  }
}

// A rank that fails because another one has ended must not be what the others hear of first.
void Connector::hearWhoHasEnded() {
  for (const TimePoint until = afterMs(kHearMs); !isPast(until);) {
    oob_.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void Connector::connect(const std::function<void(Mesh)>& take) {
  exchangeContacts();
  reserved_.clear();
  // Others wait for this rank where nobody else tells them that it has failed.
  if (oob_.tellsOfFailures())
    connectAll();
  else
    agreeAfter(oob_, [&] { connectAll(); });
  Mesh mesh;
  mesh.processes = std::move(processes_);
  std::ranges::sort(links_, {}, &ControlLink::peer);
  mesh.links = std::move(links_);
  mesh.addresses = std::move(addresses_);
  if (!mine_.empty()) mesh.acceptor.emplace(std::move(network_));
  // The file is of use until all have come.
  agreeAfter(oob_, [&] { take(std::move(mesh)); });
}

}  // namespace

void connectMesh(Oob& oob, const Topology& topology, const MeshOptions& options,
                 const std::function<void(Mesh)>& take) {
  Connector(oob, topology, options).connect(take);
}

}  // namespace moeccl
