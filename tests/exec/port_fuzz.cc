// For libFuzzer: what a rank's ports read from whoever dials them, and from peers that hold the
// job's secret. Whatever comes, nothing is read or written where it should not be, nothing waits
// for ever, each transfer ends once.
//
// The first byte of an input chooses the port, the rest is what is done to it.
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "algorithms/topology.h"
#include "src/bootstrap/acceptor.h"
#include "src/bootstrap/rendezvous_service.h"
#include "src/exec/tcp_connection.h"
#include "src/watch/mesh_watch.h"

namespace moeccl {
namespace {

const Secret kSecret{std::byte{5}};

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::abort();
}

// The input as numbers and pieces. Past its end there are zeros.
class Script {
 public:
  explicit Script(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  std::uint8_t byte() { return number<std::uint8_t>(); }
  template <typename Number>
  Number number() {
    Number value = 0;
    const auto piece = take(sizeof value);
    if (!piece.empty()) std::memcpy(&value, piece.data(), piece.size());
    return value;
  }
  std::span<const std::uint8_t> take(std::size_t most) {
    const auto piece = bytes_.first(std::min(most, bytes_.size()));
    bytes_ = bytes_.subspan(piece.size());
    return piece;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

struct Pair {
  Pair() {
    int both[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, both) == 0, "there are sockets");
    ours = Socket(both[0]);
    theirs = Socket(both[1]);
  }
  Socket ours, theirs;
};

void write(const Socket& socket, std::span<const std::uint8_t> bytes) {
  // What does not fit is lost: that too may happen.
  if (::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

template <typename Value>
void writeValue(const Socket& socket, const Value& value) {
  write(socket, {reinterpret_cast<const std::uint8_t*>(&value), sizeof value});
}

void readAll(const Socket& socket) {
  std::array<std::byte, 4096> buffer;
  while (::recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT) > 0) {
  }
}

// ----------------------------------------------------------------------------------- the handshake

void greet(Script script) {
  const bool dials = script.byte() % 2 != 0;
  Handshake handshake =
      dials ? Handshake::dialer(kSecret, {1, 1, 0}) : Handshake::acceptor(kSecret);
  Pair pair;
  while (!script.empty() && handshake.state() == Handshake::State::running) {
    write(pair.theirs, script.take(1 + script.byte() % 80));
    advance(handshake, pair.ours);
    readAll(pair.theirs);
  }
  require(handshake.state() != Handshake::State::done, "nobody passes who has no secret");
}

// --------------------------------------------------------------------------------- data
// connections

struct Counted : Transfer {
  int times = 0;
};

void done(Transfer* self, TransferStatus, std::size_t) { ++static_cast<Counted*>(self)->times; }

class DataPort {
 public:
  explicit DataPort(std::size_t memory)
      : common_(memory),
        peer_(common_, 1, memory),
        first_(common_, peer_, 0),
        second_(common_, peer_, 1) {
    peer_.know("a peer", kCredit, 2);
    first_.accept(std::move(pairs_[0].ours));
    second_.accept(std::move(pairs_[1].ours));
    for (std::size_t i = 0; i < kMost; ++i) {
      rooms_[i].assign(kRoom + kGuard, kUntouched);
      data_[i].resize(100 + 3000 * i);
      receives_[i].done = sends_[i].done = &done;
    }
  }

  void play(Script script) {
    while (!script.empty()) {
      step(script);
      for (TcpConnection* each : {&first_, &second_}) {
        each->advance();
        if (each->isEarly()) each->retryEarly();
        if (each->stage() == TcpConnection::Stage::ended) return;
      }
      for (const Pair& pair : pairs_) readAll(pair.theirs);
    }
  }

  void end() {
    peer_.lose("the end", TransferStatus::unreachable);
    for (std::size_t i = 0; i < kMost; ++i) {
      require(receives_[i].times == (i < received_ ? 1 : 0), "a receive ends once");
      require(sends_[i].times == (i < sent_ ? 1 : 0), "a send ends once");
      require(std::all_of(rooms_[i].begin() + kRoom, rooms_[i].end(),
                          [](std::uint8_t byte) { return byte == kUntouched; }),
              "nothing is written behind a receive");
    }
    require(common_.sends == 0 && common_.receives == 0, "nothing is in flight");
  }

 private:
  static constexpr std::size_t kMost = 8, kRoom = 5000, kGuard = 64, kCredit = 20000;
  static constexpr std::uint8_t kUntouched = 0xee;

  static Tag tagOf(int source, std::uint32_t call) {
    return makeTag({.comm = 1, .call = call, .source = static_cast<std::uint32_t>(source)});
  }

  void step(Script& script) {
    const std::uint8_t what = script.byte();
    const Socket& socket = pairs_[what >> 7].theirs;
    switch (what % 8) {
      case 0:
        return write(socket, script.take(script.number<std::uint16_t>() % 9000));
      case 1:
        if (received_ < kMost) receive();
        return;
      case 2:
        if (sent_ < kMost) send();
        return;
      case 3:
        return cancel(script.byte());
      case 4:
        return peer_.refuseAnnounced();
      default:
        return frame(socket, script);
    }
  }

  // Nearly right.
  void frame(const Socket& socket, Script& script) {
    FrameHeader header;
    header.kind = static_cast<FrameKind>(script.byte() % 11);
    header.id = script.byte() % 8;
    header.payload = script.number<std::uint16_t>() % 6000;
    header.bytes = script.number<std::uint16_t>();
    header.value = script.number<std::uint16_t>();
    if (header.kind == FrameKind::message) {
      header.value = tagOf(1, script.byte() % kMost);
      header.announced = script.byte() % 2;
    }
    if (header.kind > FrameKind::part) header.payload = 0;
    header.freed = script.byte() % 4 == 0 ? script.number<std::uint16_t>() : 0;
    writeValue(socket, header);
    const std::vector<std::uint8_t> payload(header.payload, 0x11);
    write(socket, payload);
  }

  void receive() {
    Counted& transfer = receives_[received_];
    transfer.flight = {.to = reinterpret_cast<std::byte*>(rooms_[received_].data()),
                       .bytes = kRoom,
                       .tag = tagOf(1, static_cast<std::uint32_t>(received_)),
                       .peer = 1,
                       .inFlight = true};
    ++received_;
    peer_.recv(&transfer);
  }

  void send() {
    Counted& transfer = sends_[sent_];
    transfer.flight = {.from = reinterpret_cast<const std::byte*>(data_[sent_].data()),
                       .bytes = data_[sent_].size(),
                       .tag = tagOf(0, static_cast<std::uint32_t>(sent_)),
                       .peer = 1,
                       .isSend = true,
                       .inFlight = true};
    ++sent_;
    peer_.send(&transfer);
  }

  void cancel(std::uint8_t which) {
    Counted& transfer = (which % 2 != 0 ? sends_ : receives_)[which / 2 % kMost];
    if (!transfer.flight.inFlight || transfer.flight.cancelled) return;
    if (transfer.flight.isSend)
      for (TcpConnection* each : {&first_, &second_}) each->keepCopy(&transfer);
    peer_.cancel(&transfer);
  }

  std::array<Pair, 2> pairs_;
  std::array<std::vector<std::uint8_t>, kMost> rooms_, data_;
  std::array<Counted, kMost> receives_, sends_;
  std::size_t received_ = 0, sent_ = 0;
  TcpCommon common_;
  TcpPeer peer_;
  TcpConnection first_, second_;
};

void exchange(Script script) {
  constexpr std::size_t kMemory[] = {0, 3000, 30000, 1 << 20};
  DataPort port(kMemory[script.byte() % std::size(kMemory)]);
  port.play(script);
  port.end();
}

// ------------------------------------------------------------------------------ control
// connections

void control(Script script) {
  Pair pair;
  Mesh mesh;
  mesh.processes.resize(3);
  mesh.links.push_back({1, std::move(pair.ours)});
  const std::array nodes = {0, 1, 2};
  MeshOptions options;
  options.hosts = {"a", "b", "c"};
  const auto watch = makeMeshWatch(0, Topology(nodes), options, std::move(mesh));
  while (!script.empty()) {
    const std::uint8_t what = script.byte();
    if (what % 2 == 0) {
      write(pair.theirs, script.take(what));
      continue;
    }
    // A message, nearly right: kind, origin, sequence, bytes, as mesh_watch.cc has it.
    struct {
      std::uint32_t kind;
      std::int32_t origin;
      std::uint64_t sequence, bytes;
    } header{};
    header.kind = script.byte() % 5u;
    header.origin = script.byte() % 4 - 1;
    header.sequence = script.byte();
    const auto body = script.take(script.number<std::uint16_t>() % 700);
    header.bytes = body.size();
    writeValue(pair.theirs, header);
    write(pair.theirs, body);
  }
  ::shutdown(pair.theirs.get(), SHUT_WR);
  const bool lost = watch->await({}, afterMs(10000), [](const auto&, const auto& losses) {
    return std::ranges::find(losses, 1, &Loss::rank) != losses.end();
  });
  require(lost, "the end of a connection is noticed");
  for (const Loss& loss : watch->losses())
    require(loss.rank >= 0 && loss.rank < 3, "only ranks are lost");
  for (Watch::News news; watch->next(&news);)
    if (const auto* notice = std::get_if<Notice>(&news))
      require(notice->culprit >= -1 && notice->culprit < 3, "only ranks are blamed");
  pair.theirs = Socket();
  watch->leave();
}

// ----------------------------------------------------------------------------------- the
// rendezvous

// A listening socket without a name of its own in any folder.
Socket listenHere(sockaddr_un* address, socklen_t* size) {
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  *address = {};
  address->sun_family = AF_UNIX;
  require(bind(socket.get(), reinterpret_cast<sockaddr*>(address), sizeof(sa_family_t)) == 0 &&
              ::listen(socket.get(), 16) == 0,
          "it can listen");
  *size = sizeof *address;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(address), size);
  return socket;
}

class Guest {
 public:
  Guest(const sockaddr_un& address, socklen_t size)
      : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    require(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0,
            "it listens");
  }
  const Socket& socket() const { return socket_; }

  void join(int rank, int ranks) {
    Greeting greeting{kGreetingMagic, {}};
    writeValue(socket_, greeting);
    Challenge challenge{};
    // libFuzzer's clock interrupts.
    for (std::size_t have = 0; have < sizeof challenge;) {
      const ssize_t got = ::recv(socket_.get(), reinterpret_cast<char*>(&challenge) + have,
                                 sizeof challenge - have, 0);
      require(got > 0 || (got < 0 && errno == EINTR), "the service answers who greets");
      have += got > 0 ? static_cast<std::size_t>(got) : 0;
    }
    Join join{{ranks, rank, -1, "a guest"}, {}};
    join.proof = joinProof(kSecret, greeting.nonce, challenge.nonce, join.arrival);
    writeValue(socket_, join);
  }

 private:
  Socket socket_;
};

void rendezvous(Script script) {
  sockaddr_un address;
  socklen_t size = 0;
  RendezvousService service(listenHere(&address, &size), kSecret, {});
  std::thread thread([&] { service.run(); });
  {
    std::vector<Guest> strangers;
    Guest first(address, size), second(address, size);
    first.join(0, 2);
    second.join(1, 2);
    while (!script.empty()) {
      const std::uint8_t what = script.byte();
      const Socket& socket = what % 2 != 0 ? first.socket() : second.socket();
      switch (what / 2 % 3) {
        case 0:
          if (strangers.size() < 4) strangers.emplace_back(address, size);
          write(strangers[what / 8 % strangers.size()].socket(), script.take(script.byte()));
          break;
        case 1: {
          const auto body = script.take(script.byte());
          MessageHeader header{MessageKind::part, 0, body.size()};
          if (what > 200) header.kind = static_cast<MessageKind>(script.byte() % 7);
          if (what > 240) header.bytes = script.byte();
          writeValue(socket, header);
          write(socket, body);
          break;
        }
        default:
          readAll(socket);
      }
    }
  }
  thread.join();
}

}  // namespace
}  // namespace moeccl

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace moeccl;
  Script script({data, size});
  switch (script.byte() % 8) {
    case 0:
      greet(script);
      break;
    case 1:
      control(script);
      break;
    case 2:
      rendezvous(script);
      break;
    default:
      exchange(script);
  }
  return 0;
}
