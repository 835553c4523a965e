// Messages to people on stderr, as much as MOECCL_DEBUG asks for: nothing by default, WARN, INFO or
// TRACE. One line and one write per message, so that ranks do not mix theirs:
//
//   moeccl INFO node0:123 rank 3/8: 2 nodes of 4 ranks
#pragma once

#include <string>

namespace moeccl {

enum class LogLevel { none, warn, info, trace };

// From MOECCL_DEBUG, read once. Any other value than the four names (in either case) warns about
// itself and then counts as WARN.
LogLevel logLevel();
// Instead of MOECCL_DEBUG's; for tests.
void setLogLevel(LogLevel level);

inline bool logs(LogLevel level) { return level <= logLevel(); }

// This process as log lines name it: "node0:123".
std::string processName();

// Who speaks: a rank of so many, or the process as a whole.
struct LogSource {
  int rank = -1;
  int ranks = 0;
};

// A warning whatever MOECCL_DEBUG is.
void warn(const std::string& message);

// May be called by any thread at any time, process exit included.
[[gnu::format(printf, 3, 4)]] void log(LogLevel level, LogSource source, const char* format, ...);

}  // namespace moeccl
