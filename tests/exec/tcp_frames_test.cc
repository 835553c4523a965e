// What a rank's port does with frames that no honest peer sends, from one that holds the secret,
// and with those who do not.
#include "src/exec/tcp_frames.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "src/bootstrap/acceptor.h"
#include "src/exec/tcp_transport.h"
#include "tests/exec/transport_world.h"
#include "tests/sanitized.h"

namespace moeccl::test {
namespace {

const Secret kSecret{std::byte{3}};

TcpOptions optionsOf(std::size_t memory) {
  TcpOptions options;
  options.secret = kSecret;
  options.oneHost = true;
  options.memory = memory;
  return options;
}

// Behind it 16 bits of the family, 16 of the port, and the IP address (tcp_connect.cc).
constexpr std::size_t kAddressHeader = 104;

std::uint16_t portIn(const Transport::Address& address) {
  std::uint16_t port = 0;
  std::memcpy(&port, address.data() + kAddressHeader + 2, sizeof port);
  return port;
}

// Rank 0 of two, whose rank 1 is this test.
struct Victim {
  explicit Victim(std::size_t memory)
      : transport(0, 2, optionsOf(memory)), other(1, 2, optionsOf(memory)) {
    const std::vector addresses = {transport.address(), other.address()};
    port = portIn(addresses[0]);
    transport.connect(addresses);
  }
  TcpTransport transport, other;  // the other is only an address
  std::uint16_t port = 0;
};

Socket dial(std::uint16_t port) {
  Socket socket;
  EXPECT_EQ(startConnect({AF_INET, {127, 0, 0, 1}}, port, &socket), 0);
  pollfd polled{socket.get(), POLLOUT, 0};
  poll(&polled, 1, 5000);
  return socket;
}

// As rank 1, until it is welcome.
Socket enter(Victim& victim) {
  Socket socket = dial(victim.port);
  Handshake handshake =
      Handshake::dialer(kSecret, {1, static_cast<std::uint32_t>(ConnectionPurpose::data), 0});
  FrameHeader welcome;
  std::size_t have = 0;
  // Both sides are this thread: neither sleeps.
  const TimePoint end = afterMs(20000);
  while (have < sizeof welcome && !isPast(end)) {
    victim.transport.progress();
    if (handshake.state() != Handshake::State::done && !advance(handshake, socket)) break;
    if (handshake.state() != Handshake::State::done) continue;
    const ssize_t got =
        recv(socket.get(), reinterpret_cast<char*>(&welcome) + have, sizeof welcome - have, 0);
    have += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  EXPECT_EQ(welcome.kind, FrameKind::welcome);
  return socket;
}

void put(std::vector<std::uint8_t>& stream, const FrameHeader& header, std::size_t payload) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&header);
  stream.insert(stream.end(), bytes, bytes + sizeof header);
  stream.insert(stream.end(), payload, 0x11);
}

// Frames of all kinds, mostly nearly right.
std::vector<std::uint8_t> frames(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t most) { return random() % most; };
  std::vector<std::uint8_t> stream;
  for (int i = 0; i < 30; ++i) {
    FrameHeader header;
    header.kind = static_cast<FrameKind>(below(11));
    header.id = static_cast<std::uint32_t>(below(6));
    header.bytes = below(4) == 0 ? random() >> below(64) : below(20000);
    header.payload = static_cast<std::uint32_t>(below(3) == 0 ? 0 : below(9000));
    header.value = below(5) == 0 ? random() >> below(64) : below(20000);
    if (header.kind == FrameKind::message && below(10) > 0) {
      header.value = tagOf(1, static_cast<std::uint32_t>(below(8)));
      header.payload =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(header.payload, header.bytes));
    }
    if (header.kind > FrameKind::part && below(4) > 0) header.payload = 0;
    if (header.kind == FrameKind::message) header.announced = header.payload == 0 || below(20) == 0;
    if (below(20) == 0) header.freed = static_cast<std::uint32_t>(random());
    put(stream, header, below(20) == 0 ? below(100) : header.payload);
  }
  return stream;
}

