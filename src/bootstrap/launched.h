// Joins the ranks that one launcher has started.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "src/bootstrap/launcher.h"
#include "src/bootstrap/oob.h"

namespace moeccl {

// As join() (rendezvous.h), with an id that rank 0 makes and the others get as `launch` says.
// A rank that waits for more than two seconds says on stderr for whom, and by which variables.
// Throws Error as join() does; moecclTimeout also for an id that does not come.
std::unique_ptr<Oob> joinLaunched(const LaunchedRank& launch, std::string_view interfaces,
                                  std::int64_t timeoutMs);

}  // namespace moeccl
