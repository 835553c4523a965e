// English text as characters, and what of it a step learns from.
#pragma once

#include <moeccl/moeccl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace train {

struct Text {
  std::string characters;             // different bytes of the text, in order
  std::vector<std::int32_t> numbers;  // the text: indices of `characters`
  std::uint64_t hash = 0;             // of the text
};

// The files, one after the other, which every rank reads for itself. Collective over `world`.
// Throws std::runtime_error, on all ranks alike, where a rank cannot read them or has read
// something else.
Text readText(const std::vector<std::string>& paths, moecclComm_t world);

// Appends what the file has. Local. False, and errno, if it cannot be read.
bool readFile(const std::string& path, std::string& contents);

// FNV-1a, continued from `hash`.
constexpr std::uint64_t kHashBegin = 0xcbf29ce484222325;
std::uint64_t hashOf(const void* bytes, std::size_t size, std::uint64_t hash = kHashBegin);

// Sample `sample` of all that training draws: context + 1 characters of the text, the last context
// of which are what the first context are to be continued with.
const std::int32_t* sampleOf(const Text& text, std::uint64_t seed, std::int64_t sample,
                             std::int64_t context);

}  // namespace train
