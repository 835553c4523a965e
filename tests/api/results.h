// What tests of the public API expect of its results. They throw what is wrong.
#pragma once

#include <string>
#include <vector>

#include "moeccl/moeccl.h"

namespace moeccl::test {

// Throws with the text of the last error unless the result is moecclSuccess.
void check(moecclResult_t result, moecclComm_t comm = nullptr);
// Throws unless `result` is `expected` and the last error contains all of `parts`.
void checkError(moecclResult_t result, moecclResult_t expected, moecclComm_t comm,
                const std::vector<std::string>& parts);
void checkThat(bool condition, const std::string& text);

}  // namespace moeccl::test
