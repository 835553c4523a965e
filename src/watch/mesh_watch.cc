// The thread that watches: it waits in an epoll for connections, ended processes and what this rank
// tells, and passes news on to the peers.
#include "src/watch/mesh_watch.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "src/base/error.h"
#include "src/base/file_limit.h"
#include "src/base/text.h"
#include "src/bootstrap/acceptor.h"
#include "src/bootstrap/signals.h"
#include "src/watch/control_stream.h"
#include "src/watch/forked.h"
#include "src/watch/persist.h"
#include "src/watch/redial.h"

namespace moeccl {
namespace {

// How long a leaving rank waits for others to take its last words and close.
constexpr std::int64_t kLingerMs = 300;

constexpr std::size_t kLongestBody = Watch::kLongestPost + sizeof(Topic);

class MeshWatch final : public Watch {
 public:
  MeshWatch(int rank, const Topology& topology, const MeshOptions& options, Mesh mesh);
  ~MeshWatch() override { leave(); }
  void leave() override;

 private:
  using Header = ControlStream::Header;

  struct Connection {
    int peer;
    Redial redial;
    ControlStream stream{kLongestBody};
    Socket socket{};             // none while it is broken, and once it is over
    bool over = false;           // the peer is lost, or has left
    int error = 0;               // of a send: the next recv only tells that there was one
    bool awaitsWriting = false;  // epoll tells when there is room
    bool shut = false;           // for writing
  };

  void carry(Kind kind, Body body) override;
  void wakeThread();

  // The thread's.
  void live();
  void handle(std::uint64_t key);
  void takeEndedProcesses();
  void takeOutbox();
  void forward(const Header& header, std::span<const std::byte> body, const Connection* except);
  void read(Connection& connection);
  bool receive(const Header& header, std::span<const std::byte> body, const Connection& from);
  void write(Connection& connection);
  void open(Connection& connection, Socket socket);
  void renew(Connection& connection, Socket socket);
  void drop(Connection& connection);
  void close(Connection& connection, int error);
  void end(Connection& connection, bool hostIsGone);
  void lose(int rank, bool hostIsGone);
  bool isRedialing() const;
  void redial();
  void takeGuests();
  int waitMs() const;
  void linger();
  bool allClosed() const;

  const std::int64_t detectionMs_, doubtMs_;
  FileDescriptor events_, woken_;
  ProcessWatch processes_;
  std::vector<std::int64_t> pids_;  // by rank
  std::deque<Connection> connections_;
  std::optional<Acceptor> acceptor_;        // of connections that are made again
  std::optional<ClosedInChildren> copies_;  // of the connections and ports
  std::vector<std::uint64_t> lastFrom_;     // the last sequence of each rank's messages
  std::uint64_t sequence_ = 0;              // of this rank's

  std::mutex outboxMutex_;
  std::vector<std::pair<Kind, Body>> outbox_;
  bool leaving_ = false;
  std::thread thread_;
  std::once_flag left_;
};

// Keys of epoll; others are indices of connections.
constexpr std::uint64_t kWoken = ~std::uint64_t{0}, kProcesses = kWoken - 1, kAcceptor = kWoken - 2;

void watchFor(int epoll, int operation, int fd, std::uint32_t events, std::uint64_t key) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  if (epoll_ctl(epoll, operation, fd, &event) != 0)
    throw Error(moecclSystemError, "watching the other ranks: " + descriptorErrorText(errno));
}

MeshWatch::MeshWatch(int rank, const Topology& topology, const MeshOptions& options, Mesh mesh)
    : Watch(rank, options.secret, options.hosts),
      detectionMs_(options.failureDetectionMs),
      doubtMs_(options.doubtMs()),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      woken_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      acceptor_(std::move(mesh.acceptor)),
      lastFrom_(options.hosts.size()) {
  if (!events_ || !woken_)
    throw Error(moecclSystemError, "watching the other ranks: " + descriptorErrorText(errno));
  watchFor(events_.get(), EPOLL_CTL_ADD, woken_.get(), EPOLLIN, kWoken);
  watchFor(events_.get(), EPOLL_CTL_ADD, processes_.fd(), EPOLLIN, kProcesses);
  for (int peer = 0; peer < ranks(); ++peer) {
    const ProcessIdentity& process = mesh.processes[static_cast<std::size_t>(peer)];
    pids_.push_back(process.pid);
    if (peer != rank && topology.nodeOf(peer) == topology.nodeOf(rank))
      processes_.add(peer, process);
  }
  copies_.emplace(acceptor_ ? acceptor_->listeners() : std::vector<int>{});
  if (acceptor_) watchFor(events_.get(), EPOLL_CTL_ADD, acceptor_->fd(), EPOLLIN, kAcceptor);
  mesh.addresses.resize(options.hosts.size());
  for (ControlLink& link : mesh.links) {
    const ControlAddress& to = mesh.addresses[static_cast<std::size_t>(link.peer)];
    Connection& connection = connections_.emplace_back(Connection{
        link.peer, Redial(options.secret, rank, link.peer, to, {detectionMs_, doubtMs_})});
    open(connection, std::move(link.socket));
  }
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { live(); });
  } catch (const std::system_error& error) {
    throw Error(moecclSystemError,
                std::string("cannot start a thread that watches the other ranks: ") + error.what());
  }
}

