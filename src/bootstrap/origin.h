// When something was made, and by which command: for people.
#pragma once

#include <span>
#include <string>

namespace moeccl {

struct Origin {
  std::string date;     // UTC, "2026-01-31T12:00:00Z"
  std::string command;  // as for a shell; "" where the system does not tell
};
// The time now, and the command of the calling process.
Origin origin();

// As one types them: what a shell would take apart is quoted. What is no printable ASCII becomes
// '?', and a command of more than 4096 characters ends in "...".
std::string commandText(std::span<const std::string> arguments);

}  // namespace moeccl
