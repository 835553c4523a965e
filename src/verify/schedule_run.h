// Follows the tables of all ranks through the phases of a pass.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/verify/field.h"
#include "src/verify/verify_schedule.h"

namespace moeccl::verification {

// What the layer's function is made of.
class Coefficients {
 public:
  explicit Coefficients(const RoutedLayer& layer) : seed_(layer.seed) {}

  Number token(int batch, int token) const { return numberFor(seed_, 1, batch, token); }
  Number outputGradient(int batch, int token) const { return numberFor(seed_, 2, batch, token); }
  Number weight(int batch, int token, int choice) const {
    return numberFor(seed_, 3, batch, token, choice);
  }
  Number shard(int expert, int shard) const { return numberFor(seed_, 4, expert, shard); }
  Number residual() const { return numberFor(seed_, 5); }
  // How the weight of a choice depends on its token, and on the gate; and the auxiliary loss on
  // both.
  Number weightByToken(int batch, int token, int choice) const {
    return numberFor(seed_, 6, batch, token, choice);
  }
  Number weightByGate(int batch, int token, int choice) const {
    return numberFor(seed_, 7, batch, token, choice);
  }
  Number lossByToken(int batch, int token) const { return numberFor(seed_, 8, batch, token); }
  Number lossByGate(int batch, int token) const { return numberFor(seed_, 9, batch, token); }

 private:
  std::uint64_t seed_;
};

// A table of one rank: a run of numbers for each index. Routing holds who its tokens are, from 1
// on; 0 is padding.
struct Data {
  std::vector<schedules::Dim> dims;  // the indices
  std::vector<int> sizes;            // of them
  std::vector<std::vector<Number>> runs;

  bool operator==(const Data&) const = default;
};

// The run of an index.
inline std::size_t flat(const std::vector<int>& sizes, const std::vector<int>& index) {
  int at = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) at = at * sizes[i] + index[i];
  return static_cast<std::size_t>(at);
}

class ScheduleRun {
 public:
  // `kept`: of the forward pass; nullptr: this is it.
  ScheduleRun(const schedules::Schedule& schedule, const RoutedLayer& layer,
              const ScheduleRun* kept);

  // Throws Wrong.
  void run(std::span<const int> order);

  const Data& at(int table, int rank) const;
  // nullptr: there is none.
  const Data* find(const std::string& name, int chunk, int rank) const;
  const schedules::Schedule& schedule() const { return schedule_; }
  // The gradients that this rank's shard of one of its experts has gathered.
  Number shardGradient(int rank, int localExpert) const {
    return shardGradients_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(localExpert)];
  }

  struct Wrong {
    std::string what;
  };

 private:
  using Dim = schedules::Dim;
  using Phase = schedules::Phase;
  using Table = schedules::Table;

  [[noreturn]] void wrong(const std::string& what) const;
  const Table& table(int index) const { return schedule_.tables[static_cast<std::size_t>(index)]; }
  int sizeOf(Dim dim) const;
  // Numbers in a run of the table, where that does not depend on the routing.
  int rowsOf(const Table& table) const;
  std::vector<int> members(GroupKind group, int rank) const;
  int indexIn(GroupKind group, int rank) const;
  Data empty(const Table& table) const;
  const Data& read(const Phase& phase, std::size_t index, int rank) const;
  // Sets what the phase writes, or adds to it.
  void write(const Phase& phase, std::size_t index, int rank, Data data);
  void checkReplicas(int table) const;

  void phase(const Phase& phase);
  void exchange(const Phase& phase, std::size_t payload);
  void split(const Phase& phase, int rank);
  void join(const Phase& phase, int rank);
  void gate(const Phase& phase, int rank);
  void gateBackward(const Phase& phase, int rank);
  void permute(const Phase& phase, int rank);
  void combine(const Phase& phase, int rank);
  void combineBackward(const Phase& phase, int rank);
  void regroup(const Phase& phase, int rank);
  void experts(const Phase& phase, int rank);
  void residual(const Phase& phase, int rank);
  void add(const Phase& phase, int rank);
  // Routed phases, schedule_routes.cc.
  void route(const Phase& phase, int rank);
  void permuteRouted(const Phase& phase, int rank);
  void combineRouted(const Phase& phase, int rank);
  void combineRoutedBackward(const Phase& phase, int rank);
  // Calls at(batch, token, choice, position of the token in the rank's routing, expert) for its
  // kept choices.
  template <typename Function>
  void eachChoice(const Data& routing, Function at) const;
  // Calls at(source, as above) for what comes to the rank's own experts.
  template <typename Function>
  void eachArriving(const Phase& phase, std::size_t routing, int rank, Function at) const;
  // Adds up, over the shards of each kept choice's expert, what those have for it: calls
  // at(batch, token, choice, position of the token, sum).
  template <typename Function>
  void eachReturning(const Phase& phase, std::size_t rows, std::size_t routing, int rank,
                     Function at) const;

  // Where the rows of the kept choices are, in `rows`, by the routing: calls at(batch, token,
  // choice, position of the token in the routing's run, index of that run, run of rows, row).
  template <typename Function>
  void eachKept(const Table& rows, const Data& routing, int rank, Function at) const;
  // First token of the rank's part, or of a chunk, in its batch.
  int firstToken(const Table& table, int part) const;
  // First token, or place, of the rank's part, or chunk of it, in its batch.
  int firstOf(const Table& table, Dim whole, Dim chunk, int size, int part) const;
  std::pair<int, int> tokenOf(Number identity) const {
    if (identity.value > identities_.size()) wrong("is given no routing");
    const auto number = static_cast<int>(identity.value) - 1;
    return {number / layer_.tokens, number % layer_.tokens};
  }

  const schedules::Schedule& schedule_;
  const RoutedLayer& layer_;
  const Coefficients numbers_;
  const ScheduleRun* const kept_;
  std::map<std::uint64_t, std::uint64_t> identities_;  // of tokens, by their number
  std::vector<std::vector<Data>> tables_;              // [table][rank]
  std::vector<bool> written_;                          // by table
  std::vector<std::vector<Number>> shardGradients_;    // [rank][localExpert]
  const Phase* now_ = nullptr;
};

}  // namespace moeccl::verification