void MeshWatch::leave() {
  // The end of the process may come while another thread leaves.
  std::call_once(left_, [this] {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(outboxMutex_);
      outbox_.emplace_back(Kind::loss, bodyOf({rank(), true, {}}));
      leaving_ = true;
    }
    wakeThread();
    thread_.join();
  });
}

void MeshWatch::carry(Kind kind, Body body) {
  {
    const std::lock_guard lock(outboxMutex_);
    if (leaving_) return;
    outbox_.emplace_back(kind, std::move(body));
  }
  wakeThread();
}

void MeshWatch::wakeThread() {
  const std::uint64_t one = 1;
  // It fails only where the thread has been woken very often, and so will look.
  if (::write(woken_.get(), &one, sizeof one) < 0) return;
}

void MeshWatch::live() {
  pthread_setname_np(pthread_self(), "moeccl-watch");
  for (;;) {
    {
      const std::lock_guard lock(outboxMutex_);
      if (leaving_) break;
    }
    epoll_event events[16];
    const int count = epoll_wait(events_.get(), events, 16, waitMs());
    // What a rank has said before it ended comes first.
    bool ended = false;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kProcesses)
        ended = true;
      else if (events[i].data.u64 != kAcceptor)
        handle(events[i].data.u64);
    }
    if (ended) takeEndedProcesses();
    if (acceptor_) takeGuests();
    redial();
    takeOutbox();
  }
  takeOutbox();
  linger();
}

void MeshWatch::handle(std::uint64_t key) {
  if (key == kWoken) {
    std::uint64_t count;
    if (::read(woken_.get(), &count, sizeof count) < 0) return;
    return;
  }
  Connection& connection = connections_[static_cast<std::size_t>(key)];
  if (connection.socket) read(connection);
  if (connection.socket) write(connection);
}

void MeshWatch::takeEndedProcesses() {
  for (int rank; (rank = processes_.next()) >= 0;) {
    const auto with = std::ranges::find(connections_, rank, &Connection::peer);
    if (with != connections_.end() && with->socket) read(*with);
    lose(rank, false);
  }
}

void MeshWatch::takeOutbox() {
  std::vector<std::pair<Kind, Body>> outbox;
  {
    const std::lock_guard lock(outboxMutex_);
    outbox.swap(outbox_);
  }
  for (const auto& [kind, body] : outbox)
    forward({static_cast<std::uint32_t>(kind), rank(), ++sequence_, body.size()}, body, nullptr);
}

// Sends a message to all peers but `except`, also to those whose connection is being made again.
void MeshWatch::forward(const Header& header, std::span<const std::byte> body,
                        const Connection* except) {
  for (Connection& connection : connections_) {
    if (connection.over || &connection == except) continue;
    connection.stream.send(header, body);
    write(connection);
  }
}

