// English text as tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quickstart {

// The words of files in order, as numbers: a word's number is how many different words came before
// it. Upper and lower case are one, everything but letters and apostrophes separates words.
struct Words {
  std::vector<std::int64_t> numbers;
  std::int64_t different = 0;
};

// Throws std::runtime_error, which names the file.
Words readWords(const std::vector<std::string>& paths);

// One row of `embedding` elements for each of `different` words.
std::vector<float> embeddingTable(std::int64_t different, std::int64_t embedding,
                                  std::uint64_t seed);

// The rows of `count` words, beginning with word `first`: [count][embedding].
std::vector<float> embed(const Words& words, std::int64_t first, std::int64_t count,
                         const std::vector<float>& table, std::int64_t embedding);

}  // namespace quickstart
