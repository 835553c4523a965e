// Watches processes by pidfds in an epoll. The start time tells whether a pid is still that of the
// same process.
#include "src/watch/process_watch.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "src/base/file_limit.h"

namespace moeccl {
namespace {

constexpr int kEndedBefore = -1;  // the epoll's key of ended_

std::uint64_t startTimeOf(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // Field 22. The second one, a name in parentheses, may hold anything, so count from its end.
  const std::size_t nameEnd = line.rfind(')');
  if (nameEnd == std::string::npos) return 0;
  std::istringstream fields(line.substr(nameEnd + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  std::uint64_t time = 0;
  fields >> time;
  return time;
}

int addToEpoll(int epoll, int fd, int key) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = key;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

}  // namespace

ProcessIdentity ProcessIdentity::self() {
  ProcessIdentity self;
  std::string bootId;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> bootId;
  std::erase(bootId, '-');
  self.kernel = std::strtoull(bootId.substr(0, 16).c_str(), nullptr, 16);
  struct stat space {};
  if (stat("/proc/self/ns/pid", &space) == 0) self.pidSpace = space.st_ino;
  self.pid = getpid();
  self.startTime = startTimeOf(self.pid);
  return self;
}

ProcessWatch::ProcessWatch()
    : events_(epoll_create1(EPOLL_CLOEXEC)), ended_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!events_ || !ended_ || addToEpoll(events_.get(), ended_.get(), kEndedBefore) != 0)
    throw std::runtime_error("watching processes: " + descriptorErrorText(errno));
}

void ProcessWatch::add(int key, const ProcessIdentity& process) {
  if (process.kernel != self_.kernel || process.pidSpace != self_.pidSpace ||
      process.pidSpace == 0 || process == self_)
    return;
  FileDescriptor fd(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  const bool another =
      fd && process.startTime != 0 && startTimeOf(process.pid) != process.startTime;
  if (another || (!fd && errno == ESRCH)) {
    alreadyEnded_.push_back(key);
    const std::uint64_t one = 1;
    if (write(ended_.get(), &one, sizeof one) < 0) return;  // still found by next()
    return;
  }
  if (!fd || addToEpoll(events_.get(), fd.get(), key) != 0) return;
  if (watched_.size() <= static_cast<std::size_t>(key)) watched_.resize(key + 1);
  watched_[key] = std::move(fd);
}

int ProcessWatch::next() {
  if (!alreadyEnded_.empty()) {
    const int key = alreadyEnded_.back();
    alreadyEnded_.pop_back();
    return key;
  }
  epoll_event event{};
  while (epoll_wait(events_.get(), &event, 1, 0) == 1) {
    if (event.data.fd == kEndedBefore) {
      std::uint64_t count;
      if (read(ended_.get(), &count, sizeof count) < 0) return -1;
      continue;
    }
    FileDescriptor& ended = watched_[event.data.fd];
    // Closing it is not enough: a child that this process has forked since holds it too.
    epoll_ctl(events_.get(), EPOLL_CTL_DEL, ended.get(), nullptr);
    ended = FileDescriptor();
    return event.data.fd;
  }
  return -1;
}

}  // namespace moeccl
