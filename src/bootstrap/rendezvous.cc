// Starts the thread of the service, and carries a rank's all-gathers over its connection with it.
#include "src/bootstrap/rendezvous.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>

#include "src/base/log.h"
#include "src/base/text.h"
#include "src/bootstrap/clock.h"
#include "src/bootstrap/interfaces.h"
#include "src/bootstrap/rendezvous_dial.h"
#include "src/bootstrap/rendezvous_id.h"
#include "src/bootstrap/rendezvous_service.h"
#include "src/bootstrap/rendezvous_wire.h"
#include "src/bootstrap/signals.h"
#include "src/bootstrap/socket.h"

namespace moeccl {
namespace {

// The service names who is missing at the deadline; that answer gets so much longer to arrive.
constexpr std::int64_t kAnswerSlackMs = 5000;

// The thread owns all that it touches, so that the process may exit at any moment.
void startService(std::unique_ptr<RendezvousService> service) {
  const SignalsBlocked blocked;
  try {
    std::thread([service = std::move(service)] {
      pthread_setname_np(pthread_self(), "moeccl-rdv");
      try {
        service->run();
      } catch (const std::exception& error) {
        log(LogLevel::warn, {}, "the rendezvous stops: %s", error.what());
      }
    }).detach();
  } catch (const std::system_error& error) {
    throw Error(moecclSystemError,
                stringf("cannot start a thread for the rendezvous: %s", error.what()));
  }
}

class RendezvousOob : public Oob {
 public:
  // On a connection that the service has accepted this rank on.
  RendezvousOob(Service service, const Secret& secret, const Arrival& arrival)
      : socket_(std::move(service.socket)),
        secret_(secret),
        peer_(peerText(socket_)),
        server_("the process that made the id (" + service.process + ")"),
        ranks_(arrival.ranks),
        rank_(arrival.rank),
        timeoutMs_(arrival.timeoutMs),
        deadline_(withSlack(afterMs(timeoutMs_))) {
    std::int32_t server;
    expect(MessageKind::welcome, sizeof server);
    receiveAll(&server, sizeof server);
    if (server >= 0) server_ = stringf("rank %d (%s)", server, service.process.c_str());
  }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::span<const std::byte> key() const override { return secret_; }

  void allgather(const void* send, void* recv, std::size_t bytes) override {
    deadline_ = withSlack(afterMs(timeoutMs_));
    const MessageHeader header{MessageKind::part, moecclSuccess, bytes};
    sendAll(&header, sizeof header);
    sendAll(send, bytes);
    const std::uint64_t whole = static_cast<std::uint64_t>(bytes) * static_cast<unsigned>(ranks_);
    expect(MessageKind::whole, whole);
    receiveAll(recv, whole);
  }

