// What a call costs beside its sends and receives, by Google Benchmark: once a plan is cached, over
// a transport that moves nothing and completes at once.
#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>
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

// The least that an all-to-all can be: a receive and a send for each other rank, and a copy.
void sendsAlone(benchmark::State& state, int ranks, std::size_t block) {
  const std::unique_ptr<Transport> transport = std::make_unique<InstantTransport>(ranks);
  std::vector<std::byte> in(block * ranks), out(block * ranks);
  std::vector<Transfer> transfers(static_cast<std::size_t>(2 * ranks));
  for (Transfer& transfer : transfers)
    transfer.done = [](Transfer* self, TransferStatus, std::size_t) { self->flight.peer = 0; };
  Transport* volatile hidden = transport.get();
  for (auto _ : state) {
    Transport& over = *hidden;
    for (int peer = 1; peer < ranks; ++peer)
      over.recv(peer, 1, out.data() + block * peer, block, &transfers[peer]);
    for (int peer = 1; peer < ranks; ++peer)
      over.send(peer, 1, in.data() + block * peer, block, &transfers[ranks + peer]);
    std::memcpy(out.data(), in.data(), block);
  }
}

void allToAll(benchmark::State& state, const std::vector<int>& nodes, const std::string& algorithm,
              std::size_t block) {
  const int ranks = std::accumulate(nodes.begin(), nodes.end(), 0);
  Settings settings;
  if (algorithm != "auto")
    parseAlgorithms("alltoall=" + algorithm, "call_bench", &settings.algorithms);
  moecclComm comm;
  const std::shared_ptr<Communicator> communicator = HostCommunicator::over(
      std::make_unique<InstantTransport>(ranks),
      makeLocalWatch(Secret{}, 0,
                     std::vector<std::string>(static_cast<std::size_t>(ranks), "host")),
      Topology::uneven(nodes), settings);
  addHandle(HandleKind::communicator, &comm, communicator);
  std::vector<std::byte> in(block * ranks), out(block * ranks);
  const auto call = [&] {
    return moecclAllToAll(in.data(), out.data(), block, moecclUint8, &comm, nullptr);
  };
  call();  // makes the plan
  for (auto _ : state)
    if (call() != moecclSuccess) state.SkipWithError(communicator->lastError().c_str());
  communicator->destroy();
  removeHandle(HandleKind::communicator, &comm);
}

void registerAll() {
  for (const std::vector<int>& nodes : {std::vector<int>{8}, {4, 4}, {8, 8, 8, 8}})
    for (const std::size_t block : {std::size_t{64}, std::size_t{4096}}) {
      std::string name;
      for (const int ranks : nodes) name += (name.empty() ? "" : "+") + std::to_string(ranks);
      const std::string of = " " + name + " ranks, " + std::to_string(block) + " B";
      const int ranks = std::accumulate(nodes.begin(), nodes.end(), 0);
      benchmark::RegisterBenchmark(("sends alone," + of).c_str(), sendsAlone, ranks, block);
      for (const char* algorithm : {"linear", "auto", "pairwise", "hierarchical", "bruck"})
        benchmark::RegisterBenchmark((algorithm + ("," + of)).c_str(), allToAll, nodes,
                                     std::string(algorithm), block);
    }
}

}  // namespace
}  // namespace moeccl

int main(int argc, char** argv) {
  moeccl::registerAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
