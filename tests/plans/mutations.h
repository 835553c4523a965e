// Every way to spoil a set of plans by one small change.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "algorithms/plan.h"
#include "src/verify/verify.h"

namespace moeccl::testing {

struct Mutant {
  std::string_view kind;  // "drop op"
  int rank;               // whose plan is changed
  int op;                 // in the original plan; -1: none
  Plan plan;              // the changed plan
};

// All mutants of one rank's plan; `seen` is called once for each.
void forEachMutant(const Promise& promise, int rank, const Plan& plan,
                   const std::function<void(const Mutant&)>& seen);

}  // namespace moeccl::testing
