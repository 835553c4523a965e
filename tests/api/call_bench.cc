// What a call costs beside its sends and receives: once a plan is cached, over a transport that
// moves nothing and completes at once.
//
//     call_bench [CALLS]
//
// CALLS: to a batch, of which there are 101; 1000 unless given.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "src/api/handles.h"
#include "src/watch/local_watch.h"

namespace moeccl {
namespace {

// Rank 0. Not inlined anywhere, as no real transport's functions are.
class InstantTransport final : public Transport {
 public:
  explicit InstantTransport(int ranks) : ranks_(ranks) {}
  int rank() const override { return 0; }
  int ranks() const override { return ranks_; }
  std::string name() const override { return "none"; }
  Address address() override { return {}; }
  void connect(std::span<const Address>) override {}
  void send(int, Tag, const void*, std::size_t bytes, Transfer* transfer) override {
    transfer->done(transfer, TransferStatus::ok, bytes);
  }
  void recv(int, Tag, void*, std::size_t bytes, Transfer* transfer) override {
    transfer->done(transfer, TransferStatus::ok, bytes);
  }
  void cancel(Transfer*) override {}
  bool unexpected(Tag, Tag, Tag*) override { return false; }
  bool progress() override { return true; }
  void wait(int) override {}
  void wake() override {}
  void lose(int, const std::string&) override {}
  bool close(bool, int) override { return true; }
  std::string lastError() const override { return {}; }

 private:
  int ranks_;
};

// Median of batches, in nanoseconds: what a call costs where nothing disturbs it.
double nanosecondsPerCall(int calls, const std::function<void()>& call) {
  constexpr int kBatches = 101;
  using Clock = std::chrono::steady_clock;
  std::vector<double> batches;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    batches.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count() /
                      calls);
  }
  std::nth_element(batches.begin(), batches.begin() + kBatches / 2, batches.end());
  return batches[kBatches / 2];
}

// The least that an all-to-all can be: a receive and a send for each other rank, and a copy.
double bySendsAlone(int ranks, std::size_t block, const std::byte* in, std::byte* out, int calls) {
  const std::unique_ptr<Transport> transport = std::make_unique<InstantTransport>(ranks);
  std::vector<Transfer> transfers(static_cast<std::size_t>(2 * ranks));
  for (Transfer& transfer : transfers)
    transfer.done = [](Transfer* self, TransferStatus, std::size_t) { self->flight.peer = 0; };
  Transport* volatile hidden = transport.get();
  return nanosecondsPerCall(calls, [&] {
    Transport& over = *hidden;
    for (int peer = 1; peer < ranks; ++peer)
      over.recv(peer, 1, out + block * peer, block, &transfers[peer]);
    for (int peer = 1; peer < ranks; ++peer)
      over.send(peer, 1, in + block * peer, block, &transfers[ranks + peer]);
    std::memcpy(out, in, block);
  });
}

void printCall(const std::vector<int>& nodes, const std::string& algorithm, std::size_t block,
               int calls) {
  int ranks = 0;
  std::string name;
  for (int size : nodes) {
    if (ranks > 0) name += "+";
    name += std::to_string(size);
    ranks += size;
  }
  Settings settings;
  if (algorithm != "auto")
    parseAlgorithms("alltoall=" + algorithm, "call_bench", &settings.algorithms);
  moecclComm comm;
  const auto state = std::make_shared<CommState>();
  addHandle(HandleKind::communicator, &comm, state);
  state->communicator = HostCommunicator::over(
      std::make_unique<InstantTransport>(ranks),
      makeLocalWatch(Secret{}, 0,
                     std::vector<std::string>(static_cast<std::size_t>(ranks), "host")),
      Topology::uneven(nodes), settings);
  state->model = std::make_unique<CostModel>(Topology::uneven(nodes));
  std::vector<std::byte> in(block * ranks), out(block * ranks);
  const auto call = [&] {
    if (moecclAllToAll(in.data(), out.data(), block, moecclUint8, &comm, nullptr) != moecclSuccess)
      throw Error(moecclInternalError, state->lastError);
  };
  call();  // makes the plan
  const double whole = nanosecondsPerCall(calls, call);
  const double alone = bySendsAlone(ranks, block, in.data(), out.data(), calls);
  std::printf("%-6s %6d  %-14s %8zu %10.3f %12.3f %10.3f\n", name.c_str(), ranks, algorithm.c_str(),
              block, whole * 1e-3, alone * 1e-3, (whole - alone) * 1e-3);
  state->communicator->destroy();
  removeHandle(HandleKind::communicator, &comm);
}

}  // namespace
}  // namespace moeccl

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::atoi(argv[1]) : 1000;
  if (argc > 2 || calls < 1) {
    std::fprintf(stderr,
                 "usage: call_bench [CALLS]\nCALLS: to a batch; 1 or more, 1000 unless given\n");
    return 2;
  }
  std::printf("All-to-all, a cached call of one rank. Microseconds.\n\n");
  std::printf("%-6s %6s  %-14s %8s %10s %12s %10s\n", "nodes", "ranks", "algorithm", "block",
              "call", "sends alone", "overhead");
  for (const std::vector<int>& nodes : {std::vector<int>{8}, {4, 4}, {8, 8, 8, 8}})
    for (const char* algorithm : {"linear", "auto", "pairwise", "hierarchical", "bruck"})
      for (const std::size_t block : {std::size_t{64}, std::size_t{4096}})
        moeccl::printCall(nodes, algorithm, block, calls);
}
