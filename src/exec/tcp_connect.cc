// How the connections of a TCP transport come about.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "src/base/text.h"
#include "src/bootstrap/interfaces.h"
#include "src/exec/tcp_transport.h"

namespace moeccl {
namespace {

struct TcpAddressHeader {
  char magic[8] = {'m', 'o', 'e', 'c', 'c', 'l', 'T', '2'};
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
  std::int64_t process = 0;
  std::uint64_t share = 0;  // that each peer may send unasked
  std::int32_t connections = 0;
  std::int32_t endpoints = 0;
  char host[64] = {};
};

struct EndpointBytes {
  std::uint16_t family;  // 4 or 6
  std::uint16_t port;
  std::array<std::uint8_t, 16> address;
};

std::vector<IpAddress> addressesOf(const TcpOptions& options) {
  std::vector<InterfaceAddress> all = interfaceAddresses();
  if (options.oneHost && options.interfaces.empty())
    std::erase_if(all, [](const InterfaceAddress& each) { return !each.loopback; });
  return addressesToListenOn(options.interfaces, all);
}

}  // namespace

Transport::Address TcpTransport::address() {
  if (!acceptor_) {
    acceptor_.emplace(options_.secret);
    for (const IpAddress& address : addressesOf(options_))
      endpoints_.push_back({address, acceptor_->listen(address)});
    if (!watch(acceptor_->fd(), EPOLLIN, &acceptor_))
      throw std::runtime_error(stringf("rank %d: cannot poll: %s", rank_, std::strerror(errno)));
  }
  TcpAddressHeader header;
  header.rank = rank_;
  header.ranks = ranks_;
  header.process = getpid();
  header.share = share_;
  header.connections = options_.connections;
  header.endpoints = static_cast<std::int32_t>(endpoints_.size());
  gethostname(header.host, sizeof header.host - 1);
  Address bytes(sizeof header + endpoints_.size() * sizeof(EndpointBytes));
  std::memcpy(bytes.data(), &header, sizeof header);
  std::byte* to = bytes.data() + sizeof header;
  for (const IpEndpoint& each : endpoints_) {
    const EndpointBytes endpoint{static_cast<std::uint16_t>(each.address.family == AF_INET ? 4 : 6),
                                 each.port, each.address.bytes};
    std::memcpy(to, &endpoint, sizeof endpoint);
    to += sizeof endpoint;
  }
  return bytes;
}

void TcpTransport::connect(std::span<const Address> addresses) {
  if (addresses.size() != static_cast<std::size_t>(ranks_))
    throw std::runtime_error(
        stringf("rank %d: connect got %zu addresses, expected one for each of %d ranks", rank_,
                addresses.size(), ranks_));
  std::vector<std::unique_ptr<Peer>> peers;
  for (int rank = 0; rank < ranks_; ++rank) {
    peers.push_back(std::make_unique<Peer>(common_, rank, share_));
    readAddress(*peers.back(), addresses[static_cast<std::size_t>(rank)]);
  }
  peers_ = std::move(peers);
}

void TcpTransport::readAddress(Peer& peer, const Address& bytes) {
  const int rank = peer.core.rank();
  const TcpAddressHeader expected;
  TcpAddressHeader header;
  if (bytes.size() < sizeof header ||
      std::memcmp(bytes.data(), expected.magic, sizeof expected.magic) != 0)
    throw std::runtime_error(
        stringf("rank %d: the address of rank %d is not a TCP address", rank_, rank));
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.rank != rank || header.ranks != ranks_)
    throw std::runtime_error(
        stringf("rank %d: address %d is that of rank %d of %d, expected rank %d of %d", rank_, rank,
                header.rank, header.ranks, rank, ranks_));
  const auto endpoints = static_cast<std::size_t>(header.endpoints);
  if (header.connections < 1 || header.connections > kMostTcpConnections || endpoints < 1 ||
      endpoints > kFamilies || bytes.size() != sizeof header + endpoints * sizeof(EndpointBytes))
    throw std::runtime_error(
        stringf("rank %d: the address of rank %d is not a TCP address", rank_, rank));
  header.host[sizeof header.host - 1] = '\0';
  const int connections = std::min(header.connections, options_.connections);
  peer.core.know(stringf("process %lld on %s", static_cast<long long>(header.process), header.host),
                 header.share, connections);
  if (rank != rank_) peer.connections.resize(static_cast<std::size_t>(connections));
  std::vector<IpEndpoint> theirs;
  for (std::size_t i = 0; i < endpoints; ++i) {
    EndpointBytes raw;
    std::memcpy(&raw, bytes.data() + sizeof header + i * sizeof raw, sizeof raw);
    theirs.push_back({{raw.family == 4 ? AF_INET : AF_INET6, raw.address}, raw.port});
  }
  std::vector<IpAddress> mine;
  for (const IpEndpoint& each : endpoints_) mine.push_back(each.address);
  peer.endpoint = endpointToDial(theirs, mine);
}

