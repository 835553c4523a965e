// Rank 0 reads and writes the file; all ranks agree on errors.
#include "checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
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

// "KIND NAME VALUE", whose kind has so many letters.
Setting settingIn(const std::string& line, std::size_t kind) {
  const std::size_t end = std::min(line.find(' ', kind + 1), line.size());
  return {line.substr(kind + 1, end - kind - 1), line.substr(std::min(end + 1, line.size()))};
}

// Sets `step`. "", or what is wrong with a header whose hash is right.
std::string checkHeader(std::istringstream header, const std::vector<std::string>& expected,
                        std::int64_t& step) {
  std::string line;
  std::size_t known = 0;
  std::getline(header, line);  // kMagic
  while (std::getline(header, line)) {
    if (line.rfind("made ", 0) == 0 || line.rfind("learned ", 0) == 0) continue;
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
  std::uint64_t hash = 0;
  std::string header, numbers;
};

// "", or what is wrong with `path`.
std::string readContents(const std::string& path, const std::vector<std::string>& expected,
                         std::int64_t count, Contents& contents) {
  std::string all;
  if (!readFile(path, all)) return because("cannot read checkpoint", path);
  const std::string name = "checkpoint " + path;
  if (all.rfind(std::string(kMagic) + "\n", 0) != 0)
    return name + " is no checkpoint of this program";
  const std::size_t headerEnd = all.find("\n\n");
  std::uint64_t& hash = contents.hash;
  const std::size_t size = all.size() < sizeof hash ? 0 : all.size() - sizeof hash;
  std::memcpy(&hash, all.data() + size, all.size() - size);
  if (headerEnd >= size || hashOf(all.data(), size) != hash)
    return name + " is damaged or not complete";
  const std::string different =
      checkHeader(std::istringstream(all.substr(0, headerEnd)), expected, contents.step);
  if (!different.empty()) return name + " " + different;
  contents.header = all.substr(0, headerEnd);
  contents.numbers = all.substr(headerEnd + 2, size - headerEnd - 2);
  if (contents.numbers.size() != static_cast<std::size_t>(count) * sizeof(Real))
    return name + " is damaged: it has " + std::to_string(contents.numbers.size()) +
           " bytes of numbers, and its tensors are " +
           std::to_string(count * static_cast<std::int64_t>(sizeof(Real)));
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
  const std::string draft = draftOf(path);
  const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return because("cannot write", draft);
  const bool written = writeAll(file, contents);
  std::string wrong = written ? "" : because("cannot write", draft);
  if (close(file) != 0 && written) wrong = because("cannot write", draft);
  if (wrong.empty() && std::rename(draft.c_str(), path.c_str()) != 0)
    wrong = because("cannot replace", path);
  if (!wrong.empty()) unlink(draft.c_str());
  return wrong;
}

std::string tryToReplace(const std::string& path) {
  struct stat there {};
  if (stat(path.c_str(), &there) == 0 && S_ISDIR(there.st_mode)) {
    errno = EISDIR;
    return because("cannot replace", path);
  }
  const std::string draft = draftOf(path);
  const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return because("cannot write", draft);
  close(file);
  unlink(draft.c_str());
  return "";
}

bool isThere(const std::string& path) {
  struct stat there {};
  return lstat(path.c_str(), &there) == 0;
}

std::vector<Setting> settingsIn(const std::string& path, const Team& team) {
  constexpr std::size_t kMost = 1 << 16;  // all but the tensors is a few kilobytes
  std::string header(kMost, '\0'), error;
  if (team.rank() == 0) {
    std::ifstream file(path, std::ios::binary);
    file.read(header.data(), static_cast<std::streamsize>(kMost));
    const std::size_t end = header.find("\ntensor ");
    if (!file && !file.eof())
      error = because("cannot read checkpoint", path);
    else if (header.rfind(std::string(kMagic) + "\n", 0) != 0 || end == std::string::npos)
      error = "checkpoint " + path + " is no checkpoint of this program";
    header.replace(end == std::string::npos ? 0 : end, std::string::npos, "");
    header.resize(kMost, '\0');
  }
  agree(team, error);
  team.share(header.data(), header.size());
  std::vector<Setting> settings;
  std::istringstream lines(header.c_str());
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("with ", 0) == 0) settings.push_back(settingIn(line, 4));
  }
  return settings;
}