TEST(TcpFrames, NoneFromAPeerBreakARank) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 400; ++round) {
    Victim victim(round % 3 == 0 ? 0 : 30000);
    const Socket socket = enter(victim);
    constexpr std::size_t kRoom = 5000, kGuard = 64;
    std::vector<std::vector<std::uint8_t>> rooms(8);
    std::vector<Probe> recvs(rooms.size()), sends(3);
    const auto start = [&](std::size_t i) {
      rooms[i].assign(kRoom + kGuard, 0xee);
      victim.transport.recv(1, tagOf(1, static_cast<std::uint32_t>(i)), rooms[i].data(), kRoom,
                            &recvs[i]);
    };
    std::vector<std::uint8_t> data(50000);
    for (std::size_t i = 0; i < 4; ++i) start(i);
    for (std::size_t i = 0; i < sends.size(); ++i)
      victim.transport.send(1, tagOf(0, static_cast<std::uint32_t>(i)), data.data(), data.size(),
                            &sends[i]);
    const std::vector<std::uint8_t> stream = frames(random);
    std::size_t sent = 0;
    for (int step = 0; step < 60; ++step) {
      const std::size_t now = std::min<std::size_t>(stream.size() - sent, 1 + random() % 20000);
      const ssize_t put = ::send(socket.get(), stream.data() + sent, now, MSG_NOSIGNAL);
      if (put > 0) sent += static_cast<std::size_t>(put);
      victim.transport.progress();
      if (step == 20)
        for (std::size_t i = 4; i < 8; ++i) start(i);
      if (step == 40) {
        victim.transport.cancel(&recvs[0]);
        victim.transport.cancel(&recvs[5]);
        victim.transport.cancel(&sends[1]);
      }
    }
    victim.transport.close(true, 0);
    for (const Probe& probe : recvs) EXPECT_EQ(probe.completions, 1);
    for (const Probe& probe : sends) EXPECT_EQ(probe.completions, 1);
    for (const auto& room : rooms)
      EXPECT_EQ(std::count(room.begin() + kRoom, room.end(), 0xee),
                static_cast<std::ptrdiff_t>(kGuard));
  }
}

// Its tags name its own messages.
TEST(TcpFrames, APeerCannotSpeakForAnother) {
  Victim victim(30000);
  const Socket socket = enter(victim);
  std::uint32_t value = 0;
  Probe recv;
  victim.transport.recv(1, tagOf(1, 1), &value, sizeof value, &recv);
  std::vector<std::uint8_t> stream;
  put(stream, {.kind = FrameKind::message, .payload = 4, .id = 1, .value = tagOf(0, 1), .bytes = 4},
      4);
  ASSERT_EQ(::send(socket.get(), stream.data(), stream.size(), 0),
            static_cast<ssize_t>(stream.size()));
  ASSERT_TRUE(finish(victim.transport, {&recv}));
  EXPECT_EQ(recv.status, TransferStatus::unreachable);
  EXPECT_NE(victim.transport.lastError().find("does not belong here"), std::string::npos)
      << victim.transport.lastError();
}

// Whether a host is dead is for the watch to say, not for the first call that needs it.
TEST(TcpFrames, AHostThatCannotBeReachedIsDialedAgain) {
  for (const std::int64_t dialMs : {300, 600000}) {
    TcpOptions options = optionsOf(30000);
    options.dialMs = dialMs;
    TcpTransport transport(0, 2, options), other(1, 2, options);
    std::vector addresses = {transport.address(), other.address()};
    // Broadcast: the kernel says that there is no way there, and sends nothing.
    std::fill_n(addresses[1].begin() + kAddressHeader + 4, 4, std::byte{255});
    transport.connect(addresses);
    int value = 0;
    Probe send;
    transport.send(1, tagOf(0, 1), &value, sizeof value, &send);
    const TimePoint soon = afterMs(100);
    while (!isPast(soon)) transport.progress();
    EXPECT_EQ(send.completions, 0) << transport.lastError();
    if (dialMs > 1000) transport.lose(1, "its host has not answered");
    ASSERT_TRUE(finish(transport, {&send}));
    EXPECT_EQ(send.status, TransferStatus::unreachable);
    const char* const why = dialMs > 1000 ? "its host has not answered" : "unreachable";
    EXPECT_NE(transport.lastError().find(why), std::string::npos) << transport.lastError();
  }
}

