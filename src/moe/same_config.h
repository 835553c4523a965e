// What all ranks of a grid do together, or none: whether they want one layer, and whether a step
// of making it failed on one of them.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "moeccl/moe.h"
#include "src/base/boundary.h"

namespace moeccl {

// Collective. Throws Error (InvalidUsage) on every rank, which names the first field that differs.
// `requested`: the config's schedule, or what MOECCL_SCHEDULE says.
void requireSameConfig(moecclGrid_t grid, const moecclMoeConfig_t& config,
                       moecclSchedule_t requested);
// The same of a text.
void requireSameText(moecclGrid_t grid, std::string_view text);

// Runs a step that may fail on one rank alone: all fail if one does.
template <typename Step>
void agreeAfter(moecclGrid_t grid, Step&& step) {
  moecclResult_t mine = moecclSuccess;
  std::string text;
  try {
    step();
  } catch (const Error& error) {
    mine = error.result();
    text = error.what();
  } catch (const std::exception& error) {
    mine = moecclSystemError;
    text = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what();
  }
  requireSuccess(moecclInternalAgree(grid, mine, text.c_str()));
}

}  // namespace moeccl
