// What becomes of handles: destroyed ones, those of other kinds, those of a parent process; and of
// what belonged to a communicator that is gone: the text of its failure, the number of a split.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "moeccl/model.h"
#include "moeccl/moe.h"
#include "tests/api/ranks.h"
#include "tests/sanitized.h"

namespace moeccl::test {
namespace {

// One of each kind.
struct Handles {
  moecclComm_t comm = nullptr;
  moecclStream_t stream = nullptr;
  moecclGrid_t grid = nullptr;
  moecclMoeLayer_t layer = nullptr;
  moecclProfile_t profile = nullptr;

  explicit Handles(moecclComm_t parent) {
    check(moecclCommSplit(parent, 0, 0, &comm, nullptr), parent);
    check(moecclStreamCreate(comm, &stream), comm);
    int ranks = 0;
    check(moecclCommCount(comm, &ranks), comm);
    check(moecclGridCreate(comm, {1, ranks, 1, moecclOrderEspEp}, &grid), comm);
    moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
    config.tokens = 4;
    config.embedding = config.hidden = 2;
    config.experts = ranks;
    config.topK = 1;
    config.capacityFactor = 1;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    check(moecclProfileCreate(comm, &profile), comm);
  }

  void destroy() const {
    check(moecclProfileDestroy(profile));
    check(moecclMoeLayerDestroy(layer));
    check(moecclGridDestroy(grid));
    check(moecclStreamDestroy(stream));
    check(moecclCommDestroy(comm));
  }
};

struct NamedCall {
  std::string name;
  std::string argument;  // that is wrong
  std::function<moecclResult_t()> call;
};

// Every function that takes a handle, with handles that may not be used.
std::vector<NamedCall> callsWith(const Handles& h, moecclComm_t comm) {
  static int in[64], out[64], value;
  static std::size_t counts[8], displs[8];
  static moecclResult_t state;
  static moecclComm_t made;
  static moecclStream_t stream;
  static moecclGrid_t grid;
  static moecclMoeLayer_t layer;
  static moecclProfile_t profile;
  static moecclGridShape_t shape = {1, 1, 1, moecclOrderEspEp};
  static moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  static moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
  static moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  const auto v = [=](moecclComm_t on) {
    return moecclAllToAllv(in, counts, displs, out, counts, displs, moecclInt32, on, nullptr);
  };
  return {
      {"CommSplit", "comm", [=] { return moecclCommSplit(h.comm, 0, 0, &made, nullptr); }},
      {"CommDestroy", "comm", [=] { return moecclCommDestroy(h.comm); }},
      {"CommAbort", "comm", [=] { return moecclCommAbort(h.comm); }},
      {"CommRevoke", "comm", [=] { return moecclCommRevoke(h.comm, "text"); }},
      {"CommGetAsyncError", "comm", [=] { return moecclCommGetAsyncError(h.comm, &state); }},
      {"CommCount", "comm", [=] { return moecclCommCount(h.comm, &value); }},
      {"CommUserRank", "comm", [=] { return moecclCommUserRank(h.comm, &value); }},
      {"CommNodeCount", "comm", [=] { return moecclCommNodeCount(h.comm, &value); }},
      {"CommNodeOfRank", "comm", [=] { return moecclCommNodeOfRank(h.comm, 0, &value); }},
      {"StreamCreate", "comm", [=] { return moecclStreamCreate(h.comm, &stream); }},
      {"AllToAll", "comm",
       [=] { return moecclAllToAll(in, out, 1, moecclInt32, h.comm, nullptr); }},
      {"AllToAllv", "comm", [=] { return v(h.comm); }},
      {"AllGather", "comm",
       [=] { return moecclAllGather(in, out, 1, moecclInt32, h.comm, nullptr); }},
      {"AllReduce", "comm",
       [=] { return moecclAllReduce(in, out, 1, moecclInt32, moecclSum, h.comm, nullptr); }},
      {"ReduceScatter", "comm",
       [=] { return moecclReduceScatter(in, out, 1, moecclInt32, moecclSum, h.comm, nullptr); }},
      {"GridCreate", "comm", [=] { return moecclGridCreate(h.comm, shape, &grid); }},
      {"ProfileCreate", "comm", [=] { return moecclProfileCreate(h.comm, &profile); }},
      {"CommSetProfile", "comm", [=] { return moecclCommSetProfile(h.comm, nullptr); }},
      {"StreamQuery", "stream", [=] { return moecclStreamQuery(h.stream); }},
      {"StreamSynchronize", "stream", [=] { return moecclStreamSynchronize(h.stream); }},
      {"StreamDestroy", "stream", [=] { return moecclStreamDestroy(h.stream); }},
      {"AllToAll on a stream", comm == nullptr ? "comm" : "stream",
       [=] {
         return moecclAllToAll(in, out, 1, moecclInt32, comm == nullptr ? h.comm : comm, h.stream);
       }},
      {"GridGetShape", "grid", [=] { return moecclGridGetShape(h.grid, &shape); }},
      {"GridGetComm", "grid", [=] { return moecclGridGetComm(h.grid, moecclGroupEp, &made); }},
      {"Dispatch", "grid",
       [=] { return moecclDispatch(in, out, 1, 1, moecclInt32, h.grid, nullptr); }},
      {"TpAllToAll", "grid",
       [=] { return moecclTpAllToAll(in, out, 1, moecclInt32, h.grid, nullptr); }},
      {"MoeLayerCreate", "grid", [=] { return moecclMoeLayerCreate(h.grid, &config, &layer); }},
      {"GridDestroy", "grid", [=] { return moecclGridDestroy(h.grid); }},
      {"GridAbort", "grid", [=] { return moecclGridAbort(h.grid); }},
      {"MoeLayerGetShapes", "layer", [=] { return moecclMoeLayerGetShapes(h.layer, &shapes); }},
      {"MoeForward", "layer", [=] { return moecclMoeForward(h.layer, in, out, nullptr); }},
      {"MoeBackward", "layer", [=] { return moecclMoeBackward(h.layer, in, 0, out, nullptr); }},
      {"MoeGetStats", "layer", [=] { return moecclMoeGetStats(h.layer, &stats); }},
      {"MoeLayerDestroy", "layer", [=] { return moecclMoeLayerDestroy(h.layer); }},
  };
}

std::vector<NamedCall> callsWithProfile(const Handles& h, moecclComm_t comm) {
  return {
      {"ProfileSave", "profile", [=] { return moecclProfileSave(h.profile, "/dev/null"); }},
      {"ProfileFit", "profile", [=] { return moecclProfileFit(h.profile); }},
      {"CommSetProfile", "profile", [=] { return moecclCommSetProfile(comm, h.profile); }},
      {"ProfileDestroy", "profile", [=] { return moecclProfileDestroy(h.profile); }},
  };
}

TEST(Handles, DestroyedOnesAreInvalidArguments) {
  runJob({.ranks = 1, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int) {
    const Handles handles(comm);
    handles.destroy();
    std::vector<NamedCall> calls = callsWith(handles, comm);
    for (NamedCall& each : callsWithProfile(handles, comm)) calls.push_back(std::move(each));
    for (const NamedCall& each : calls) {
      SCOPED_TRACE(each.name);
      checkError(each.call(), moecclInvalidArgument, nullptr,
                 {"moeccl" + each.name.substr(0, each.name.find(' ')) + ":", each.argument,
                  "destroyed, or never made"});
    }
    // The text of a handle that is gone is the thread's.
    checkError(moecclCommCount(nullptr, nullptr), moecclInvalidArgument, nullptr, {"comm is NULL"});
    checkThat(
        std::string(moecclGetLastError(handles.comm)).find("comm is NULL") != std::string::npos,
        "another text");
  });
}

TEST(Handles, StrangersAndOtherKindsAreInvalidArguments) {
  runJob({.ranks = 1, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int) {
    static char room[64];  // of the caller's own
    int value = 0;
    checkError(moecclCommCount(reinterpret_cast<moecclComm_t>(room), &value), moecclInvalidArgument,
               nullptr, {"comm is no comm"});
    checkError(moecclStreamSynchronize(comm), moecclInvalidArgument, nullptr,
               {"stream is no stream"});
    checkError(moecclGridDestroy(reinterpret_cast<moecclGrid_t>(comm)), moecclInvalidArgument,
               nullptr, {"grid is no grid"});
    check(moecclCommCount(comm, &value), comm);
  });
}

// What a group has noted begins at its end, and the communicator is looked at then, too.
TEST(Handles, CallsOfAGroupDoNotOutliveTheirCommunicators) {
  runJob({.ranks = 1, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int) {
    int in = 1, out = 0;
    for (const bool another : {false, true}) {
      moecclComm_t part = nullptr;
      check(moecclCommSplit(comm, 0, 0, &part, nullptr), comm);
      check(moecclGroupStart());
      check(moecclAllGather(&in, &out, 1, moecclInt32, part, nullptr), part);
      if (another) check(moecclAllGather(&in, &out, 1, moecclInt32, comm, nullptr), comm);
      check(moecclCommDestroy(part));
      checkError(moecclGroupEnd(), moecclInvalidArgument, nullptr, {"comm is no comm"});
      checkThat(out == 0, "a call was made");
    }
    check(moecclAllGather(&in, &out, 1, moecclInt32, comm, nullptr), comm);
  });
}

// A child can do nothing with what its parent made, not even free it, and its parent does not
// notice.
class Forks : public testing::TestWithParam<bool> {};

TEST_P(Forks, ChildrenAreToldThatTheyAre) {
  if (kSanitized) GTEST_SKIP() << "sanitizers do not bear forks of threads";
  Job job{.ranks = 2, .nodes = {}, .algorithms = {}};
  job.processes = GetParam();
  runJob(job, [](moecclComm_t comm, int rank) {
    const Handles handles(comm);
    int out[2] = {};
    check(moecclGroupStart());
    check(moecclAllGather(&rank, out, 1, moecclInt32, handles.comm, nullptr), handles.comm);
    const pid_t child = rank == 0 ? fork() : -1;
    if (child == 0) {
      int wrong = moecclGroupEnd() == moecclInvalidUsage ? 0 : 1;
      for (int again = 0; again < 2; ++again)
        for (const NamedCall& each : callsWith(handles, nullptr)) {
          const bool right =
              each.call() == moecclInvalidUsage &&
              std::string(moecclGetLastError(nullptr)).find("before fork()") != std::string::npos;
          if (!right)
            std::fprintf(stderr, "%s: %s\n", each.name.c_str(), moecclGetLastError(nullptr));
          wrong += right ? 0 : 1;
        }
      // What is only memory is the child's.
      if (moecclProfileFit(handles.profile) != moecclSuccess) ++wrong;
      _exit(wrong);
    }
    if (rank == 0) {
      int status = 0;
      waitpid(child, &status, 0);
      checkThat(status == 0, "the child ended with " + std::to_string(status));
    }
    check(moecclGroupEnd());
    for (int i = 0; i < 100; ++i)
      check(moecclAllGather(&rank, out, 1, moecclInt32, handles.comm, nullptr), handles.comm);
    checkThat(out[0] == 0 && out[1] == 1, "data");
    handles.destroy();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Forks, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "processes" : "threads");
});

// Whoever aborts or destroys what has failed can still ask why.
TEST(Handles, TextsOutliveTheirCommunicators) {
  for (const bool aborts : {true, false})
    runJob({.ranks = 2, .nodes = {}, .algorithms = {}}, [&](moecclComm_t comm, int rank) {
      moecclComm_t part = nullptr;
      check(moecclCommSplit(comm, 0, 0, &part, nullptr), comm);
      int in[4] = {}, out[4] = {};
      moecclResult_t state = moecclSuccess;
      if (rank == 0) {
        checkThat(moecclAllToAll(in, out, 1, moecclInt32, part, nullptr) == moecclRemoteError,
                  "no error");
      } else {
        check(moecclCommAbort(part));
        return;
      }
      check(moecclCommGetAsyncError(part, &state), part);
      checkThat(state == moecclRemoteError, "state");
      checkThat(std::string(moecclGetLastError(part)).find("aborted") != std::string::npos,
                "GetAsyncError leaves no text");
      // Another thread has heard of nothing yet.
      moecclResult_t result = moecclInternalError;
      std::string text, ofHandle;
      std::thread([&] {
        result = (aborts ? moecclCommAbort : moecclCommDestroy)(part);
        text = moecclGetLastError(nullptr);
        ofHandle = moecclGetLastError(part);
      }).join();
      checkThat(result == moecclSuccess, "result");
      checkThat(text.find("rank 1 aborted") != text.npos, "no reason in: " + text);
      checkThat(text == ofHandle, "another text for what is gone: " + ofHandle);
    });
}

// Communicators come and go for ever.
TEST(Splits, CanComeAndGoForEver) {
  constexpr int kRounds = kSanitized ? 300 : 33500;  // a tag has 32768 numbers
  runJob({.ranks = 2, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int rank) {
    for (int i = 0; i < kRounds; ++i) {
      moecclComm_t part = nullptr;
      check(moecclCommSplit(comm, i % 3 == 0 ? rank : 0, 0, &part, nullptr), comm);
      int out[2] = {-1, -1};
      check(moecclAllGather(&i, out, 1, moecclInt32, part, nullptr), part);
      checkThat(out[0] == i && out[1] == (i % 3 == 0 ? -1 : i), "data");
      check(moecclCommDestroy(part));
    }
  });
}

// A number is not used while any rank still has the communicator, and those that failed are never
// used again.
TEST(Splits, NumbersInUseAreNotShared) {
  runJob({.ranks = 3, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int rank) {
    std::vector<moecclComm_t> kept;
    for (int i = 0; i < 20; ++i) {
      moecclComm_t part = nullptr;
      check(moecclCommSplit(comm, 0, 0, &part, nullptr), comm);
      // Each rank leaves others of them at once; all must still work on those that it has.
      if (i % 3 == rank)
        kept.push_back(part);
      else if (i % 5 == 4)
        check(moecclCommAbort(part));
      else
        check(moecclCommDestroy(part));
      moecclComm_t next = nullptr;
      check(moecclCommSplit(comm, 0, 0, &next, nullptr), comm);
      int out[3] = {};
      const int mine = 10 * i + rank;
      check(moecclAllGather(&mine, out, 1, moecclInt32, next, nullptr), next);
      for (int j = 0; j < 3; ++j) checkThat(out[j] == 10 * i + j, "data");
      check(moecclCommDestroy(next));
    }
    for (moecclComm_t part : kept) check(moecclCommAbort(part));
  });
}

}  // namespace
}  // namespace moeccl::test