// Its goodbye goes another way, and may come before what it has sent.
TEST(TcpFrames, WhatAPeerHasSentArrivesAfterItHasLeft) {
  Victim victim(30000);
  Socket socket = enter(victim);
  std::vector<std::uint32_t> values(2000);
  const std::size_t bytes = values.size() * sizeof values[0];
  Probe recv, later;
  victim.transport.recv(1, tagOf(1, 1), values.data(), bytes, &recv);
  victim.transport.recv(1, tagOf(1, 2), values.data(), bytes, &later);
  std::vector<std::uint8_t> stream;
  put(stream,
      {.kind = FrameKind::message,
       .payload = static_cast<std::uint32_t>(bytes),
       .id = 1,
       .value = tagOf(1, 1),
       .bytes = bytes},
      bytes);
  const std::size_t half = stream.size() / 2;
  ASSERT_EQ(::send(socket.get(), stream.data(), half, 0), static_cast<ssize_t>(half));
  victim.transport.leave(1, "it has left");
  for (int i = 0; i < 100; ++i) victim.transport.progress();
  ASSERT_EQ(::send(socket.get(), stream.data() + half, stream.size() - half, MSG_NOSIGNAL),
            static_cast<ssize_t>(stream.size() - half));
  socket = Socket();
  ASSERT_TRUE(finish(victim.transport, {&recv, &later}));
  EXPECT_EQ(recv.status, TransferStatus::ok);
  EXPECT_EQ(values, std::vector<std::uint32_t>(values.size(), 0x11111111u));
  EXPECT_EQ(later.status, TransferStatus::unreachable);
  EXPECT_NE(victim.transport.lastError().find("it has left"), std::string::npos)
      << victim.transport.lastError();
}

// Small messages that nobody has asked for take more memory than they have bytes.
TEST(TcpFrames, ThePeersShareBoundsSmallMessagesToo) {
  constexpr std::size_t kShare = std::size_t{1} << 20;
  for (const std::uint32_t bytes : {8, 0}) {
    TcpCommon common(kShare);
    TcpPeer peer(common, 1, kShare);
    peer.know("a peer", kShare, 1);
    FrameHeader header = {.kind = FrameKind::message,
                          .payload = bytes,
                          .id = 1,
                          .value = tagOf(1, 1),
                          .bytes = bytes};
    TcpPeer::Incoming incoming;
    std::size_t taken = 0;
    while (taken <= kShare && peer.take(header, true, &incoming) == TcpPeer::Verdict::taken) {
      if (bytes > 0) peer.arrived(&incoming, header.payload);
      ++header.id;
      ++taken;
    }
    EXPECT_EQ(taken, kShare / chargeOf(bytes));
    EXPECT_LE(common.memory.held(), kShare);
    peer.lose("the end", TransferStatus::unreachable);
  }
}

// The frames that a peer has for a connection, in their order.
std::vector<FrameHeader> said(TcpPeer& peer) {
  std::vector<FrameHeader> frames(peer.control().size() / sizeof(FrameHeader));
  if (!frames.empty()) std::memcpy(frames.data(), peer.control().data(), peer.control().size());
  peer.control().clear();
  for (TcpPeer::Outgoing out; peer.pull(true, &out);) {
    frames.push_back(out.header);
    if (out.transfer != nullptr) peer.written(out.transfer, out.header.payload);
  }
  return frames;
}

// Two ends of a connection: what one has for the other arrives.
void bring(TcpPeer& from, TcpPeer& to) {
  for (const FrameHeader& frame : said(from)) {
    TcpPeer::Incoming incoming;
    ASSERT_EQ(to.take(frame, true, &incoming), TcpPeer::Verdict::taken);
  }
}

