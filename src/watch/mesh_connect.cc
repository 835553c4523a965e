// How control connections are made: the lower rank of two listens, the higher one dials.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "src/bootstrap/acceptor.h"
#include "src/bootstrap/clock.h"
#include "src/bootstrap/handshake.h"
#include "src/bootstrap/interfaces.h"
#include "src/error.h"
#include "src/file_limit.h"
#include "src/text.h"
#include "src/watch/mesh.h"

namespace moeccl {
namespace {

// Between two looks whether the job still stands.
constexpr std::int64_t kLookMs = 50;
// Tells who has dialed that the connection is the pair's: until then it may be closed, and the
// dialer does not know how much of what it has sent was read.
constexpr char kWelcome = 'w';
// Of Unix sockets. Ranks of a node share /dev/shm: that makes them one (host.cc).
constexpr char kFolder[] = "/dev/shm";
constexpr std::string_view kFiles = "/dev/shm/moeccl.";
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

sockaddr_un addressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (path.starts_with('@')) address.sun_path[0] = '\0';
  return address;
}

// Removes the files of processes that were killed before they could.
void removeLeftFiles() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder, ignored)) {
    const std::string& path = entry.path().native();
    if (!path.starts_with(kFiles)) continue;
    // Nobody listens for datagrams: a living socket is of another type, and a file that was just
    // made may have none yet. Those of other users are not reached.
    const Socket probe(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = addressOf(path);
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
    const sockaddr_un address = addressOf(path);
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
  // A connection that this rank dials, until it is a link: the peer has welcomed it.
  struct Dial {
    int peer;
    Socket socket;                       // none: another try is due at `until`
    std::optional<Handshake> handshake;  // none: not connected yet
    TimePoint until = kNever;
  };

  bool sameNode(int peer) const { return topology_.nodeOf(peer) == topology_.nodeOf(oob_.rank()); }
  void exchangeContacts();
  void begin(Dial& dial);
  void greet(Dial& dial);
  void again(Dial& dial);
  // Whether it is a link.
  bool advanceDial(Dial& dial, bool ready);
  void takeGuests();
  void round();
  [[noreturn]] void unreachable(int peer, const std::string& why) const;
  [[noreturn]] void unreachable(int peer, int error) const;
  std::vector<int> missing() const;

  Oob& oob_;
  const Topology& topology_;
  const MeshOptions& options_;
  const std::vector<int> peers_;
  SocketFile file_;
  Acceptor acceptor_;
  std::vector<IpAddress> addresses_;  // of this rank, where it has peers on other nodes
  std::vector<Contact> contacts_;
  std::vector<Dial> dials_;
  std::vector<ControlLink> links_;
};

Connector::Connector(Oob& oob, const Topology& topology, const MeshOptions& options)
    : oob_(oob),
      topology_(topology),
      options_(options),
      peers_(controlPeers(topology, oob.rank())),
      acceptor_(options.secret) {}

[[noreturn]] void Connector::unreachable(int peer, const std::string& why) const {
  throw Error(moecclRemoteError,
              stringf("rank %d cannot reach rank %d on %s: %s", oob_.rank(), peer,
                      options_.hosts[static_cast<std::size_t>(peer)].c_str(), why.c_str()));
}

[[noreturn]] void Connector::unreachable(int peer, int error) const {
  if (!isOwnError(error)) unreachable(peer, std::strerror(error));
  throw Error(moecclSystemError, stringf("rank %d cannot make a connection with rank %d: %s",
                                         oob_.rank(), peer, descriptorErrorText(error).c_str()));
}

void Connector::exchangeContacts() {
  Contact mine;
  agreeAfter(oob_, [&] {
    mine.process = ProcessIdentity::self();
    if (!std::ranges::all_of(peers_, [this](int peer) { return sameNode(peer); }))
      addresses_ = addressesToListenOn(options_.interfaces, interfaceAddresses());
    for (int peer : peers_) {
      if (peer < oob_.rank()) continue;
      if (sameNode(peer) && file_.path().empty()) acceptor_.listen(file_.listen());
      if (!sameNode(peer) && mine.endpoints[0].port == 0)
        for (std::size_t i = 0; i < addresses_.size(); ++i)
          mine.endpoints[i] = {addresses_[i], acceptor_.listen(addresses_[i])};
    }
    std::strncpy(mine.path, file_.path().c_str(), sizeof mine.path - 1);
  });
  contacts_ = exchangeValue(oob_, mine);
}

void Connector::begin(Dial& dial) {
  const Contact& contact = contacts_[static_cast<std::size_t>(dial.peer)];
  dial.socket = Socket();
  if (!sameNode(dial.peer)) {
    const auto none = std::ranges::find(contact.endpoints, 0, &IpEndpoint::port);
    const IpEndpoint to = endpointToDial({contact.endpoints.begin(), none}, addresses_);
    if (const int error = startConnect(to.address, to.port, &dial.socket))
      unreachable(dial.peer, error);
    dial.until = afterMs(options_.failureDetectionMs);
    return;
  }
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const sockaddr_un address = addressOf(contact.path);
  if (socket &&
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    dial.socket = std::move(socket);
    return greet(dial);
  }
  if (errno != EAGAIN) unreachable(dial.peer, errno);
  again(dial);  // many dial it at the same time
}

// After a pause. A peer whom a crowd of strangers calls may close what it has accepted; one that
// has ended has closed its port, and that is found then.
void Connector::again(Dial& dial) {
  dial.socket = Socket();
  dial.handshake.reset();
  dial.until = afterMs(kLookMs);
}

void Connector::greet(Dial& dial) {
  dial.handshake = Handshake::dialer(options_.secret,
                                     {static_cast<std::uint32_t>(oob_.rank()),
                                      static_cast<std::uint32_t>(ConnectionPurpose::control), 0});
  dial.until = kNever;  // it is there, however slow
}

bool Connector::advanceDial(Dial& dial, bool ready) {
  if (!dial.socket) {
    if (isPast(dial.until)) begin(dial);
    return false;
  }
  if (!dial.handshake) {
    if (!ready && isPast(dial.until))
      unreachable(dial.peer, stringf("its host has not answered for %lld ms",
                                     static_cast<long long>(options_.failureDetectionMs)));
    if (!ready) return false;
    if (const int error = connectResult(dial.socket)) {
      if (error != ECONNRESET) unreachable(dial.peer, error);
      again(dial);
      return false;
    }
    tuneConnection(dial.socket);
    breakWhenSilent(dial.socket, options_.failureDetectionMs);
    greet(dial);
  }
  if (!advance(*dial.handshake, dial.socket)) {
    if (dial.handshake->state() == Handshake::State::refused)
      unreachable(dial.peer, "something else listens there");
    again(dial);
    return false;
  }
  if (dial.handshake->state() != Handshake::State::done) return false;
  char welcome;
  const ssize_t got = recv(dial.socket.get(), &welcome, sizeof welcome, 0);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) again(dial);
  return got > 0;
}

