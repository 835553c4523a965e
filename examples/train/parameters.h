// What is trained: tensors of which each rank holds its part, their gradients, and Adam.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "team.h"

namespace train {

// Which ranks of a stage hold a tensor, and so what is left to do about its gradient after a
// backward pass.
enum class Holders {
  kAll,       // every rank of the stage all of it: sum over MP groups
  kMpGroup,   // the ranks of each MP group a part each: sum over MP groups
  kShard,     // one rank: nothing, the MoE layer has summed over all tokens
  kEspGroup,  // the ranks of one ESP group the same: nothing, for the same reason
};
constexpr int kHolders = 4;

// A box of a tensor [a][b][c]: what of it a rank holds.
struct Part {
  std::array<std::int64_t, 3> whole, first, count;

  std::int64_t size() const { return count[0] * count[1] * count[2]; }
  std::int64_t wholeSize() const { return whole[0] * whole[1] * whole[2]; }
  // Calls visit(index here, index in the whole tensor) for each element.
  template <typename Visit>
  void forEach(const Visit& visit) const {
    std::int64_t here = 0;
    for (std::int64_t a = first[0]; a < first[0] + count[0]; ++a)
      for (std::int64_t b = first[1]; b < first[1] + count[1]; ++b)
        for (std::int64_t c = first[2]; c < first[2] + count[2]; ++c)
          visit(here++, (a * whole[1] + b) * whole[2] + c);
  }
};

Part wholeOf(std::int64_t a, std::int64_t b, std::int64_t c);
// The place-th of `places` equal parts in one dimension.
Part cut(Part part, int dimension, std::int64_t place, std::int64_t places);

struct Parameter {
  std::string name;
  Holders holders;
  Part part;
  bool speaks;            // of the ranks that hold this part, the caller is the first
  std::int64_t offset;    // among the caller's tensors with the same holders
  Real* value = nullptr;  // [part.size()], from allocate() on
  Real* gradient = nullptr;
};

// As published by Kingma and Ba, 2015.
struct Adam {
  double beta1 = 0.9, beta2 = 0.98, epsilon = 1e-9;
};

class Parameters {
 public:
  explicit Parameters(const Team& team) : team_(team) {}

  // Declares a tensor, or finds the one that has been declared by this name; the reference stays
  // valid. Before allocate().
  const Parameter& add(const std::string& name, Holders holders, const Part& part);
  // Once, after the last add(): memory, zeroed.
  void allocate();
  // A normal distribution, each element by the seed, the tensor's name and its index in the whole.
  void fillNormal(const Parameter& parameter, std::uint64_t seed, double deviation);
  void fill(const Parameter& parameter, Real value);

  void zeroGradients();
  // From the gradients of the caller's MP group to those of the batch. Collective.
  void reduceGradients();
  // Step 1 is the first. Local: replicas have the same gradients, bit for bit, and stay the same.
  void update(const Adam& adam, double learningRate, std::int64_t step);

  // The tensors of the stage, in the order of their declaration.
  std::int64_t count() const { return static_cast<std::int64_t>(tensors_.size()); }
  const Parameter& at(std::int64_t i) const { return tensors_[static_cast<std::size_t>(i)]; }

  // All there is to know of a tensor at the end of a step: its values and Adam's two moments.
  static constexpr int kStates = 3;
  // Writes the caller's part of one state where it belongs in the whole tensor, if the caller
  // speaks for it. Local, as what follows.
  void tell(const Parameter& parameter, int state, std::vector<Real>& whole) const;
  // Whether the caller's part is like that, bit for bit: numbers that are none, too.
  bool holds(const Parameter& parameter, int state, const std::vector<Real>& whole) const;
  // Makes the caller's part like that.
  void scatter(const Parameter& parameter, int state, const std::vector<Real>& whole);

 private:
  struct Store {
    std::vector<Real> values, gradients, moments1, moments2;
  };

  const Team& team_;
  std::deque<Parameter> tensors_;
  std::array<std::int64_t, kHolders> sizes_{};
  std::array<Store, kHolders> stores_;
};

}  // namespace train