// Beyond the credit of its sender a message without a byte waits there until it is asked for.
TEST(TcpFrames, MessagesWithoutAByteWaitForCredit) {
  constexpr std::size_t kShare = 2 * chargeOf(0);
  TcpCommon common(kShare);
  TcpPeer sender(common, 1, kShare), receiver(common, 0, kShare);
  sender.know("the receiver", kShare, 1);
  receiver.know("the sender", kShare, 1);
  std::vector<Probe> sends(5), recvs(4);
  for (Probe& send : sends) {
    send.flight = {.tag = tagOf(0, 1), .isSend = true, .inFlight = true};
    sender.send(&send);
  }
  bring(sender, receiver);
  const auto over = [](const std::vector<Probe>& probes) {
    return std::ranges::count(probes, 1, &Probe::completions);
  };
  EXPECT_EQ(over(sends), 2);
  // The last is taken back: no receive gets it.
  sender.cancel(&sends[4]);
  EXPECT_EQ(sends[4].status, TransferStatus::cancelled);
  for (Probe& recv : recvs) {
    recv.flight = {.tag = tagOf(0, 1), .inFlight = true};
    receiver.recv(&recv);
  }
  bring(sender, receiver);
  bring(receiver, sender);
  EXPECT_EQ(over(sends), 5);
  EXPECT_EQ(over(recvs), 4);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(recvs[static_cast<std::size_t>(i)].status, TransferStatus::ok);
  // Nothing is left of any: there is credit again, and nothing to receive.
  Tag found;
  EXPECT_FALSE(receiver.unexpected(0, 0, &found));
  sender.lose("the end", TransferStatus::unreachable);
  receiver.lose("the end", TransferStatus::unreachable);
}

// One that was granted meanwhile is over at its receiver.
TEST(TcpFrames, AMessageWithoutAByteMayBeTakenBackTooLate) {
  TcpCommon common(0);
  TcpPeer sender(common, 1, 0), receiver(common, 0, 0);
  sender.know("the receiver", 0, 1);
  receiver.know("the sender", 0, 1);
  Probe send, recv;
  send.flight = {.tag = tagOf(0, 1), .isSend = true, .inFlight = true};
  recv.flight = {.tag = tagOf(0, 1), .inFlight = true};
  sender.send(&send);
  bring(sender, receiver);
  receiver.recv(&recv);
  EXPECT_EQ(recv.status, TransferStatus::ok);
  sender.cancel(&send);
  bring(sender, receiver);
  bring(receiver, sender);
  EXPECT_EQ(send.completions, 1);
  EXPECT_EQ(send.status, TransferStatus::cancelled);
}

// The memory of this process alone, whatever its files.
std::size_t residentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t all = 0, resident = 0, shared = 0;
  statm >> all >> resident >> shared;
  return (resident - shared) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// What was kept for messages of one size makes room for those of another.
