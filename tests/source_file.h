// Where a test finds a file of the source tree. No path is compiled in: what a compiler cache keeps
// serves every clone.
#pragma once

#include <cstdlib>
#include <string>

namespace moeccl {

// Tests that `meson test` starts are told the root; those started by hand are expected to be there.
inline std::string sourceFile(const std::string& path) {
  const char* root = std::getenv("SOURCE_ROOT");
  return root == nullptr ? path : std::string(root) + "/" + path;
}

}  // namespace moeccl
