// GPU communicators through the public API, with doubles for CUDA and NCCL: ranks are threads, each
// with a device of its own, and the memory of devices is the host's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "moeccl/model.h"
#include "moeccl/nccl.h"
#include "moeccl/route.h"
#include "src/comm/gpu_communicator.h"
#include "tests/api/exercise.h"
#include "tests/api/profiles.h"
#include "tests/exec/gpu_jobs.h"
#include "tests/gpu/ranks/rank.h"
#include "tests/job.h"

namespace moeccl::test {
namespace {

void synchronize(moecclStream_t stream) { myGpu().synchronize(stream); }

class Gpus : public ::testing::Test, public GpusOfJobs {
 protected:
  Gpus() : GpusOfJobs({.seed = 7, .threads = true}) {}
};

// Fails the GoogleTest with what fails in a rank.
class Reporter final : public gpu::Watcher {
 public:
  explicit Reporter(int rank) : rank_(rank) {}
  void step(const std::string&) override {}
  void failed(const std::string& text) override {
    ADD_FAILURE() << "rank " << rank_ << ": " << text;
  }

 private:
  const int rank_;
};

struct OnNodes {
  std::vector<int> sizes;
  bool oneQueue = false;  // each device runs what it is given in the order in which it is given
};

// As a user whose launcher makes the communicator.
class JobsOnGpus : public ::testing::TestWithParam<OnNodes>, public GpusOfJobs {
 protected:
  JobsOnGpus() : GpusOfJobs({.seed = 7, .oneQueue = GetParam().oneQueue, .threads = true}) {}