void MeshWatch::write(Connection& connection) {
  if (!connection.socket) return;
  for (auto bytes = connection.stream.toSend(); !bytes.empty();
       bytes = connection.stream.toSend()) {
    const ssize_t sent =
        ::send(connection.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    // A broken connection is for read() to find: the peer may have said goodbye.
    if (sent < 0 && errno != EAGAIN) connection.error = errno;
    if (sent < 0) break;
    connection.stream.sent(static_cast<std::size_t>(sent));
  }
  const bool wants = !connection.stream.toSend().empty();
  if (wants == connection.awaitsWriting) return;
  connection.awaitsWriting = wants;
  const auto at = std::ranges::find(connections_, connection.peer, &Connection::peer);
  watchFor(events_.get(), EPOLL_CTL_MOD, connection.socket.get(),
           wants ? EPOLLIN | EPOLLOUT : EPOLLIN,
           static_cast<std::uint64_t>(at - connections_.begin()));
}

void MeshWatch::read(Connection& connection) {
  const auto take = [&](const Header& header, std::span<const std::byte> body) {
    return receive(header, body, connection);
  };
  std::byte buffer[4096];
  for (;;) {
    const ssize_t got = ::recv(connection.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) {
      if (!connection.stream.received(std::span(buffer).first(static_cast<std::size_t>(got)), take))
        return close(connection, EPROTO);
      continue;
    }
    if (got == 0) return close(connection, connection.error);
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return;
    return close(connection, connection.error != 0 ? connection.error : errno);
  }
}

// Returns false where there is no such origin.
bool MeshWatch::receive(const Header& header, std::span<const std::byte> body,
                        const Connection& from) {
  if (header.origin < 0 || header.origin >= ranks()) return false;
  if (header.origin == rank()) return true;
  // Each way that a message can take keeps the order, so whichever comes first is the next.
  std::uint64_t& last = lastFrom_[static_cast<std::size_t>(header.origin)];
  if (header.sequence <= last) return true;
  last = header.sequence;
  forward(header, body, &from);
  persist([&] { arrived(header.origin, static_cast<Kind>(header.kind), body); });
  return true;
}

void MeshWatch::open(Connection& connection, Socket socket) {
  const auto at = std::ranges::find(connections_, connection.peer, &Connection::peer);
  watchFor(events_.get(), EPOLL_CTL_ADD, socket.get(), EPOLLIN,
           static_cast<std::uint64_t>(at - connections_.begin()));
  persist([&] { copies_->add(socket.get()); });
  connection.socket = std::move(socket);
  connection.error = 0;
  connection.awaitsWriting = false;
}

// Goes on with a peer on another connection.
void MeshWatch::renew(Connection& connection, Socket socket) {
  breakWhenSilent(socket, doubtMs_);
  try {
    open(connection, std::move(socket));
  } catch (const Error&) {  // for want of something
    return connection.redial.begin(0);
  }
  connection.stream.renew();
  write(connection);
}

void MeshWatch::drop(Connection& connection) {
  copies_->forget(connection.socket.get());
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);
  connection.socket = Socket();
}

// A process that ends closes its port, and closes its connections in order if it has read all that
// came. So a connection that breaks does not tell yet whether the peer lives. Nor does one that
// closes when the peer has just accepted it.
void MeshWatch::close(Connection& connection, int error) {
  const bool broken = error == ECONNRESET || error == ECONNABORTED || error == EPIPE ||
                      meansHostIsGone(error) || (error == 0 && connection.stream.renewing());
  const bool again = broken && connection.redial.isPossible() && !isLost(connection.peer);
  const std::int64_t silent = again ? silentMs(connection.socket) : 0;
  if (again) breakConnection(connection.socket);
  drop(connection);
  connection.stream.broke();
  if (again)
    connection.redial.begin(silent);
  else
    end(connection, meansHostIsGone(error));
}

void MeshWatch::end(Connection& connection, bool hostIsGone) {
  connection.redial.stop();
  connection.stream.end();
  connection.over = true;
  lose(connection.peer, hostIsGone);
}

void MeshWatch::lose(int rank, bool hostIsGone) {
  bool isNew = false;
  Body body;
  persist([&] {
    const Loss loss{
        rank, false,
        hostIsGone
            ? stringf("its host has not answered for %lld ms", static_cast<long long>(detectionMs_))
            : stringf("its process %lld has ended",
                      static_cast<long long>(pids_[static_cast<std::size_t>(rank)]))};
    body = bodyOf(loss);
    isNew = note(loss);
  });
  constexpr auto kKind = static_cast<std::uint32_t>(Kind::loss);
  if (isNew) forward({kKind, this->rank(), ++sequence_, body.size()}, body, nullptr);
}

