// Writes each message as one line with one write to stderr, and reads the level from MOECCL_DEBUG.
#include "src/base/log.h"

#include <strings.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>

#include "src/base/text.h"

namespace moeccl {
namespace {

constexpr const char* kNames[] = {"NONE", "WARN", "INFO", "TRACE"};
constexpr int kUnread = -1;
// Trivially destructible: threads may still log while the process exits.
constinit std::atomic<int> currentLevel{kUnread};

void write(LogLevel level, LogSource source, const std::string& message) {
  std::string line =
      stringf("moeccl %s %s", kNames[static_cast<int>(level)], processName().c_str());
  if (source.rank >= 0) line += stringf(" rank %d/%d", source.rank, source.ranks);
  line += ": " + message;
  for (char& c : line)
    if (c == '\n') c = ' ';
  line += '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

LogLevel levelOfEnvironment() {
  const char* value = std::getenv("MOECCL_DEBUG");
  if (value == nullptr || *value == '\0') return LogLevel::none;
  for (int level = 0; level < 4; ++level)
    if (strcasecmp(value, kNames[level]) == 0) return static_cast<LogLevel>(level);
  write(
      LogLevel::warn, {},
      stringf("MOECCL_DEBUG is \"%s\", not one of NONE, WARN, INFO, TRACE; taken as WARN", value));
  return LogLevel::warn;
}

}  // namespace

LogLevel logLevel() {
  int level = currentLevel.load(std::memory_order_relaxed);
  if (level == kUnread) {
    level = static_cast<int>(levelOfEnvironment());
    currentLevel.store(level, std::memory_order_relaxed);
  }
  return static_cast<LogLevel>(level);
}

void setLogLevel(LogLevel level) {
  currentLevel.store(static_cast<int>(level), std::memory_order_relaxed);
}

std::string processName() {
  char host[HOST_NAME_MAX + 1] = "?";
  gethostname(host, sizeof host - 1);
  host[std::strcspn(host, ".")] = '\0';
  return stringf("%s:%d", host, static_cast<int>(getpid()));
}

void warn(const std::string& message) { write(LogLevel::warn, {}, message); }

void log(LogLevel level, LogSource source, const char* format, ...) {
  if (!logs(level)) return;
  std::va_list arguments;
  va_start(arguments, format);
  const std::string message = vstringf(format, arguments);
  va_end(arguments);
  write(level, source, message);
}

}  // namespace moeccl
