#include "src/watch/mesh_watch.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "src/bootstrap/signals.h"
#include "src/error.h"
#include "src/file_limit.h"
#include "src/text.h"
#include "src/watch/forked.h"

namespace moeccl {
namespace {

// How long a leaving rank waits for others to take its last words and close.
constexpr std::int64_t kLingerMs = 300;

constexpr std::size_t kLongestBody = Watch::kLongestPost + sizeof(Topic);
// What a peer that is stopped may have unread. Its kernel has room for that, so that TCP, which
// takes a full one for a host that does not answer, never waits.
constexpr std::size_t kUnread = std::size_t{16} << 10;
constexpr std::size_t kReportRead = kUnread / 4;

// What the thread does must not end the process where memory is short: it tries again.
template <typename Step>
void persist(const Step& step) {
  for (;;) {
    try {
      return step();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

class MeshWatch final : public Watch {
 public:
  MeshWatch(int rank, const Topology& topology, const MeshOptions& options, Mesh mesh);
  ~MeshWatch() override { leave(); }
  void leave() override;

 private:
  struct Header {
    Kind kind;
    std::int32_t origin;
    std::uint64_t sequence;  // of the origin's messages, from 1; of Kind::read bytes read since
    std::uint64_t bytes;     // of the body
  };
  struct Connection {
    int peer = -1;
    Socket socket;
    std::vector<std::byte> in, out;
    std::size_t sent = 0;        // of `out`
    std::deque<Body> waiting{};  // messages that the peer has no room for
    std::size_t unread = 0;      // of messages in `out` or sent, as far as the peer has told
    std::size_t owed = 0;        // read, and not told
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
  void fill(Connection& connection, bool all);
  void read(Connection& connection);
  bool parse(Connection& connection);
  void receive(const Header& header, std::span<const std::byte> body, const Connection& from);
  void write(Connection& connection);
  void drop(Connection& connection);
  void close(Connection& connection, int error);
  void lose(int rank, bool hostIsGone);
  void linger();
  bool allClosed() const;

  const std::int64_t detectionMs_;
  FileDescriptor events_, woken_;
  ProcessWatch processes_;
  std::vector<std::int64_t> pids_;  // by rank
  std::vector<Connection> connections_;
  std::optional<ClosedInChildren> copies_;  // of the connections
  std::vector<std::uint64_t> lastFrom_;     // the last sequence of each rank's messages
  std::uint64_t sequence_ = 0;              // of this rank's

  std::mutex outboxMutex_;
  std::vector<std::pair<Kind, Body>> outbox_;
  bool leaving_ = false;
  std::thread thread_;
  std::once_flag left_;
};

// Keys of epoll; others are indices of connections.
constexpr std::uint64_t kWoken = ~std::uint64_t{0}, kProcesses = kWoken - 1;

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
      events_(epoll_create1(EPOLL_CLOEXEC)),
      woken_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
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
  for (ControlLink& link : mesh.links) {
    watchFor(events_.get(), EPOLL_CTL_ADD, link.socket.get(), EPOLLIN, connections_.size());
    Connection& connection = connections_.emplace_back();
    connection.peer = link.peer;
    connection.socket = std::move(link.socket);
  }
  std::vector<int> descriptors;
  for (const Connection& connection : connections_) descriptors.push_back(connection.socket.get());
  copies_.emplace(std::move(descriptors));
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
    const int count = epoll_wait(events_.get(), events, 16, -1);
    // What a rank has said before it ended comes first.
    bool ended = false;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kProcesses)
        ended = true;
      else
        handle(events[i].data.u64);
    }
    if (ended) takeEndedProcesses();
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
    forward({kind, rank(), ++sequence_, body.size()}, body, nullptr);
}

void MeshWatch::forward(const Header& header, std::span<const std::byte> body,
                        const Connection* except) {
  const auto head = std::as_bytes(std::span(&header, 1));
  for (Connection& connection : connections_) {
    if (!connection.socket || &connection == except) continue;
    persist([&] {
      Body message;
      message.reserve(head.size() + body.size());
      message.insert(message.end(), head.begin(), head.end());
      message.insert(message.end(), body.begin(), body.end());
      connection.waiting.push_back(std::move(message));
    });
    fill(connection, false);
    write(connection);
  }
}

// What the peer has room for goes on its way, or all. It tells no less than kReportRead.
void MeshWatch::fill(Connection& connection, bool all) {
  while (!connection.waiting.empty()) {
    const Body& next = connection.waiting.front();
    if (!all && connection.unread >= kReportRead && connection.unread + next.size() > kUnread)
      return;
    persist([&] { connection.out.reserve(connection.out.size() + next.size()); });
    connection.out.insert(connection.out.end(), next.begin(), next.end());
    connection.unread += next.size();
    connection.waiting.pop_front();
  }
}

void MeshWatch::write(Connection& connection) {
  while (connection.sent < connection.out.size()) {
    const ssize_t sent =
        ::send(connection.socket.get(), connection.out.data() + connection.sent,
               connection.out.size() - connection.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      connection.sent += static_cast<std::size_t>(sent);
      continue;
    }
    if (errno == EINTR) continue;
    // Why a connection broke is for read() to find out: the peer may have said goodbye.
    if (errno != EAGAIN) connection.sent = connection.out.size();
    break;
  }
  if (connection.sent == connection.out.size()) {
    connection.out.clear();
    connection.sent = 0;
  }
  const bool wants = !connection.out.empty();
  if (wants == connection.awaitsWriting) return;
  connection.awaitsWriting = wants;
  const auto key = static_cast<std::uint64_t>(&connection - connections_.data());
  watchFor(events_.get(), EPOLL_CTL_MOD, connection.socket.get(),
           wants ? EPOLLIN | EPOLLOUT : EPOLLIN, key);
}

void MeshWatch::read(Connection& connection) {
  std::byte buffer[4096];
  for (;;) {
    persist([&] { connection.in.reserve(connection.in.size() + sizeof buffer); });
    const ssize_t got = ::recv(connection.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) {
      connection.in.insert(connection.in.end(), buffer, buffer + got);
      if (!parse(connection)) return close(connection, EPROTO);
      continue;
    }
    if (got == 0) return close(connection, 0);
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return;
    return close(connection, errno);
  }
}

// Returns false where the peer sends what is no message.
bool MeshWatch::parse(Connection& connection) {
  std::size_t at = 0;
  const auto& in = connection.in;
  while (in.size() - at >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, in.data() + at, sizeof header);
    if (header.bytes > kLongestBody || header.origin < 0 || header.origin >= ranks()) return false;
    if (in.size() - at - sizeof header < header.bytes) break;
    if (header.kind == Kind::read) {
      if (header.bytes != 0 || header.sequence > connection.unread) return false;
      connection.unread -= header.sequence;
      at += sizeof header;
      continue;
    }
    connection.owed += sizeof header + header.bytes;
    receive(header, std::span(in).subspan(at + sizeof header, header.bytes), connection);
    at += sizeof header + header.bytes;
  }
  connection.in.erase(connection.in.begin(),
                      connection.in.begin() + static_cast<std::ptrdiff_t>(at));
  if (connection.owed >= kReportRead) {
    const Header report{Kind::read, rank(), std::exchange(connection.owed, 0), 0};
    const auto bytes = std::as_bytes(std::span(&report, 1));
    persist([&] { connection.out.reserve(connection.out.size() + bytes.size()); });
    connection.out.insert(connection.out.end(), bytes.begin(), bytes.end());
  }
  fill(connection, false);
  return true;
}

void MeshWatch::receive(const Header& header, std::span<const std::byte> body,
                        const Connection& from) {
  if (header.origin == rank()) return;
  // Each way that a message can take keeps the order, so whichever comes first is the next.
  std::uint64_t& last = lastFrom_[static_cast<std::size_t>(header.origin)];
  if (header.sequence <= last) return;
  last = header.sequence;
  forward(header, body, &from);
  persist([&] { arrived(header.origin, header.kind, body); });
}

void MeshWatch::drop(Connection& connection) {
  copies_->forget(connection.socket.get());
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);
  connection.socket = Socket();
}

void MeshWatch::close(Connection& connection, int error) {
  drop(connection);
  connection.out.clear();
  connection.waiting.clear();
  connection.sent = 0;
  lose(connection.peer, meansHostIsGone(error));
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
  if (isNew) forward({Kind::loss, this->rank(), ++sequence_, body.size()}, body, nullptr);
}

bool MeshWatch::allClosed() const {
  return std::ranges::none_of(connections_, [](const Connection& c) { return bool(c.socket); });
}

// A connection that is closed while there is something to read is reset, and what is on its way to
// the peer is lost.
void MeshWatch::linger() {
  const TimePoint deadline = afterMs(kLingerMs);
  for (Connection& connection : connections_) {
    if (!connection.socket) continue;
    fill(connection, true);
    write(connection);
  }
  while (!allClosed() && !isPast(deadline)) {
    for (Connection& connection : connections_) {
      if (!connection.socket || connection.shut || !connection.out.empty()) continue;
      ::shutdown(connection.socket.get(), SHUT_WR);
      connection.shut = true;
    }
    epoll_event events[16];
    const int count = epoll_wait(events_.get(), events, 16, msUntil(deadline));
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kProcesses) takeEndedProcesses();
      if (events[i].data.u64 == kWoken) handle(kWoken);
      if (events[i].data.u64 >= kProcesses) continue;
      Connection& connection = connections_[static_cast<std::size_t>(events[i].data.u64)];
      if (!connection.socket) continue;
      if (!connection.out.empty()) write(connection);
      std::byte buffer[4096];
      const ssize_t got = ::recv(connection.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) drop(connection);
    }
  }
  for (Connection& connection : connections_)
    if (connection.socket) drop(connection);
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
