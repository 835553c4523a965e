#include "checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "text.h"

namespace train {
namespace {

constexpr const char* kMagic = "moeccl-train 1";

std::string because(const std::string& what, const std::string& path) {
  return what + " " + path + ": " + std::strerror(errno);
}

bool writeAll(int file, const std::string& contents) {
  for (std::size_t written = 0; written < contents.size();) {
    const ssize_t more = write(file, contents.data() + written, contents.size() - written);
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return false;
    written += static_cast<std::size_t>(more);
  }
  // Before the new file takes the old one's name, it must be more than a promise.
  return fsync(file) == 0;
}

// All but the step.
std::vector<std::string> linesOf(const Settings& settings, const Parameters& parameters) {
  std::vector<std::string> lines;
  for (const Setting& each : settings.with) lines.push_back("with " + each.name + " " + each.value);
  for (std::int64_t i = 0; i < parameters.count(); ++i) {
    std::string line = "tensor " + parameters.at(i).name;
    for (const std::int64_t size : parameters.at(i).part.whole)
      line.append(" ").append(std::to_string(size));
    lines.push_back(line);
  }
  return lines;
}

std::string headerOf(const Settings& settings, const Parameters& parameters, std::int64_t step) {
  std::string header = std::string(kMagic) + "\n";
  for (const Setting& each : settings.made) header += "made " + each.name + " " + each.value + "\n";
  for (const std::string& line : linesOf(settings, parameters)) header += line + "\n";
  return header + "step " + std::to_string(step) + "\n\n";
}

// Sets `step`. "", or what is wrong with a header whose hash is right.
std::string checkHeader(std::istringstream header, const std::vector<std::string>& expected,
                        std::int64_t& step) {
  std::string line;
  std::size_t known = 0;
  std::getline(header, line);  // kMagic
  while (std::getline(header, line)) {
    if (line.rfind("made ", 0) == 0) continue;
    if (line.rfind("step ", 0) == 0) {
      step = std::atoll(line.c_str() + 5);
      continue;
    }
    const std::string mine = known < expected.size() ? expected[known++] : "no more";
    // Of a setting the kind and name are the same, and all but the kind is worth telling.
    const std::size_t name = line.find(' ') + 1, end = line.find(' ', name) + 1;
    if (line != mine && line.compare(0, end, mine, 0, end) == 0)
      return "was made with " + line.substr(name) + ", not " + mine.substr(end);
    if (line != mine)
      return "was made by another version of this program: it has \"" + line + "\", not \"" + mine +
             "\"";
  }
  return known == expected.size()
             ? ""
             : "was made by another version of this program: it has no \"" + expected[known] + "\"";
}

// What rank 0 has read.
struct Contents {
  std::int64_t step = 0;
  std::string floats;
};

// "", or what is wrong with `path`.
std::string readContents(const std::string& path, const std::vector<std::string>& expected,
                         std::int64_t floats, Contents& contents) {
  std::ifstream file(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) return because("cannot read --checkpoint", path);
  const std::string name = "--checkpoint " + path;
  if (all.rfind(std::string(kMagic) + "\n", 0) != 0)
    return name + " is no checkpoint of this program";
  const std::size_t headerEnd = all.find("\n\n");
  std::uint64_t hash = 0;
  const std::size_t size = all.size() < sizeof hash ? 0 : all.size() - sizeof hash;
  std::memcpy(&hash, all.data() + size, all.size() - size);
  if (headerEnd >= size || hashOf(all.data(), size) != hash)
    return name + " is damaged or not complete";
  const std::string different =
      checkHeader(std::istringstream(all.substr(0, headerEnd)), expected, contents.step);
  if (!different.empty()) return name + " " + different;
  contents.floats = all.substr(headerEnd + 2, size - headerEnd - 2);
  if (contents.floats.size() != static_cast<std::size_t>(floats) * sizeof(float))
    return name + " is damaged: it has " + std::to_string(contents.floats.size()) +
           " bytes of numbers, and its tensors are " +
           std::to_string(floats * static_cast<std::int64_t>(sizeof(float)));
  return "";
}

}  // namespace

void agree(const Team& team, const std::string& error) {
  std::array<char, 1024> text{};
  if (team.rank() == 0) error.copy(text.data(), text.size() - 1);
  team.share(text.data(), text.size());
  if (text[0] != '\0') throw std::runtime_error(text.data());
}

std::string replaceFile(const std::string& path, const std::string& contents) {
  const std::string draft = path + ".draft";
  const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return because("cannot write", draft);
  const bool written = writeAll(file, contents);
  std::string wrong = written ? "" : because("cannot write", draft);
  if (close(file) != 0 && written) wrong = because("cannot write", draft);
  if (wrong.empty() && std::rename(draft.c_str(), path.c_str()) != 0)
    wrong = because("cannot replace", path);
  return wrong;
}

void saveCheckpoint(const std::string& path, const Team& team, const Parameters& parameters,
                    const Settings& settings, std::int64_t step) {
  std::string contents;
  if (team.rank() == 0) contents = headerOf(settings, parameters, step);
  std::vector<float> whole;
  for (std::int64_t i = 0; i < parameters.count(); ++i)
    for (int state = 0; state < Parameters::kStates; ++state) {
      const Parameter& parameter = parameters.at(i);
      parameters.gather(parameter, state, whole);
      if (!parameters.holds(parameter, state, whole))
        fail("step " + std::to_string(step) + ": rank " + std::to_string(team.rank()) +
             " holds another " + parameter.name + " than the first rank that should hold the same");
      if (team.rank() == 0)
        contents.append(reinterpret_cast<const char*>(whole.data()), whole.size() * sizeof(float));
    }
  std::string error;
  if (team.rank() == 0) {
    const std::uint64_t hash = hashOf(contents.data(), contents.size());
    contents.append(reinterpret_cast<const char*>(&hash), sizeof hash);
    error = replaceFile(path, contents);
  }
  agree(team, error);
}

std::int64_t loadCheckpoint(const std::string& path, const Team& team, Parameters& parameters,
                            const Settings& settings) {
  Contents contents;
  agree(team, team.rank() != 0
                  ? ""
                  : readContents(path, linesOf(settings, parameters),
                                 parameters.wholeSize() * Parameters::kStates, contents));
  team.share(&contents.step, sizeof contents.step);
  std::size_t at = 0;
  std::vector<float> whole;
  for (std::int64_t i = 0; i < parameters.count(); ++i)
    for (int state = 0; state < Parameters::kStates; ++state) {
      const Parameter& parameter = parameters.at(i);
      whole.assign(static_cast<std::size_t>(parameter.part.wholeSize()), 0.0f);
      if (team.rank() == 0)
        at += contents.floats.copy(reinterpret_cast<char*>(whole.data()),
                                   whole.size() * sizeof(float), at);
      team.share(whole.data(), whole.size() * sizeof(float));
      parameters.scatter(parameter, state, whole);
    }
  return contents.step;
}

}  // namespace train