TEST(TcpFrames, MemoryStaysWithinItsBoundWhateverTheSizes) {
  constexpr std::size_t kShare = std::size_t{32} << 20, kMargin = kShare / 32;
  TcpCommon common(kShare);
  TcpPeer peer(common, 1, kShare);
  peer.know("a peer", kShare, 1);
  FrameHeader header = {.kind = FrameKind::message, .id = 1, .value = tagOf(1, 1)};
  const std::size_t before = residentBytes();
  for (std::size_t bytes :
       {std::size_t{1} << 20, std::size_t{500'000}, std::size_t{250'000}, std::size_t{70'000},
        std::size_t{40'000}, std::size_t{9000}, std::size_t{300}, std::size_t{1}, std::size_t{9000},
        std::size_t{600'000}}) {
    header.payload = static_cast<std::uint32_t>(bytes);
    header.bytes = bytes;
    std::size_t sent = 0;
    TcpPeer::Incoming incoming;
    while (peer.take(header, true, &incoming) == TcpPeer::Verdict::taken) {
      while (incoming.left > 0) {
        const std::span<std::byte> place = peer.placeOf(incoming);
        std::ranges::fill(place, static_cast<std::byte>(header.id));
        peer.arrived(&incoming, place.size());
      }
      ++header.id;
      ++sent;
    }
    EXPECT_EQ(sent, kShare / chargeOf(bytes));
    EXPECT_GE(sent * (bytes + 1024), kShare - kShare / 8) << bytes;
    EXPECT_LE(common.memory.held(), kShare + kMargin) << bytes;
    if (!kSanitized) {
      EXPECT_LE(residentBytes(), before + kShare + kMargin) << bytes;
    }
    // They come in their order, each with its own bytes.
    std::vector<std::byte> room(bytes);
    for (std::size_t left = sent; left > 0; --left) {
      Probe recv;
      recv.flight = {.to = room.data(), .bytes = bytes, .tag = header.value, .inFlight = true};
      peer.recv(&recv);
      ASSERT_EQ(recv.status, TransferStatus::ok);
      const auto expected = static_cast<std::byte>(header.id - left);
      ASSERT_EQ(std::ranges::count(room, expected), static_cast<std::ptrdiff_t>(bytes));
    }
    peer.giveCreditBack();
  }
  EXPECT_LE(common.memory.held(), kShare);
  peer.lose("the end", TransferStatus::unreachable);
}

// A living peer may have sent any number of messages before one that it has no credit for.
TEST(TcpFrames, OnlyAnnouncedMessagesCountAsAnnounced) {
  constexpr std::uint32_t kMessages = (1u << 20) + 2;
  constexpr std::size_t kShare = kMessages * chargeOf(0);
  TcpCommon common(kShare);
  TcpPeer peer(common, 1, kShare);
  peer.know("a peer", kShare, 1);
  FrameHeader header = {.kind = FrameKind::message, .id = 1, .value = tagOf(1, 1)};
  TcpPeer::Incoming incoming;
  for (; header.id <= kMessages; ++header.id)
    ASSERT_EQ(peer.take(header, true, &incoming), TcpPeer::Verdict::taken);
  header.announced = 1;
  header.bytes = 8;
  EXPECT_EQ(peer.take(header, true, &incoming), TcpPeer::Verdict::taken);
  peer.lose("the end", TransferStatus::unreachable);
}

TEST(TcpFrames, StrangersDisturbNobody) {
  std::mt19937_64 random(9);
  Victim victim(30000);
  std::vector<Socket> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(dial(victim.port));
    std::vector<std::uint8_t> garbage(random() % 200);
    for (std::uint8_t& byte : garbage) byte = static_cast<std::uint8_t>(random());
    ::send(strangers.back().get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
  }
  const Socket socket = enter(victim);
  std::uint32_t value = 0;
  Probe recv;
  victim.transport.recv(1, tagOf(1, 1), &value, sizeof value, &recv);
  std::vector<std::uint8_t> stream;
  put(stream, {.kind = FrameKind::message, .payload = 4, .id = 1, .value = tagOf(1, 1), .bytes = 4},
      4);
  ASSERT_EQ(::send(socket.get(), stream.data(), stream.size(), 0),
            static_cast<ssize_t>(stream.size()));
  ASSERT_TRUE(finish(victim.transport, {&recv}));
  EXPECT_EQ(recv.status, TransferStatus::ok);
  EXPECT_EQ(value, 0x11111111u);
}

// They may knock for ever, but wake a rank no more than some times a second; and it still lets in
// who belongs to it.
TEST(TcpFrames, StrangersKeepNobodyAwake) {
  Victim victim(30000);
  std::atomic<bool> over = false;
  std::thread stranger([&] {
    while (!over) {
      const Socket socket = dial(victim.port);
      ::send(socket.get(), "garbage", 7, MSG_NOSIGNAL);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const TimePoint end = afterMs(2000);
  int wakes = 0;
  for (; !isPast(end); ++wakes) {
    victim.transport.progress();
    victim.transport.wait(100);
  }
  EXPECT_LT(wakes, 2 * 100);
  const Socket socket = enter(victim);
  over = true;
  stranger.join();
}

}  // namespace
}  // namespace moeccl::test