  // Runs `work` on each rank, which leaves then.
  void runOnGpus(void (*work)(gpu::Rank& rank)) {
    const std::vector<int>& sizes = GetParam().sizes;
    Job job{
        .ranks = std::accumulate(sizes.begin(), sizes.end(), 0), .nodes = sizes, .algorithms = {}};
    run(job, [work](moecclComm_t comm, int number) {
      const std::unique_ptr<Device> device = myDevice();
      Reporter reporter(number);
      {
        gpu::Rank rank(comm, *device, reporter, /*quick=*/true);
        work(rank);
        rank.leave();
      }
      throw Aborted();  // the rank has destroyed its communicator
    });
  }
};

// What ranks_gpu does on a GPU (tests/gpu/ranks).
TEST_P(JobsOnGpus, DoWhatTheyDoOnOneGpu) {
  runOnGpus([](gpu::Rank& rank) {
    for (const gpu::RanksTest& test : gpu::ranksTests()) {
      const int before = rank.steps();
      test.run(rank);
      EXPECT_TRUE(rank.steps() > before || rank.ranks() == 1) << test.name << " does nothing";
    }
  });
}

// The measurements run; what they measure here is of no use.
TEST_P(JobsOnGpus, Measure) {
  runOnGpus([](gpu::Rank& rank) {
    for (const gpu::RanksTest& bench : gpu::ranksBenches()) bench.run(rank);
    EXPECT_GT(rank.steps(), 0);
  });
}

const auto nodesOf = [](const auto& info) {
  std::string name;
  for (int size : info.param.sizes) name += "_" + std::to_string(size);
  return name + (info.param.oneQueue ? "_OneQueue" : "");
};
INSTANTIATE_TEST_SUITE_P(Nodes, JobsOnGpus,
                         ::testing::Values(OnNodes{{1}}, OnNodes{{2, 1}}, OnNodes{{1, 2}, true}),
                         nodesOf);
INSTANTIATE_TEST_SUITE_P(Wide, JobsOnGpus,
                         ::testing::Values(OnNodes{{2, 2}}, OnNodes{{1, 1, 3}, true}), nodesOf);
INSTANTIATE_TEST_SUITE_P(Slow, JobsOnGpus, ::testing::Values(OnNodes{{4, 4}}), nodesOf);

// Memory that messages lie in, of every lane, unless a setting says otherwise.
TEST_F(Gpus, RegisterTheirMemory) {
  const auto registrations = [&] {
    return std::ranges::count(world.calls(), GpuCall::Kind::registration, &GpuCall::kind);
  };
  const auto exchange = [&] {
    run({.ranks = 4, .nodes = {2, 2}, .algorithms = "alltoall=hierarchical"},
        [](moecclComm_t comm, int) {
          const Gpu::Stream stream = myGpu().newStream(false);
          for (const std::size_t count : {std::size_t{3}, std::size_t{700}}) {
            std::vector<int> in(4 * count, 1), out(4 * count);
            check(moecclAllToAll(in.data(), out.data(), count, moecclInt32, comm, stream), comm);
            synchronize(stream);
            checkThat(out == in, "wrong data");
          }
        });
  };
  exchange();
  const auto all = registrations();
  EXPECT_GE(all, 4 * 2);
  setenv("MOECCL_REGISTER", "0", 1);
  exchange();
  unsetenv("MOECCL_REGISTER");
  EXPECT_EQ(registrations(), all);
}

// A profile of GPUs is for their model. Without one, what is typical of it is what counts.
TEST_F(Gpus, AreKnownByTheirModel) {
  const auto path = [](int rank) {
    return testing::TempDir() + "gpu_model_" + std::to_string(rank) + ".json";
  };
  const Job job{.ranks = 4, .nodes = {2, 2}, .algorithms = {}};
  run(job, [&](moecclComm_t comm, int rank) {
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    check(moecclProfileSave(profile, path(rank).c_str()));
    check(moecclCommSetProfile(comm, profile), comm);
    check(moecclProfileDestroy(profile));
  });
  std::ifstream file(path(0));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(text.find(", GPU double SXM\""), text.npos) << text;
  EXPECT_NE(text.find("\"NCCL double\""), text.npos) << text;

  // Kinds of one job are told as the slower of the two.
  const auto secondsOn = [&](const std::vector<std::string>& models) {
    double seconds = 0;
    run(job, [&](moecclComm_t old, int rank) {
      // The devices have been met: what is made of them now sees their new model.
      myGpu().setModel(models[static_cast<std::size_t>(rank)]);
      moecclComm_t comm = nullptr;
      const std::unique_ptr<Device> device = myDevice();
      ncclComm* const theirs = device->join(old);
      check(moecclCommInitNccl(&comm, theirs, nullptr));
      moecclProfile_t profile = nullptr;
      check(moecclProfileLoad(path(rank).c_str(), &profile));
      const bool other = models[0].find("SXM") == std::string::npos;
      if (other)
        checkError(moecclCommSetProfile(comm, profile), moecclInvalidUsage, comm,
                   {"GPU double SXM", models[0]});
      check(moecclProfileDestroy(profile));
      moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
      cluster.comm = comm;
      moecclChoices_t choices = nullptr;
      moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
      query.cluster = &cluster;
      query.collective = "alltoall";
      query.bytes = 64 << 20;
      check(moecclSelect(&query, &choices, nullptr));
      moecclChoice_t first = MOECCL_CHOICE_INITIALIZER;
      check(moecclChoicesGet(choices, 0, -1, &first));
      check(moecclChoicesDestroy(choices));
      if (rank == 0) seconds = first.seconds;
      check(moecclCommDestroy(comm));
      device->leave(theirs);
    });
    return seconds;
  };
  const std::string fast = "GPU double SXM", slow = "GPU double PCIe";
  const double nvlink = secondsOn({fast, fast, fast, fast});
  EXPECT_LT(nvlink, secondsOn({slow, slow, slow, slow}));
  EXPECT_EQ(secondsOn({slow, slow, slow, slow}), secondsOn({fast, fast, fast, slow}));
  for (int rank = 0; rank < 4; ++rank) std::remove(path(rank).c_str());
}

// NCCL's own functions where nobody has chosen and the price says so, and where they are named; not
// for what they do otherwise.
TEST_F(Gpus, CallFunctionsOfNccl) {
  const auto count = [&](const std::string& name, std::size_t bytes) {
    const std::vector<GpuCall> calls = world.calls();
    return std::ranges::count_if(calls, [&](const GpuCall& call) {
      return call.kind == GpuCall::Kind::native && call.name == name && call.bytes == bytes;
    });
  };
  constexpr int kCount = 5;
  const auto sum = [](moecclComm_t comm, moecclRedOp_t op) {
    std::vector<float> data(kCount, 2);
    const Gpu::Stream stream = myGpu().newStream(false);
    check(moecclAllReduce(data.data(), data.data(), kCount, moecclFloat32, op, comm, stream), comm);
    synchronize(stream);
    const float expected = op == moecclSum ? 6 : 2;
    checkThat(data == std::vector<float>(kCount, expected), "another result");
  };
  run({.ranks = 3, .nodes = {2, 1}, .algorithms = ""}, [&](moecclComm_t comm, int) {
    for (moecclRedOp_t op : {moecclSum, moecclAvg, moecclMax}) sum(comm, op);
  });
  EXPECT_EQ(count("all-reduce", 20), 3 * 2);
  run({.ranks = 3, .nodes = {2, 1}, .algorithms = "allreduce=linear"},
      [&](moecclComm_t comm, int) { sum(comm, moecclSum); });
  EXPECT_EQ(count("all-reduce", 20), 3 * 2);
  run({.ranks = 3, .nodes = {2, 1}, .algorithms = "alltoall=native;allgather=native"},
      [&](moecclComm_t comm, int rank) {
        const std::vector<int> in = {rank, rank + 10, rank + 20};
        std::vector<int> out(3), all(3);
        check(moecclAllToAll(in.data(), out.data(), 1, moecclInt32, comm, nullptr), comm);
        // In place.
        all[static_cast<std::size_t>(rank)] = rank + 7;
        check(moecclAllGather(&all[static_cast<std::size_t>(rank)], all.data(), 1, moecclInt32,
                              comm, nullptr),
              comm);
        synchronize(nullptr);
        checkThat(out == std::vector<int>{10 * rank, 10 * rank + 1, 10 * rank + 2},
                  "another all-to-all");
        checkThat(all == std::vector<int>{7, 8, 9}, "another all-gather");
      });
  EXPECT_EQ(count("all-to-all", 4), 3);
  EXPECT_EQ(count("all-gather", 4), 3);
}

// NCCL would wait for ever where it connects the ranks.
TEST_F(Gpus, GiveUpARankThatDoesNotCall) {
  run({.ranks = 2, .algorithms = "", .timeoutMs = 300}, [](moecclComm_t comm, int rank) {
    int data = rank;
    check(moecclAllReduce(&data, &data, 1, moecclInt32, moecclSum, comm, nullptr), comm);
    synchronize(nullptr);
    // Ranks that have met in a call of the kind do not meet again.
    check(moecclAllReduce(&data, &data, 1, moecclInt32, moecclSum, comm, nullptr), comm);
    synchronize(nullptr);
    if (rank == 0) {
      int all[2];
      checkError(moecclAllGather(&data, all, 1, moecclInt32, comm, nullptr), moecclTimeout, comm,
                 {"allgather", "not all ranks have come"});
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    }
    throw Aborts();
  });
}

TEST(OldGpus, HaveNoAllToAllOfNccl) {
  GpusOfJobs gpus({.threads = true, .withoutAllToAll = true});
  gpus.run({.ranks = 2, .algorithms = "alltoall=native"}, [](moecclComm_t comm, int) {
    int in[2] = {}, out[2] = {};
    checkError(moecclAllToAll(in, out, 1, moecclInt32, comm, nullptr), moecclInvalidUsage, comm,
               {"alltoall (native) needs NCCL 2.28", "NCCL double"});
  });
  gpus.run({.ranks = 2, .algorithms = ""}, [](moecclComm_t comm, int rank) {
    const int in[2] = {rank, rank + 10};
    int out[2] = {};
    check(moecclAllToAll(in, out, 1, moecclInt32, comm, nullptr), comm);
    synchronize(nullptr);
    checkThat(out[0] == 10 * rank && out[1] == 10 * rank + 1, "another all-to-all");
  });
}

TEST_F(Gpus, CallsOfOneCommunicatorShareItsMemoryInOrder) {
  run({.ranks = 4, .nodes = {2, 2}, .algorithms = "alltoall=hierarchical"},
      [](moecclComm_t comm, int rank) {
        const Gpu::Stream streams[] = {myGpu().newStream(false), myGpu().newStream(false), nullptr};
        constexpr int kCalls = 9;
        std::vector<std::vector<int>> in(kCalls), out(kCalls);
        for (int call = 0; call < kCalls; ++call) {
          const int count = 1 + call * 7 % 5;
          for (int i = 0; i < 4 * count; ++i) in[call].push_back(call * 10000 + rank * 100 + i);
          out[call].assign(in[call].size(), -1);
          check(moecclAllToAll(in[call].data(), out[call].data(), in[call].size() / 4, moecclInt32,
                               comm, streams[call % 3]),
                comm);
        }
        for (Gpu::Stream stream : streams) synchronize(stream);
        for (int call = 0; call < kCalls; ++call) {
          const int count = static_cast<int>(in[call].size()) / 4;
          for (int i = 0; i < 4 * count; ++i)
            checkThat(out[call][i] == call * 10000 + i / count * 100 + rank * count + i % count,
                      "call " + std::to_string(call) + " has wrong data");
        }
      });
}

TEST_F(Gpus, CallsBecomeGraphs) {
  run({.ranks = 4, .nodes = {2, 2}, .algorithms = "alltoall=hierarchical"},
      [](moecclComm_t comm, int rank) {
        const Gpu::Stream stream = myGpu().newStream(false);
        std::vector<int> in(8), out(8, -1);
        const auto call = [&] {
          return moecclAllToAll(in.data(), out.data(), 2, moecclInt32, comm, stream);
        };
        myGpu().beginCapture(stream);
        checkError(call(), moecclInvalidUsage, comm,
                   {"moecclAllToAll", "being captured", "make the same call once before"});
        myGpu().endCapture(stream);
        check(call(), comm);
        synchronize(stream);
        myGpu().beginCapture(stream);
        check(call(), comm);
        const auto graph = myGpu().endCapture(stream);
        for (int turn = 1; turn < 4; ++turn) {
          for (int i = 0; i < 8; ++i) in[i] = turn * 1000 + rank * 10 + i;
          myGpu().replay(*graph, stream);
          synchronize(stream);
          for (int i = 0; i < 8; ++i)
            checkThat(out[i] == turn * 1000 + i / 2 * 10 + rank * 2 + i % 2, "wrong data");
        }
        // A larger call gets other memory; the graph's stays.
        std::vector<int> large(4000, rank), received(4000);
        check(moecclAllToAll(large.data(), received.data(), 1000, moecclInt32, comm, stream), comm);
        myGpu().replay(*graph, stream);
        synchronize(stream);
      });
}

// One rank's mistake is told to all, and no rank waits.
TEST_F(Gpus, AdoptOnTheirDevicesAlone) {
  const Gpu::Id id{"users"};
  asThreads(3, [&](int rank) {
    const Gpu::Comm theirs = myGpu().join(id, 3, rank, -1);
    const int own = myGpu().device(), current = rank == 1 ? own + 100 : own;
    myGpu().setDevice(current);
    moecclComm_t comm = nullptr;
    const std::string device = std::to_string(own);
    const moecclResult_t result =
        moecclCommInitNccl(&comm, static_cast<ncclComm*>(theirs), nullptr);
    if (rank == 1)
      checkError(result, moecclInvalidUsage, nullptr,
                 {"is of device " + device, "current device is " + std::to_string(current),
                  "cudaSetDevice(" + device + ")"});
    else
      checkError(result, moecclRemoteError, nullptr, {"rank 1 failed", "cudaSetDevice("});
    checkThat(myGpu().device() == current, "another device is current behind the call");
    myGpu().setDevice(own);
    myGpu().destroy(theirs);
  });
  // A user's communicator need not block, and may not be ready yet.
  EXPECT_EQ(std::ranges::count(world.calls(), GpuCall::Kind::settle, &GpuCall::kind), 3);
}

// As NCCL, which would wait for the graph for ever.
TEST_F(Gpus, AreNotDestroyedWhileAGraphNeedsThem) {
  run({.ranks = 2, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int) {
    const Gpu::Stream stream = myGpu().newStream(false);
    int in[2] = {}, out[2] = {};
    const auto call = [&] { return moecclAllToAll(in, out, 1, moecclInt32, comm, stream); };
    check(call(), comm);
    synchronize(stream);
    myGpu().beginCapture(stream);
    check(call(), comm);
    check(call(), comm);
    auto graph = myGpu().endCapture(stream);
    checkError(moecclCommDestroy(comm), moecclInvalidUsage, nullptr,
               {"moecclCommDestroy", "1 CUDA graphs", "cudaGraphExecDestroy", "moecclCommAbort"});
    // It has destroyed nothing.
    myGpu().replay(*graph, stream);
    check(call(), comm);
    synchronize(stream);
    graph.reset();
    check(moecclCommDestroy(comm));
    throw Aborted();
  });
}

TEST_F(Gpus, AreAbortedWhileAGraphNeedsThem) {
  run({.ranks = 2, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int) {
    const Gpu::Stream stream = myGpu().newStream(false);
    int in[2] = {}, out[2] = {};
    const auto call = [&] { return moecclAllToAll(in, out, 1, moecclInt32, comm, stream); };
    check(call(), comm);
    synchronize(stream);
    myGpu().beginCapture(stream);
    check(call(), comm);
    auto graph = myGpu().endCapture(stream);
    const auto begin = std::chrono::steady_clock::now();
    check(moecclCommAbort(comm));
    checkThat(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20),
              "an abort waits for the graph");
    graph.reset();
    throw Aborted();
  });
}

// A caller's mistake: nothing is enqueued, and the communicator stays usable.
TEST_F(Gpus, RefuseStreamsThatACaptureForbids) {
  run({.ranks = 2, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int) {
    const Gpu::Stream stream = myGpu().newStream(false);
    int in[2] = {}, out[2] = {};
    const auto call = [&](Gpu::Stream on) {
      return moecclAllToAll(in, out, 1, moecclInt32, comm, on);
    };
    check(call(stream), comm);
    myGpu().beginCapture(stream);
    myGpu().invalidateCapture(stream);
    checkError(call(stream), moecclInvalidUsage, comm, {"moecclAllToAll", "has failed"});
    myGpu().endCapture(stream);
    myGpu().beginCapture(stream, /*blocking=*/true);
    checkError(call(nullptr), moecclInvalidUsage, comm,
               {"moecclAllToAll", "legacy default stream"});
    check(call(stream), comm);
    myGpu().endCapture(stream);
    check(call(nullptr), comm);
    synchronize(nullptr);
  });
}

// Otherwise all that the thread asked of NCCL later, the caller's own calls too, would never start.
TEST_F(Gpus, LeaveNoGroupOpenWhenACallFails) {
  run({.ranks = 2, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int rank) {
    const moecclGridShape_t shape = {.nMp = 1, .nEp = 2, .nEsp = 1, .order = moecclOrderEspEp};
    moecclGrid_t grid = nullptr;
    myGpu().breakKernels("send of");
    checkError(moecclGridCreate(comm, shape, &grid), moecclUnhandledCudaError, comm,
               {"rank " + std::to_string(rank), "launch failed"});
    throw Aborts();
  });
}

// The kernels of one lane stand while another is freed, and so would the abort; those of the world
// while the grid is.
TEST_F(Gpus, AbortAllLanesAtOnce) {
  // What has been enqueued touches them until all is aborted.
  std::array<std::array<float, 64>, 4> ins{}, outs{};
  run({.ranks = 4, .nodes = {2, 2}, .algorithms = "combineallgather=pipelined"},
      [&](moecclComm_t comm, int rank) {
        const moecclGridShape_t shape = {.nMp = 2, .nEp = 2, .nEsp = 2, .order = moecclOrderEspEp};
        moecclGrid_t grid = makeGrid(comm, shape);
        const Gpu::Stream stream = myGpu().newStream(false);
        const auto call = [&] {
          return moecclCombineAllGather(ins[rank].data(), outs[rank].data(), 8, 1, moecclFloat32,
                                        grid, stream);
        };
        check(call(), comm);
        synchronize(stream);
        if (rank == 0) check(call(), comm);
        check(moecclGridAbort(grid));
        throw Aborts();
      });
}

TEST(GpuReductions, OfTooManyTermsAreRefusedAlike) {
  const AlgorithmChoice linear{findAlgorithm(Collective::reduceScatter, "linear")};
  const AlgorithmChoice ring{findAlgorithm(Collective::reduceScatter, "ring")};
  EXPECT_NO_THROW(requireFewTerms(linear, Topology::uneven({{500}})));
  EXPECT_NO_THROW(requireFewTerms(ring, Topology::uneven({{501}})));
  try {
    requireFewTerms(linear, Topology::uneven({{501}}));
    FAIL() << "501 terms were not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.result(), moecclInvalidUsage);
    EXPECT_STREQ(
        error.what(),
        "reducescatter (linear) is not offered on GPUs here: rank 0 would add 501 terms at "
        "once, and 500 are possible; choose another algorithm");
  }
  // Rank 0, a node by itself, adds two terms at most; it says so too.
  try {
    requireFewTerms({findAlgorithm(Collective::reduceScatter, "hierarchical")},
                    Topology::uneven({{1, 501}}));
    FAIL() << "501 terms in a node were not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 would add 501 terms"), std::string::npos)
        << error.what();
  }
}

