// The tokens of a real text on their way to experts and back: a dropless layer's exchange, whose
// counts are as skewed as text is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "moeccl/route.h"
#include "tests/api/ranks.h"
#include "tests/source_file.h"

namespace moeccl::test {
namespace {

std::vector<std::string> wordsOf(const std::string& path) {
  std::ifstream file(path);
  std::string text(std::istreambuf_iterator<char>(file), {});
  for (char& c : text)
    c = std::isalpha(static_cast<unsigned char>(c))
            ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
            : ' ';
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Which rank's expert a word goes to; every occurrence of it to the same.
int expertOf(const std::string& word, int ranks) {
  std::uint32_t hash = 2166136261u;
  for (char c : word) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return static_cast<int>((hash ^ hash >> 15) % static_cast<std::uint32_t>(ranks));
}

constexpr size_t kRow = 5;  // elements of a token: rank, place in the text, and three of the word

std::int32_t checksum(const std::string& word) {
  return std::accumulate(word.begin(), word.end(), 7,
                         [](int sum, char c) { return sum * 31 % 65521 + c; });
}

struct Counts {
  std::vector<size_t> counts, displs;
  size_t total = 0;

  explicit Counts(const std::vector<std::int64_t>& rows) {
    for (std::int64_t n : rows) {
      counts.push_back(static_cast<size_t>(n) * kRow);
      displs.push_back(total);
      total += counts.back();
    }
  }
};

// moecclAllToAllv, or the same with bounds.
void exchange(const std::int32_t* from, const Counts& out, std::int32_t* to, const Counts& in,
              bool bounded, moecclComm_t comm) {
  if (!bounded)
    return check(moecclAllToAllv(from, out.counts.data(), out.displs.data(), to, in.counts.data(),
                                 in.displs.data(), moecclInt32, comm, nullptr),
                 comm);
  const std::int64_t mine[2] = {
      static_cast<std::int64_t>(
          std::max(*std::ranges::max_element(out.counts), *std::ranges::max_element(in.counts))),
      static_cast<std::int64_t>(std::max(out.total, in.total))};
  std::int64_t most[2] = {};
  check(moecclAllReduce(mine, most, 2, moecclInt64, moecclMax, comm, nullptr), comm);
  check(moecclAllToAllvBounded(from, out.counts.data(), out.displs.data(), to, in.counts.data(),
                               in.displs.data(), static_cast<size_t>(most[0]),
                               static_cast<size_t>(most[1]), moecclInt32, comm, nullptr),
        comm);
}

// Every rank's words go to their experts, which negate them, and return.
void route(const std::vector<std::string>& words, moecclComm_t comm, int ranks, int rank,
           bool bounded) {
  const size_t begin = words.size() * static_cast<size_t>(rank) / static_cast<size_t>(ranks);
  const size_t end = words.size() * static_cast<size_t>(rank + 1) / static_cast<size_t>(ranks);
  std::vector<std::int64_t> rows(static_cast<size_t>(ranks), 0), incoming(rows);
  for (size_t i = begin; i < end; ++i) ++rows[static_cast<size_t>(expertOf(words[i], ranks))];
  check(moecclAllToAll(rows.data(), incoming.data(), 1, moecclInt64, comm, nullptr), comm);

  const Counts out(rows), in(incoming);
  std::vector<std::int32_t> send(out.total), received(in.total, -1), returned(out.total, -1);
  std::vector<size_t> next = out.displs;
  for (size_t i = begin; i < end; ++i) {
    size_t& at = next[static_cast<size_t>(expertOf(words[i], ranks))];
    const std::int32_t sum = checksum(words[i]);
    const std::int32_t row[kRow] = {rank, static_cast<std::int32_t>(i), sum, ~sum, sum ^ rank};
    std::copy_n(row, kRow, send.begin() + static_cast<std::ptrdiff_t>(at));
    at += kRow;
  }
  exchange(send.data(), out, received.data(), in, bounded, comm);
  for (int source = 0; source < ranks; ++source)
    for (size_t at = in.displs[static_cast<size_t>(source)],
                last = at + in.counts[static_cast<size_t>(source)];
         at < last; at += kRow) {
      checkThat(received[at] == source, "a row from another rank than it says");
      const std::string& word = words.at(static_cast<size_t>(received[at + 1]));
      checkThat(expertOf(word, ranks) == rank,
                "the word \"" + word + "\" came to the wrong expert");
      checkThat(received[at + 2] == checksum(word) && received[at + 4] == (checksum(word) ^ source),
                "the word \"" + word + "\" was changed");
    }
  for (std::int32_t& value : received) value = -value;
  exchange(received.data(), in, returned.data(), out, bounded, comm);
  for (size_t i = 0; i < returned.size(); ++i)
    checkThat(returned[i] == -send[i], "element " + std::to_string(i) + " came back wrong");
}

struct Backend {
  const char* name;
  bool processes, ucx;
};

class TextRouting : public testing::TestWithParam<Backend> {};

TEST_P(TextRouting, EveryAlgorithm) {
  const std::string text = sourceFile("README.md");
  const std::vector<std::string> words = wordsOf(text);
  ASSERT_GT(words.size(), 1000u) << text;
  for (const std::vector<int>& nodes : {std::vector<int>{1}, {4, 4}, {3, 1, 3}, {1, 1, 1, 1, 1}}) {
    const int ranks = std::accumulate(nodes.begin(), nodes.end(), 0);
    std::vector<int> load(static_cast<size_t>(ranks), 0);
    for (const std::string& word : words) ++load[static_cast<size_t>(expertOf(word, ranks))];
    // Or else these would be no counts to test with.
    if (ranks == 8) {
      EXPECT_GT(*std::ranges::max_element(load) * 10, *std::ranges::min_element(load) * 12);
    }
    const Backend backend = GetParam();
    runJob({.ranks = ranks,
            .nodes = nodes,
            .algorithms = {},
            .processes = backend.processes,
            .ucx = backend.ucx},
           [&](moecclComm_t comm, int rank) {
             for (const Algorithm& algorithm : algorithms()) {
               if (algorithm.collective != Collective::allToAllv) continue;
               const std::string name = "alltoallv=" + std::string(algorithm.name);
               moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
               config.algorithms = name.c_str();
               moecclComm_t own = nullptr;
               check(moecclCommSplit(comm, 0, rank, &own, &config), comm);
               try {
                 route(words, own, ranks, rank, false);
                 route(words, own, ranks, rank, true);
               } catch (const std::exception& error) {
                 throw std::runtime_error(name + ": " + error.what());
               }
               check(moecclCommDestroy(own));
             }
             route(words, comm, ranks, rank, true);
           });
    if (HasFailure()) return;
  }
}

// Counts from nothing to the bound, few of them, again and again.
TEST(BoundedAllToAllv, RandomCounts) {
  runJob({.ranks = 7, .nodes = {3, 1, 3}, .algorithms = {}}, [&](moecclComm_t comm, int rank) {
    std::mt19937 random(4);
    for (const char* name : {"", "alltoallv=linear", "alltoallv=pairwise", "alltoallv=bruck",
                             "alltoallv=bruck:radix=3", "alltoallv=hierarchical"}) {
      moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
      config.algorithms = name;
      moecclComm_t own = nullptr;
      check(moecclCommSplit(comm, 0, rank, &own, &config), comm);
      for (int step = 0; step < 30; ++step) {
        const size_t most = step % 3 == 0 ? 0 : random() % 300;
        std::vector<std::int64_t> rows, incoming;
        for (int from = 0; from < 7; ++from)
          for (int to = 0; to < 7; ++to) {
            const auto count = static_cast<std::int64_t>(
                step % 2 == 0 && from != to ? 0 : random() % (most / kRow + 1));
            if (from == rank) rows.push_back(count);
            if (to == rank) incoming.push_back(count);
          }
        const Counts out(rows), in(incoming);
        std::vector<std::int32_t> send(out.total), received(in.total, -1);
        for (size_t to = 0; to < 7; ++to)
          for (size_t i = 0; i < out.counts[to]; ++i)
            send[out.displs[to] + i] =
                rank * 1000 + static_cast<int>(to) * 10000 + static_cast<int>(i);
        check(moecclAllToAllvBounded(send.data(), out.counts.data(), out.displs.data(),
                                     received.data(), in.counts.data(), in.displs.data(), most, 0,
                                     moecclInt32, own, nullptr),
              own);
        for (size_t from = 0; from < 7; ++from)
          for (size_t i = 0; i < in.counts[from]; ++i)
            checkThat(received[in.displs[from] + i] ==
                          static_cast<int>(from) * 1000 + rank * 10000 + static_cast<int>(i),
                      std::string(name) + ": another element");
      }
      check(moecclCommDestroy(own));
    }
  });
}

TEST(BoundedAllToAllv, NamesWhatIsWrong) {
  runJob({.ranks = 3, .nodes = {2, 1}, .algorithms = {}}, [&](moecclComm_t comm, int rank) {
    std::int32_t send[12] = {}, received[12] = {};
    const size_t displs[3] = {0, 4, 8}, counts[3] = {4, 4, 4};
    const auto call = [&](const size_t* out, const size_t* in, size_t most, size_t total,
                          moecclComm_t on) {
      return moecclAllToAllvBounded(send, out, displs, received, in, displs, most, total,
                                    moecclInt32, on, nullptr);
    };
    checkError(call(counts, counts, 3, 0, comm), moecclInvalidArgument, comm,
               {"sendCounts[0] is 4", "at most 3"});
    checkError(call(counts, counts, 4, 11, comm), moecclInvalidArgument, comm,
               {"sendCounts add up to 12", "at most 11"});
    for (const char* name : {"alltoallv=hierarchical", "alltoallv=bruck"}) {
      moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
      config.algorithms = name;
      // Rank 2 expects less of rank 0 than that sends.
      size_t in[3] = {4, 4, 4};
      if (rank == 2) in[0] = 1;
      moecclComm_t own = nullptr;
      check(moecclCommSplit(comm, 0, rank, &own, &config), comm);
      const moecclResult_t result = call(counts, in, 4, 0, own);
      if (rank == 2)
        checkError(result, moecclRemoteError, own,
                   {"rank 0 sends 16 bytes where rank 2 expects 4"});
      // Whoever aborts before would tell the others of that.
      check(moecclBarrier(comm, nullptr), comm);
      check(moecclCommAbort(own));
      check(moecclCommSplit(comm, 0, rank, &own, &config), comm);
      checkError(call(counts, counts, rank == 1 ? 5 : 4, 0, own), moecclRemoteError, own,
                 {"at most 4 x int32", "at most 5 x int32"});
      check(moecclBarrier(comm, nullptr), comm);
      check(moecclCommAbort(own));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, TextRouting,
                         testing::Values(Backend{"loopback", false, false},
                                         Backend{"ucxThreads", false, true},
                                         Backend{"processes", true, false}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace moeccl::test
