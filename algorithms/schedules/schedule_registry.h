// The list of all schedules. It is generated from algorithms/meson.build, where adding a schedule
// is one line; its name there is its name everywhere, and in small letters its file and its
// function.
#pragma once

#include <span>
#include <string_view>

#include "algorithms/schedules/transformations.h"

namespace moeccl::schedules {

struct Entry {
  std::string_view name;         // "S1", as in MOECCL_SCHEDULE
  std::string_view description;  // one line
  Schedule (*forward)();
  // The mirror of that, or an equivalent that is cheaper.
  Schedule (*backward)(const Schedule& forward);
};

std::span<const Entry> registry();
// Capitals or not; nullptr where there is none of that name.
const Entry* find(std::string_view name);

// What a layer asks for.
struct Options {
  bool dropless = false;
  bool residual = false;
  int chunks = 1;
  bool routed = false;  // of layers without capacity: rows go by token routing

  bool operator==(const Options&) const = default;
};
// Throws NotOffered.
Schedule scheduleOf(const Entry& entry, Pass pass, const Options& options = {});
// The same, made once for the whole process.
const Schedule& known(const Entry& entry, Pass pass, const Options& options);
// Whether it does not throw that.
bool offers(const Entry& entry, const Options& options);

}  // namespace moeccl::schedules