TEST_F(Gpus, SayWhatTheyDoNotOffer) {
  run({.ranks = 2, .nodes = {}, .algorithms = "alltoallv=bruck"}, [](moecclComm_t comm, int) {
    const std::size_t counts[] = {1, 1}, displs[] = {0, 1};
    int in[2] = {}, out[2] = {};
    checkError(moecclAllToAllv(in, counts, displs, out, counts, displs, moecclInt32, comm, nullptr),
               moecclInvalidUsage, comm,
               {"alltoallv (bruck)", "a bound on GPUs", "moecclAllToAllvBounded"});
    // One that is too large for relays is none.
    checkError(moecclAllToAllvBounded(in, counts, displs, out, counts, displs, 9 << 20, 0,
                                      moecclInt32, comm, nullptr),
               moecclInvalidUsage, comm, {"alltoallv (bruck)", "at most 64 MiB"});
    moecclStream_t stream = nullptr;
    checkError(moecclStreamCreate(comm, &stream), moecclInvalidUsage, comm, {"cudaStreamCreate"});
  });
}

// What passes by relays is padded to the bound, and cut to its size where it arrives; in graphs
// too.
TEST_F(Gpus, RelayBlocksOfBoundedSizes) {
  constexpr std::size_t kMost = 11;
  // Nothing, few, skewed, and everything.
  const auto countOf = [](int call, int from, int to) -> std::size_t {
    switch (call) {
      case 0:
        return 0;
      case 1:
        return from == 2 && to == 4 ? 3 : 0;
      case 2:
        return to == 0 ? kMost : static_cast<std::size_t>(from * 5 + to * 3) % 4;
      default:
        return kMost;
    }
  };
  for (const std::vector<int>& nodes :
       {std::vector<int>{3, 1, 3}, std::vector<int>{1}, std::vector<int>{5}})
    for (const char* algorithm :
         {"alltoallv=bruck", "alltoallv=bruck:radix=3", "alltoallv=hierarchical",
          "alltoallv=hierarchical:leaders=1", ""}) {
      const int ranks = std::reduce(nodes.begin(), nodes.end());
      run({.ranks = ranks, .nodes = nodes, .algorithms = algorithm},
          [&](moecclComm_t comm, int rank) {
            const Gpu::Stream stream = myGpu().newStream(false);
            const auto valueOf = [](int turn, int from, int to, std::size_t i) {
              return turn * 100'000 + from * 1000 + to * 100 + static_cast<int>(i);
            };
            for (int call = 0; call < 4; ++call) {
              std::vector<std::size_t> sends, recvs, sendAt, recvAt;
              std::size_t out = 1, in = 1;
              for (int peer = 0; peer < ranks; ++peer) {
                sends.push_back(countOf(call, rank, peer));
                recvs.push_back(countOf(call, peer, rank));
                sendAt.push_back(out);
                recvAt.push_back(in);
                out += sends.back() + 1;
                in += recvs.back() + 1;
              }
              std::vector<int> sent(out), received(in), expected(in, -1);
              const auto start = [&] {
                return moecclAllToAllvBounded(sent.data(), sends.data(), sendAt.data(),
                                              received.data(), recvs.data(), recvAt.data(), kMost,
                                              0, moecclInt32, comm, stream);
              };
              const auto fill = [&](int turn) {
                std::ranges::fill(received, -1);
                for (int peer = 0; peer < ranks; ++peer) {
                  for (std::size_t i = 0; i < sends[peer]; ++i)
                    sent[sendAt[peer] + i] = valueOf(turn, rank, peer, i);
                  for (std::size_t i = 0; i < recvs[peer]; ++i)
                    expected[recvAt[peer] + i] = valueOf(turn, peer, rank, i);
                }
              };
              fill(0);
              check(start(), comm);
              synchronize(stream);
              checkThat(received == expected, "wrong data");
              myGpu().beginCapture(stream);
              check(start(), comm);
              const auto graph = myGpu().endCapture(stream);
              fill(1);
              myGpu().replay(*graph, stream);
              synchronize(stream);
              checkThat(received == expected, "wrong data of a graph");
            }
          });
    }
}