void Connector::takeGuests() {
  acceptor_.serve();
  for (Acceptor::Guest guest; acceptor_.next(&guest);) {
    const auto peer = static_cast<int>(guest.hello.rank);
    if (guest.hello.purpose != static_cast<std::uint32_t>(ConnectionPurpose::control) ||
        peer <= oob_.rank() || !std::ranges::binary_search(peers_, peer) ||
        send(guest.socket.get(), &kWelcome, sizeof kWelcome, MSG_NOSIGNAL) != sizeof kWelcome)
      continue;
    // One that it had before has ended before it was welcome.
    std::erase_if(links_, [peer](const ControlLink& link) { return link.peer == peer; });
    if (!sameNode(peer)) breakWhenSilent(guest.socket, options_.failureDetectionMs);
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
  std::vector<pollfd> polled = {{acceptor_.fd(), POLLIN, 0}};
  for (const Dial& dial : dials_) {
    const bool writes = !dial.handshake || !dial.handshake->toSend().empty();
    polled.push_back({dial.socket.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
  }
  poll(polled.data(), polled.size(), static_cast<int>(kLookMs));
  for (std::size_t i = 0; i < dials_.size(); ++i) {
    Dial& dial = dials_[i];
    if (!advanceDial(dial, polled[i + 1].revents != 0)) continue;
    links_.push_back({dial.peer, std::move(dial.socket)});
    dial.peer = -1;
  }
  std::erase_if(dials_, [](const Dial& dial) { return dial.peer < 0; });
  takeGuests();
}

void Connector::connect(const std::function<void(Mesh)>& take) {
  exchangeContacts();
  for (int peer : peers_) {
    if (peer > oob_.rank()) continue;
    dials_.push_back({peer, {}, {}});
    begin(dials_.back());
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
  Mesh mesh;
  for (const Contact& contact : contacts_) mesh.processes.push_back(contact.process);
  std::ranges::sort(links_, {}, &ControlLink::peer);
  mesh.links = std::move(links_);
  // The file and the port are of use until all have come.
  agreeAfter(oob_, [&] { take(std::move(mesh)); });
}

}  // namespace

void connectMesh(Oob& oob, const Topology& topology, const MeshOptions& options,
                 const std::function<void(Mesh)>& take) {
  Connector(oob, topology, options).connect(take);
}

}  // namespace moeccl
