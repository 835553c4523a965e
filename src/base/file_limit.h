// Texts for errors of calls that open files or sockets.
#pragma once

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace moeccl {

// The text of errno; where descriptors have run out, with the limit.
inline std::string descriptorErrorText(int error) {
  std::string text = std::strerror(error);
  rlimit limit{};
  if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
    text += " (this process may open " + std::to_string(limit.rlim_cur) + ": ulimit -n)";
  return text;
}

}  // namespace moeccl
