// Variables of the environment whose names begin with MOECCL_ and that nothing reads: most often
// such a name is misspelt.
#pragma once

#include <string>
#include <vector>

namespace moeccl {

// A sentence for each of `environment`, which is like environ(7); with the name that comes nearest
// where one is near.
std::vector<std::string> unknownVariables(const char* const* environment);

// Says so on stderr, whatever MOECCL_DEBUG is, once in a process.
void warnOfUnknownVariables();

}  // namespace moeccl