Checkpoint::Checkpoint(const std::string& path, const Team& team, Parameters& parameters,
                       const Settings& settings)
    : path_(path), team_(team), parameters_(parameters), settings_(settings) {
  for (int stage = 0; stage < team.stages(); ++stage) {
    const bool here = stage == team.stage(), speaks = here && team.stageRank() == 0;
    std::int64_t count = speaks ? parameters.count() : 0;
    team.share(&count, sizeof count);
    for (std::int64_t i = 0; i < count; ++i) {
      Tensor tensor;
      std::array<char, 256> line{};
      if (here) tensor.mine = &parameters.at(i);
      if (speaks) {
        const auto& whole = tensor.mine->part.whole;
        std::snprintf(line.data(), line.size(), "tensor %s %lld %lld %lld",
                      tensor.mine->name.c_str(), static_cast<long long>(whole[0]),
                      static_cast<long long>(whole[1]), static_cast<long long>(whole[2]));
        tensor.size = tensor.mine->part.wholeSize();
      }
      team.share(line.data(), line.size());
      team.share(&tensor.size, sizeof tensor.size);
      tensor.line = line.data();
      tensors_.push_back(tensor);
    }
  }
}

std::int64_t Checkpoint::weights() const {
  std::int64_t sum = 0;
  for (const Tensor& each : tensors_) sum += each.size;
  return sum;
}

// What a file must have to go on from it.
std::vector<std::string> Checkpoint::lines() const {
  std::vector<std::string> lines;
  for (const Setting& each : settings_.with)
    lines.push_back("with " + each.name + " " + each.value);
  for (const Tensor& each : tensors_) lines.push_back(each.line);
  return lines;
}

void Checkpoint::save(std::int64_t step, const std::vector<Setting>& learned) const {
  std::string contents = std::string(kMagic) + "\n";
  for (const Setting& each : settings_.made)
    contents += "made " + each.name + " " + each.value + "\n";
  for (const std::string& line : lines()) contents += line + "\n";
  contents += "step " + std::to_string(step) + "\n";
  for (const Setting& each : learned) contents += "learned " + each.name + " " + each.value + "\n";
  contents += "\n";
  std::vector<Real> whole;
  for (const Tensor& tensor : tensors_)
    for (int state = 0; state < Parameters::kStates; ++state) {
      whole.assign(static_cast<std::size_t>(tensor.size), Real{0});
      if (tensor.mine != nullptr) parameters_.tell(*tensor.mine, state, whole);
      team_.share(whole.data(), whole.size() * sizeof(Real));
      if (tensor.mine != nullptr && !parameters_.holds(*tensor.mine, state, whole))
        fail("step " + std::to_string(step) + ": rank " + std::to_string(team_.rank()) +
             " holds another " + tensor.mine->name +
             " than the first rank that should hold the same");
      if (team_.rank() == 0)
        contents.append(reinterpret_cast<const char*>(whole.data()), whole.size() * sizeof(Real));
    }
  std::string error;
  if (team_.rank() == 0) {
    const std::uint64_t hash = hashOf(contents.data(), contents.size());
    contents.append(reinterpret_cast<const char*>(&hash), sizeof hash);
    error = replaceFile(path_, contents);
  }
  agree(team_, error);
}

std::int64_t Checkpoint::load() {
  Contents contents;
  agree(team_, team_.rank() != 0
                   ? ""
                   : readContents(path_, lines(), weights() * Parameters::kStates, contents));
  team_.share(&contents.step, sizeof contents.step);
  hash_ = contents.hash;
  team_.share(&hash_, sizeof hash_);
  std::size_t size = contents.header.size();
  team_.share(&size, sizeof size);
  contents.header.resize(size);
  team_.share(contents.header.data(), size);
  std::istringstream lines(contents.header);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind("learned ", 0) == 0) learned_.push_back(settingIn(line, 7));
  std::size_t at = 0;
  std::vector<Real> whole;
  for (const Tensor& tensor : tensors_)
    for (int state = 0; state < Parameters::kStates; ++state) {
      whole.assign(static_cast<std::size_t>(tensor.size), Real{0});
      if (team_.rank() == 0)
        at += contents.numbers.copy(reinterpret_cast<char*>(whole.data()),
                                    whole.size() * sizeof(Real), at);
      team_.share(whole.data(), whole.size() * sizeof(Real));
      if (tensor.mine != nullptr) parameters_.scatter(*tensor.mine, state, whole);
    }
  return contents.step;
}

}  // namespace train