bool MeshWatch::isRedialing() const {
  return std::ranges::any_of(connections_, [](const auto& c) { return c.redial.isRunning(); });
}

void MeshWatch::redial() {
  for (Connection& connection : connections_) {
    if (!connection.redial.isRunning()) continue;
    const Redial::Result result =
        isLost(connection.peer) ? Redial::Result::ended : connection.redial.step();
    if (result == Redial::Result::made)
      renew(connection, connection.redial.take());
    else if (result != Redial::Result::running)
      end(connection, result == Redial::Result::silent);
  }
}

// Takes connections that peers have made again. This end of the old one may not have broken yet.
void MeshWatch::takeGuests() {
  persist([&] { acceptor_->serve(); });
  for (Acceptor::Guest guest; acceptor_->next(&guest);) {
    const auto with =
        std::ranges::find(connections_, static_cast<int>(guest.hello.rank), &Connection::peer);
    if (with == connections_.end() || with->over || !with->redial.isPossible() ||
        guest.hello.purpose != static_cast<std::uint32_t>(ConnectionPurpose::control) ||
        isLost(with->peer) || !with->redial.yieldsTo(guest.hello.index))
      continue;
    if (with->socket) {
      breakConnection(with->socket);
      drop(*with);
    }
    if (::send(guest.socket.get(), &kControlWelcome, sizeof kControlWelcome, MSG_NOSIGNAL) ==
        sizeof kControlWelcome)
      renew(*with, std::move(guest.socket));
    else
      with->redial.begin(0);
  }
}

int MeshWatch::waitMs() const {
  if (isRedialing()) return Redial::kStepMs;
  return acceptor_ ? msUntil(acceptor_->nextDeadline()) : -1;
}

bool MeshWatch::allClosed() const {
  return std::ranges::none_of(connections_, [](const Connection& c) { return bool(c.socket); });
}

// A connection that is closed while there is something to read is reset, and what is on its way to
// the peer is lost.
void MeshWatch::linger() {
  const TimePoint deadline = afterMs(kLingerMs);
  if (acceptor_) epoll_ctl(events_.get(), EPOLL_CTL_DEL, acceptor_->fd(), nullptr);
  for (Connection& connection : connections_) {
    if (!connection.socket) continue;
    connection.stream.sendRest();
    write(connection);
  }
  while (!allClosed() && !isPast(deadline)) {
    for (Connection& connection : connections_) {
      if (!connection.socket || connection.shut || !connection.stream.toSend().empty()) continue;
      ::shutdown(connection.socket.get(), SHUT_WR);
      connection.shut = true;
    }
    epoll_event events[16];
    const int count = epoll_wait(events_.get(), events, 16, msUntil(deadline));
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kProcesses) takeEndedProcesses();
      if (events[i].data.u64 == kWoken) handle(kWoken);
      if (events[i].data.u64 >= kAcceptor) continue;
      Connection& connection = connections_[static_cast<std::size_t>(events[i].data.u64)];
      if (!connection.socket) continue;
      write(connection);
      std::byte buffer[4096];
      const ssize_t got = ::recv(connection.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) drop(connection);
    }
  }
  for (Connection& connection : connections_)
    if (connection.socket) drop(connection);
  if (!acceptor_) return;
  for (const int port : acceptor_->listeners()) copies_->forget(port);
  acceptor_.reset();
}

}  // namespace

std::unique_ptr<Watch> makeMeshWatch(int rank, const Topology& topology, const MeshOptions& options,
                                     Mesh mesh) {
  return std::make_unique<MeshWatch>(rank, topology, options, std::move(mesh));
}

std::unique_ptr<Watch> makeMeshWatch(Oob& oob, const Topology& topology,
                                     const MeshOptions& options) {
  std::unique_ptr<Watch> watch;
  connectMesh(oob, topology, options, [&](Mesh mesh) {
    watch = makeMeshWatch(oob.rank(), topology, options, std::move(mesh));
  });
  return watch;
}

}  // namespace moeccl
