// Starts UCX, tells other ranks the address of its worker, and takes in theirs.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "src/base/text.h"
#include "src/exec/ucx_room.h"
#include "src/exec/ucx_settings.h"
#include "src/exec/ucx_sockets.h"
#include "src/exec/ucx_transport.h"

namespace moeccl {
namespace {

struct UcxAddressHeader {
  char magic[8] = {'m', 'o', 'e', 'c', 'c', 'l', 'U', '1'};
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
  ProcessIdentity process;
  std::int64_t share = 0;  // that each peer may send unasked
  char host[64] = {};
};

void check(ucs_status_t status, int rank, const char* what) {
  if (status != UCS_OK)
    throw std::runtime_error(
        stringf("rank %d: UCX: %s: %s", rank, what, ucs_status_string(status)));
}

}  // namespace

UcxTransport::UcxTransport(int rank, int ranks, const UcxOptions& options)
    : rank_(rank),
      ranks_(ranks),
      sources_(options.sources),
      woken_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      share_(static_cast<std::int64_t>(options.memory) / std::max(1, ranks - 1)) {
  if (!woken_)
    throw std::runtime_error(stringf("rank %d: eventfd: %s", rank, std::strerror(errno)));
  requireDescriptors(ranks);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_REQUEST_SIZE |
                      UCP_PARAM_FIELD_REQUEST_INIT | UCP_PARAM_FIELD_TAG_SENDER_MASK |
                      UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.request_size = sizeof(RequestSpace);
  params.request_init = &UcxTransport::initRequest;
  params.tag_sender_mask = (std::uint64_t{1} << kSourceBits) - 1;
  params.estimated_num_eps = static_cast<std::size_t>(ranks);
  params.name = "moeccl";
  const UcxConfig config = readUcxConfig(options.reach, &tcp_);
  ucp_context_h context = nullptr;
  check(ucp_init(&params, config.get(), &context), rank_, "starting");
  context_.reset(context);

  // The caller's progress thread and his own take turns.
  ucp_worker_params_t workerParams{};
  workerParams.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  workerParams.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  const UcxSockets sockets;
  const ucs_status_t made = ucp_worker_create(context, &workerParams, &worker);
  if (made != UCS_OK)
    throw std::runtime_error(stringf(
        "rank %d: UCX: creating a worker: %s (%s; MOECCL_TRANSPORT=tcp needs no shared memory)",
        rank, ucs_status_string(made), describeSharedMemory(ranks).c_str()));
  worker_.reset(worker);
  sockets.dropEmptyDatagrams();
  setControlHandler();

  check(ucp_worker_get_efd(worker, &workerEvents_), rank_, "getting the worker's events");
  sleepOn_ = {workerEvents_, woken_.get(), processes_.fd()};
}

UcxTransport::~UcxTransport() { close(true, 0); }

std::string UcxTransport::name() const {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return stringf("UCX %u.%u.%u", major, minor, release);
}

Transport::Address UcxTransport::address() {
  UcxAddressHeader header;
  header.rank = rank_;
  header.ranks = ranks_;
  header.process = ProcessIdentity::self();
  header.share = share_;
  gethostname(header.host, sizeof header.host - 1);
  ucp_address_t* worker = nullptr;
  std::size_t bytes = 0;
  check(ucp_worker_get_address(worker_.get(), &worker, &bytes), rank_,
        "getting the worker's address");
  Address address(sizeof header + bytes);
  std::memcpy(address.data(), &header, sizeof header);
  std::memcpy(address.data() + sizeof header, worker, bytes);
  ucp_worker_release_address(worker_.get(), worker);
  return address;
}

void UcxTransport::connect(std::span<const Address> addresses) {
  if (addresses.size() != static_cast<std::size_t>(ranks_))
    throw std::runtime_error(
        stringf("rank %d: connect got %zu addresses, expected one for each of %d ranks", rank_,
                addresses.size(), ranks_));
  const ProcessIdentity self = ProcessIdentity::self();
  std::vector<Peer> peers(addresses.size());
  for (int rank = 0; rank < ranks_; ++rank) {
    const Address& bytes = addresses[static_cast<std::size_t>(rank)];
    const UcxAddressHeader expected;
    UcxAddressHeader header;
    if (bytes.size() <= sizeof header ||
        std::memcmp(bytes.data(), expected.magic, sizeof expected.magic) != 0)
      throw std::runtime_error(
          stringf("rank %d: the address of rank %d is not a UCX address", rank_, rank));
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.rank != rank || header.ranks != ranks_)
      throw std::runtime_error(
          stringf("rank %d: address %d is that of rank %d of %d, expected rank %d of %d", rank_,
                  rank, header.rank, header.ranks, rank, ranks_));
    Peer& peer = peers[static_cast<std::size_t>(rank)];
    peer.transport = this;
    peer.rank = rank;
    peer.address.assign(bytes.begin() + sizeof header, bytes.end());
    peer.process = header.process;
    peer.elsewhere = header.process.kernel != self.kernel;
    peer.credit = header.share;
    peer.name =
        stringf("process %lld on %.63s", static_cast<long long>(header.process.pid), header.host);
  }
  peers_ = std::move(peers);
  for (Peer& peer : peers_)
    if (!tcp_ && !peer.elsewhere && peer.rank != rank_) makeEndpoint(peer);
}

void UcxTransport::initRequest(void* request) { *static_cast<RequestSpace*>(request) = {}; }

std::unique_ptr<PollableTransport> makeUcxTransport(int rank, int ranks,
                                                    const UcxOptions& options) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    throw std::runtime_error(
        stringf("rank %d of %d ranks: expected 0 <= rank < ranks", rank, ranks));
  if (ranks > 1 << kSourceBits)
    throw std::runtime_error(
        stringf("%d ranks: at most %d can be told apart", ranks, 1 << kSourceBits));
  return std::make_unique<UcxTransport>(rank, ranks, options);
}

}  // namespace moeccl