// Blocks that are mostly far smaller than the bound go straight to their ranks.
TEST_F(Gpus, PricePaddingOfBoundedSizes) {
  run({.ranks = 8, .nodes = {4, 4}, .algorithms = ""}, [&](moecclComm_t comm, int) {
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    addLine(profile, {"alltoallv", "bruck", 1e-6, 1e-9}, comm, nullptr);
    addLine(profile, {"alltoallv", "linear", 1e-4, 1e-9}, comm, nullptr);
    check(moecclProfileFit(profile));
    check(moecclCommSetProfile(comm, profile), comm);
    check(moecclProfileDestroy(profile));
    const std::vector<std::size_t> counts(8, 3), displs{0, 3, 6, 9, 12, 15, 18, 21};
    const std::vector<int> in(24, 7);
    std::vector<int> out(24, -1);
    for (const std::size_t most : {std::size_t{5}, std::size_t{100'000}}) {
      check(
          moecclAllToAllvBounded(in.data(), counts.data(), displs.data(), out.data(), counts.data(),
                                 displs.data(), most, 24, moecclInt32, comm, nullptr),
          comm);
      synchronize(nullptr);
      checkThat(out == in, "wrong data");
    }
  });
  const std::vector<GpuCall> calls = world.calls();
  // Bruck sends 20 bytes for each of four blocks in a round, linear a block of 12 bytes.
  const auto sends = [&](std::size_t bytes) {
    return std::ranges::count_if(calls, [&](const GpuCall& call) {
      return call.kind == GpuCall::Kind::send && call.bytes == bytes;
    });
  };
  EXPECT_EQ(sends(80), 8 * 3);
  EXPECT_EQ(sends(12), 8 * 7);
  EXPECT_EQ(sends(1600000), 0);
}

// The fastest by prediction, with a profile or without one, is one that GPUs do not have.
TEST(OldGpus, ChooseOfWhatTheyServe) {
  GpusOfJobs gpus({.threads = true, .withoutAllToAll = true});
  const Job job{.ranks = 8, .nodes = {4, 4}, .algorithms = ""};
  // Measured algorithms of alltoall: none; one that is not served, and one that is; the first
  // alone.
  for (const int measured : {0, 2, 1})
    gpus.run(job, [&](moecclComm_t comm, int rank) {
      if (measured > 0) {
        moecclProfile_t profile = nullptr;
        check(moecclProfileCreate(comm, &profile), comm);
        addLine(profile, {"alltoall", "native", 1e-6, 1e-12}, comm, nullptr);
        if (measured > 1) addLine(profile, {"alltoall", "pairwise", 1e-4, 1e-9}, comm, nullptr);
        check(moecclProfileFit(profile));
        check(moecclCommSetProfile(comm, profile), comm);
        check(moecclProfileDestroy(profile));
      }
      const std::vector<int> in(8, rank);
      std::vector<int> out(8, -1), expected(8);
      std::iota(expected.begin(), expected.end(), 0);
      check(moecclAllToAll(in.data(), out.data(), 1, moecclInt32, comm, nullptr), comm);
      synchronize(nullptr);
      checkThat(out == expected, "wrong data");
    });
}

// moeccl-fit measures what is listed.
TEST(OldGpus, ListWhatTheyServeAlone) {
  for (const bool old : {false, true}) {
    GpusOfJobs gpus({.threads = true, .withoutAllToAll = old});
    gpus.run({.ranks = 3, .nodes = {}, .algorithms = {}}, [&](moecclComm_t comm, int) {
      moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
      cluster.comm = comm;
      std::set<std::string> names;
      for (const Algorithm& one : algorithmsFor(cluster, "alltoall", 4096))
        names.insert(one.algorithm);
      EXPECT_EQ(names.contains("native"), !old);
      EXPECT_TRUE(names.contains("bruck"));
    });
  }
}

TEST_F(Gpus, ReportWhatNcclReports) {
  run({.ranks = 2, .nodes = {}, .algorithms = {}}, [this](moecclComm_t comm, int rank) {
    moecclResult_t error = moecclInternalError;
    check(moecclCommGetAsyncError(comm, &error), comm);
    checkThat(error == moecclSuccess, "an error while there is none");
    synchronize(nullptr);
    int mineIn = 1, out[2];
    check(moecclAllGather(&mineIn, out, 1, moecclInt32, comm, nullptr), comm);
    synchronize(nullptr);
    world.breakDown(moecclRemoteError, "the wire is cut");
    check(moecclCommGetAsyncError(comm, &error), comm);
    checkThat(error == moecclRemoteError, "no error, or another");
    checkError(moecclAllGather(&mineIn, out, 1, moecclInt32, comm, nullptr), moecclRemoteError,
               comm, {"the wire is cut", "rank " + std::to_string(rank)});
    throw Aborts();
  });
}

// One rank calls, its peer does not: the work is there until the communicator is aborted.
TEST_F(Gpus, AbortWorkThatNobodyMeets) {
  std::array<std::array<int, 2>, 2> in{}, out{};  // by rank
  run({.ranks = 2, .nodes = {}, .algorithms = {}}, [&](moecclComm_t comm, int rank) {
    const auto call = [&] {
      check(moecclAllToAll(in[rank].data(), out[rank].data(), 1, moecclInt32, comm, nullptr), comm);
    };
    call();
    synchronize(nullptr);
    if (rank == 0) call();
    throw Aborts();
  });
}

// Its first call of the kind makes lanes, for which it needs the others.
TEST_F(Gpus, GiveUpMakingLanesAfterTheTimeout) {
  std::array<float, 64> in{}, out{};
  run({.ranks = 2, .nodes = {}, .algorithms = "combineallgather=pipelined", .timeoutMs = 400},
      [&](moecclComm_t comm, int rank) {
        const moecclGridShape_t shape = {.nMp = 2, .nEp = 1, .nEsp = 2, .order = moecclOrderEspEp};
        moecclGrid_t grid = makeGrid(comm, shape);
        if (rank == 0)
          checkError(
              moecclCombineAllGather(in.data(), out.data(), 8, 1, moecclFloat32, grid, nullptr),
              moecclTimeout, comm, {"rank 0", "not all ranks"});
        else
          std::this_thread::sleep_for(std::chrono::milliseconds(800));
        check(moecclGridAbort(grid));
        throw Aborts();
      });
}

// Memory that is outgrown can be freed when the work that uses it is over, and that needs the
// other rank.
TEST_F(Gpus, GiveUpWaitingForMemoryAfterTheTimeout) {
  // What is aborted may use them longer than a rank, and the test, lives.
  static std::array<std::vector<int>, 2> in, out;
  for (std::size_t rank = 0; rank < 2; ++rank) in[rank].resize(20000), out[rank].resize(10000);
  run({.ranks = 2, .nodes = {}, .algorithms = "reducescatter=linear"},
      [&](moecclComm_t comm, int rank) {
        check(moecclCommSetTimeout(comm, 300), comm);
        const auto call = [&](std::size_t count) {
          const auto at = static_cast<std::size_t>(rank);
          return moecclReduceScatter(in[at].data(), out[at].data(), count, moecclInt32, moecclSum,
                                     comm, nullptr);
        };
        check(call(100), comm);
        synchronize(nullptr);
        if (rank == 0) {
          check(call(100), comm);
          checkError(call(10000), moecclTimeout, comm, {"more memory", "300 ms"});
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        }
        throw Aborts();
      });
}

TEST_F(Gpus, DestroyGivesUpAfterTheTimeout) {
  run({.ranks = 2, .nodes = {}, .algorithms = {}, .timeoutMs = 300},
      [](moecclComm_t comm, int rank) {
        int in[2] = {}, out[2] = {};
        check(moecclAllToAll(in, out, 1, moecclInt32, comm, nullptr), comm);
        synchronize(nullptr);
        if (rank == 1) throw Aborts();
        check(moecclAllToAll(in, out, 1, moecclInt32, comm, nullptr), comm);
        checkError(moecclCommDestroy(comm), moecclTimeout, nullptr, {"rank 0", "300 ms"});
        throw Aborted();
      });
}

// What this host answers, whatever it has; the host side goes on.
TEST(NoGpu, IsAClearError) {
  moecclUniqueId id;
  check(moecclGetUniqueId(&id));
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.memory = moecclMemoryCuda;
  moecclComm_t comm = nullptr;
  const moecclResult_t result = moecclCommInitRankConfig(&comm, 1, id, 0, &config);
  if (result == moecclSuccess) {
    check(moecclCommDestroy(comm));
    GTEST_SKIP() << "there is one";
  }
  const std::string text = moecclGetLastError(nullptr);
  EXPECT_TRUE(text.find("no usable CUDA driver") != text.npos ||
              text.find("built without") != text.npos || text.find("libnccl.so.2") != text.npos)
      << text;
  EXPECT_NE(moecclCommInitNccl(&comm, nullptr, nullptr), moecclSuccess);
  config.memory = static_cast<moecclMemory_t>(5);
  checkError(moecclCommInitRankConfig(&comm, 1, id, 0, &config), moecclInvalidArgument, nullptr,
             {"config.memory is 5"});
  runJob({.ranks = 2, .nodes = {}, .algorithms = {}},
         [](moecclComm_t host, int) { exercise({}, host, nullptr, nullptr); });
}

}  // namespace
}  // namespace moeccl::test
