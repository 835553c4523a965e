// Variables of the environment, and those whose names begin with MOECCL_ and that nothing reads:
// most often such a name is misspelt.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace moeccl {

// A variable's value, or nullptr: std::getenv, or a test's stand-in.
using Environment = std::function<const char*(const char* name)>;
const Environment& processEnvironment();
// A variable that is empty counts as not set: nullptr.
const char* valueOf(const Environment& environment, const char* name);

// A sentence for each such variable of `environment`, which is like environ(7). It has the known
// name that comes nearest, where one is near.
std::vector<std::string> unknownVariables(const char* const* environment);

// Says so on stderr, whatever MOECCL_DEBUG is, once in a process.
void warnOfUnknownVariables();

}  // namespace moeccl
