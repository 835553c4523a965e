// The tokens of a real text on their way to experts and back: a dropless layer's exchange, whose
// counts are as skewed as text is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "algorithms/registry.h"
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

// Every rank's words go to their experts, which negate them, and return.
void route(const std::vector<std::string>& words, moecclComm_t comm, int ranks, int rank) {
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
  check(moecclAllToAllv(send.data(), out.counts.data(), out.displs.data(), received.data(),
                        in.counts.data(), in.displs.data(), moecclInt32, comm, nullptr),
        comm);
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
  check(moecclAllToAllv(received.data(), in.counts.data(), in.displs.data(), returned.data(),
                        out.counts.data(), out.displs.data(), moecclInt32, comm, nullptr),
        comm);
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
                 route(words, own, ranks, rank);
               } catch (const std::exception& error) {
                 throw std::runtime_error(name + ": " + error.what());
               }
               check(moecclCommDestroy(own));
             }
           });
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, TextRouting,
                         testing::Values(Backend{"loopback", false, false},
                                         Backend{"ucxThreads", false, true},
                                         Backend{"processes", true, false}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace moeccl::test
