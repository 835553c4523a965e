// The state of training as one file: whole tensors, so that any number of ranks in any grid can go
// on from it.
//
//   moeccl-train 1                      and, a line each:
//   made NAME VALUE                     what it was made with and need not be kept
//   with NAME VALUE                     what must be the same to go on
//   tensor NAME A B C                   its shape
//   step N
//   learned NAME TEXT                   of MoE layers that learn
//                                       an empty line; then, as the machine has them,
//   [3][A][B][C]                        of each tensor its values, then Adam's two moments
//   8 bytes                             hash of all before
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parameters.h"

namespace train {

struct Setting {
  std::string name, value;
};

struct Settings {
  std::vector<Setting> made, with;
};

// Hands rank 0's `error` to all ranks, which throw it as std::runtime_error; "": none. Collective.
void agree(const Team& team, const std::string& error);

// Where a file is written that takes the place of another once it is complete.
inline std::string draftOf(const std::string& path) { return path + ".draft"; }
// What a file of rank 0 is to be replaced with, whole or not at all. Returns what went wrong, or
// "".
std::string replaceFile(const std::string& path, const std::string& contents);
// What would go wrong, as far as can be told without contents, or "". Leaves the file as it is.
std::string tryToReplace(const std::string& path);
bool isThere(const std::string& path);

// What a file was made with, as its header says: `with`. Its numbers are not looked at. Rank 0
// reads. Collective. Throws std::runtime_error, on all ranks alike.
std::vector<Setting> settingsIn(const std::string& path, const Team& team);

class Checkpoint {
 public:
  // Learns of the tensors of all stages. Collective.
  Checkpoint(const std::string& path, const Team& team, Parameters& parameters,
             const Settings& settings);

  // Elements of all tensors.
  std::int64_t weights() const;

  // Rank 0 writes; an old file is replaced once the new one is complete. Collective. Throws
  // std::runtime_error, on all ranks alike, when the file cannot be written; ends the process when
  // ranks that should hold the same do not. `learned`: of rank 0, values of one line.
  void save(std::int64_t step, const std::vector<Setting>& learned) const;

  // Rank 0 reads; returns the step. Collective. Throws std::runtime_error, on all ranks alike: the
  // file cannot be read, is no checkpoint, not a whole one, or was made with other settings.
  std::int64_t load();
  // Of the file that was loaded, on all ranks.
  std::uint64_t hash() const { return hash_; }
  const std::vector<Setting>& learned() const { return learned_; }

 private:
  struct Tensor {
    std::string line;  // in the header
    std::int64_t size = 0;
    const Parameter* mine = nullptr;  // nullptr: another stage's
  };
  std::vector<std::string> lines() const;

  const std::string path_;
  const Team& team_;
  Parameters& parameters_;
  const Settings settings_;
  std::vector<Tensor> tensors_;  // of all stages, in their order
  std::uint64_t hash_ = 0;
  std::vector<Setting> learned_;
};

}  // namespace train
