// Reads texts, and gives each different word a number and a vector.
#include "words.h"

#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <unordered_map>

namespace quickstart {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw std::runtime_error("cannot read --text " + path + ": " + std::strerror(errno));
  return text;
}

}  // namespace

Words readWords(const std::vector<std::string>& paths) {
  Words words;
  std::unordered_map<std::string, std::int64_t> known;
  for (const std::string& path : paths) {
    std::string word;
    // The added space ends the last word.
    for (const char c : contents(path) + ' ') {
      const auto letter = static_cast<unsigned char>(c);
      if (std::isalpha(letter) || (c == '\'' && !word.empty())) {
        word += static_cast<char>(std::tolower(letter));
      } else if (!word.empty()) {
        const auto number = static_cast<std::int64_t>(known.size());
        words.numbers.push_back(known.emplace(word, number).first->second);
        word.clear();
      }
    }
  }
  words.different = static_cast<std::int64_t>(known.size());
  return words;
}

std::vector<float> embeddingTable(std::int64_t different, std::int64_t embedding,
                                  std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> value;
  std::vector<float> table(static_cast<std::size_t>(different * embedding));
  for (float& element : table) element = value(random);
  return table;
}

std::vector<float> embed(const Words& words, std::int64_t first, std::int64_t count,
                         const std::vector<float>& table, std::int64_t embedding) {
  std::vector<float> rows;
  rows.reserve(static_cast<std::size_t>(count * embedding));
  for (std::int64_t i = first; i < first + count; ++i) {
    const auto row = table.begin() + words.numbers[static_cast<std::size_t>(i)] * embedding;
    rows.insert(rows.end(), row, row + embedding);
  }
  return rows;
}

}  // namespace quickstart
