// Reads files, and requires that all ranks have read the same.
#include "text.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "random.h"
#include "team.h"

namespace train {
namespace {

// What a rank says of what it has read.
struct Report {
  std::uint64_t hash = 0;
  std::array<char, 512> problem{};  // "": none
};

Text readHere(const std::vector<std::string>& paths) {
  std::string all;
  for (const std::string& path : paths) {
    if (!readFile(path, all))
      throw std::runtime_error("cannot read --text " + path + ": " + std::strerror(errno));
  }
  std::array<std::int32_t, 256> numberOf{};
  for (const char c : all) numberOf[static_cast<unsigned char>(c)] = 1;
  Text text;
  for (std::size_t byte = 0; byte < numberOf.size(); ++byte)
    if (numberOf[byte] != 0) {
      numberOf[byte] = static_cast<std::int32_t>(text.characters.size());
      text.characters += static_cast<char>(byte);
    }
  text.numbers.reserve(all.size());
  for (const char c : all) text.numbers.push_back(numberOf[static_cast<unsigned char>(c)]);
  text.hash = hashOf(all.data(), all.size());
  return text;
}

}  // namespace

bool readFile(const std::string& path, std::string& contents) {
  std::ifstream file(path, std::ios::binary);
  try {
    contents.append(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  } catch (const std::ios_base::failure&) {  // as of a directory
    return false;
  }
  return static_cast<bool>(file);
}

Text readText(const std::vector<std::string>& paths, moecclComm_t world) {
  int ranks = 0;
  require(moecclCommCount(world, &ranks), "asking for the number of ranks", world);
  Text text;
  Report mine;
  try {
    text = readHere(paths);
    mine.hash = text.hash;
  } catch (const std::runtime_error& error) {
    std::string(error.what()).copy(mine.problem.data(), mine.problem.size() - 1);
  }
  std::vector<Report> all(static_cast<std::size_t>(ranks));
  require(moecclAllGather(&mine, all.data(), sizeof mine, moecclUint8, world, nullptr),
          "comparing texts", world);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].problem[0] != '\0')
      throw std::runtime_error("rank " + std::to_string(rank) + " " + all[rank].problem.data());
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank].hash != all[0].hash)
      throw std::runtime_error("rank " + std::to_string(rank) +
                               " has another text than rank 0; --text must be the same for all");
  return text;
}

std::uint64_t hashOf(const void* bytes, std::size_t size, std::uint64_t hash) {
  const auto* const at = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ at[i]) * 0x100000001b3;
  return hash;
}

const std::int32_t* sampleOf(const Text& text, std::uint64_t seed, std::int64_t sample,
                             std::int64_t context) {
  const std::uint64_t beginnings = text.numbers.size() - static_cast<std::size_t>(context);
  return text.numbers.data() +
         Random(seed, "samples").bits(static_cast<std::uint64_t>(sample)) % beginnings;
}

}  // namespace train