  bool tellsOfFailures() const override { return true; }
  void check() override {
    std::byte first;
    const ssize_t got = ::recv(socket_.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    // Between all-gathers the service says nothing but that the job has failed.
    if (got > 0) expect(MessageKind::failure, 0);
    if (got == 0) lost("the connection was closed");
    if (got < 0 && errno != EAGAIN && errno != EINTR) lost(std::strerror(errno));
  }

  void finish() override {
    deadline_ = withSlack(afterMs(timeoutMs_));
    const MessageHeader header{MessageKind::goodbye, moecclSuccess, 0};
    sendAll(&header, sizeof header);
  }

 private:
  static TimePoint withSlack(TimePoint deadline) {
    return deadline == kNever ? kNever : deadline + std::chrono::milliseconds(kAnswerSlackMs);
  }

  [[noreturn]] void lost(const char* why) const {
    throw Error(moecclRemoteError,
                stringf("rank %d lost the rendezvous (%s), which %s serves: %s; did that process "
                        "end?",
                        rank_, peer_.c_str(), server_.c_str(), why));
  }

  void await(short events) const {
    pollfd polled{socket_.get(), events, 0};
    if (poll(&polled, 1, msUntil(deadline_)) == 0 && isPast(deadline_))
      throw Error(moecclTimeout, stringf("the rendezvous (%s) is silent: rank %d waited %lld ms",
                                         peer_.c_str(), rank_, static_cast<long long>(timeoutMs_)));
  }

  void sendAll(const void* data, std::size_t bytes) {
    const auto* at = static_cast<const std::byte*>(data);
    while (bytes > 0) {
      const ssize_t sent = ::send(socket_.get(), at, bytes, MSG_NOSIGNAL);
      if (sent < 0) {
        if (errno == EAGAIN) await(POLLOUT);
        if (errno == EAGAIN || errno == EINTR) continue;
        // The service may have said why before it closed.
        return;
      }
      at += sent;
      bytes -= static_cast<std::size_t>(sent);
    }
  }

  void receiveAll(void* data, std::size_t bytes) {
    auto* at = static_cast<std::byte*>(data);
    while (bytes > 0) {
      const ssize_t got = ::recv(socket_.get(), at, bytes, 0);
      if (got == 0) lost("the connection was closed");
      if (got < 0) {
        if (errno == EAGAIN) await(POLLIN);
        if (errno == EAGAIN || errno == EINTR) continue;
        lost(std::strerror(errno));
      }
      at += got;
      bytes -= static_cast<std::size_t>(got);
    }
  }

  void expect(MessageKind kind, std::uint64_t bytes) {
    MessageHeader header;
    receiveAll(&header, sizeof header);
    if (header.kind == MessageKind::failure && header.bytes <= kMaxFailureBytes) {
      std::string text(header.bytes, '\0');
      receiveAll(text.data(), text.size());
      throw Error(static_cast<moecclResult_t>(header.result), text);
    }
    if (header.kind != kind || header.bytes != bytes)
      throw Error(moecclInternalError,
                  stringf("the rendezvous broke its protocol towards rank %d (message %u of %llu "
                          "bytes)",
                          rank_, static_cast<unsigned>(header.kind),
                          static_cast<unsigned long long>(header.bytes)));
  }

  Socket socket_;
  const Secret secret_;
  const std::string peer_;
  std::string server_;  // for people
  const int ranks_, rank_;
  const std::int64_t timeoutMs_;
  TimePoint deadline_;
};

}  // namespace

void fillRandom(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(moecclSystemError, stringf("getrandom: %s", std::strerror(errno)));
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

moecclUniqueId makeUniqueId(std::string_view interfaces, const RendezvousLimits& limits) {
  Secret secret;
  fillRandom(secret);
  return makeUniqueId(0, secret, interfaces, limits);
}

moecclUniqueId makeUniqueId(std::uint16_t port, const Secret& secret, std::string_view interfaces,
                            const RendezvousLimits& limits) {
  RendezvousId id{port, secret, {}};
  Socket listener;
  if (interfaces.empty()) {
    id.addresses = hostAddresses();
    if (id.addresses.empty())
      throw Error(moecclSystemError, "no network interface of this host is up, not even loopback");
    listener = listenAnywhere(&id.port);
  } else {
    id.addresses = {addressesToListenOn(interfaces, interfaceAddresses()).front()};
    listener = listenOn(id.addresses.front(), &id.port);
  }
  startService(std::make_unique<RendezvousService>(std::move(listener), id.secret, limits));
  if (logs(LogLevel::info)) {
    std::string text;
    for (const IpAddress& address : id.addresses) text += ' ' + endpointText(address, id.port);
    log(LogLevel::info, {}, "a rendezvous is open at%s", text.c_str());
  }
  return encodeId(id);
}

std::unique_ptr<Oob> join(const moecclUniqueId& id, int ranks, int rank, std::int64_t timeoutMs,
                          bool early) {
  if (ranks < 1)
    throw Error(moecclInvalidArgument, stringf("nRanks is %d; it must be at least 1", ranks));
  if (rank < 0 || rank >= ranks)
    throw Error(moecclInvalidArgument, stringf("rank is %d; with nRanks = %d it must be in [0, %d]",
                                               rank, ranks, ranks - 1));
  const RendezvousId rendezvous = decodeId(id);
  Arrival arrival{ranks, rank, std::max<std::int64_t>(timeoutMs, -1), {}};
  std::strncpy(arrival.name, processName().c_str(), sizeof arrival.name - 1);
  Service service = dialService(rendezvous, arrival, early);
  log(LogLevel::info, {rank, ranks}, "found the rendezvous at %s",
      peerText(service.socket).c_str());
  return std::make_unique<RendezvousOob>(std::move(service), rendezvous.secret, arrival);
}

}  // namespace moeccl