bool TcpTransport::watch(int fd, std::uint32_t events, void* data) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = data;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

TcpConnection& TcpTransport::add(Peer& peer, std::size_t index) {
  ++connections_;
  for (auto* list : {&ready_, &ended_, &pausing_}) list->reserve(connections_);
  peer.connections[index] =
      std::make_unique<TcpConnection>(common_, peer.core, static_cast<int>(index));
  return *peer.connections[index];
}

void TcpTransport::reach(Peer& peer) {
  if (peer.reached || peer.core.gone()) return;
  peer.reached = true;
  for (std::size_t index = 0; index < peer.connections.size(); ++index)
    if (!peer.connections[index]) dial(peer, add(peer, index));
}

void TcpTransport::dial(Peer& peer, TcpConnection& connection) {
  connection.dial(peer.endpoint.address, peer.endpoint.port);
  if (connection.stage() == TcpConnection::Stage::connecting &&
      !watch(connection.socket().get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &connection))
    connection.abandon("cannot poll a connection");
  list(connection);
}

void TcpTransport::redial() {
  for (std::size_t i = 0; i < pausing_.size();) {
    TcpConnection& connection = *pausing_[i];
    if (!isPast(connection.next())) {
      ++i;
      continue;
    }
    pausing_.erase(pausing_.begin() + static_cast<std::ptrdiff_t>(i));
    dial(peer(connection.peer().rank()), connection);
  }
}

void TcpTransport::serve() {
  const bool listened = serveAt_ == kNever;
  const bool knocked = std::exchange(knocked_, false);
  bool came = false;
  acceptor_->serve();
  for (Acceptor::Guest guest; acceptor_->next(&guest); came = true) admit(std::move(guest));
  knocks_.awoke(knocked, came);
  const bool deaf = knocks_.deaf();
  serveAt_ = deaf ? afterMs(VainRings::kLookMs) : kNever;
  if (deaf != listened) return;
  epoll_event event{};
  if (!deaf) event.events = EPOLLIN;
  event.data.ptr = &acceptor_;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, acceptor_->fd(), &event);
}

// Both may have dialed at once: then each keeps what the lower rank has dialed, and the higher
// one's attempt ends. So a rank that is dialing itself lets in only lower ones.
void TcpTransport::admit(Acceptor::Guest guest) {
  const auto [rank, purpose, index] = guest.hello;
  if (purpose != static_cast<std::uint32_t>(ConnectionPurpose::data) ||
      rank >= static_cast<std::uint32_t>(ranks_) || rank == static_cast<std::uint32_t>(rank_))
    return;
  Peer& from = peer(static_cast<int>(rank));
  if (from.core.gone() || index >= from.connections.size()) return;
  if (const auto& mine = from.connections[index]) {
    const bool isPairs = mine->stage() == TcpConnection::Stage::open ||
                         (mine->stage() == TcpConnection::Stage::ended && mine->isFinal());
    if (isPairs || static_cast<int>(rank) > rank_) return;
    forget(*mine);
  }
  TcpConnection& connection = add(from, index);
  from.reached = true;
  connection.accept(std::move(guest.socket));
  if (!watch(connection.socket().get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &connection))
    connection.abandon("cannot poll a connection");
  list(connection);
}

}  // namespace moeccl
