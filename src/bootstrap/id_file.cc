// Writes the id to a file beside the path and links it there, so that it appears as a whole. The
// file names the process that wrote it, by which readers see whether that has ended.
#include "src/bootstrap/id_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "src/base/error.h"
#include "src/base/file_descriptor.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

// What the file holds.
struct Content {
  moecclUniqueId id;
  char writer[256];  // a process, as writerOf() has it
};

[[noreturn]] void invalid(const std::string& path, const std::string& what) {
  throw Error(moecclInvalidArgument, "MOECCL_ID_FILE " + path + what);
}

[[noreturn]] void fail(const char* what, const std::string& path, int error) {
  throw Error(moecclSystemError,
              stringf("cannot %s MOECCL_ID_FILE %s: %s", what, path.c_str(), std::strerror(error)));
}

std::string linkAt(const char* path) {
  char target[PATH_MAX];
  const ssize_t size = ::readlink(path, target, sizeof target);
  return size > 0 ? std::string(target, static_cast<std::size_t>(size)) : "";
}

// What tells the processes of this kernel and this namespace of their numbers from all others.
std::string machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const std::string space = linkAt("/proc/self/ns/pid");
  // /proc may be that of another namespace.
  if (boot.empty() || space.empty() || linkAt("/proc/self") != std::to_string(::getpid()))
    return "";
  return boot + " " + space + " ";
}

// "MACHINE NUMBER BEGIN": no other process is the same. "" where it has ended, or the system does
// not tell.
std::string writerOf(pid_t pid) {
  const std::string here = machine();
  std::ostringstream stat;
  stat << std::ifstream("/proc/" + std::to_string(pid) + "/stat").rdbuf();
  // The process's own name, in brackets, may hold anything. The state follows, and the time of its
  // begin is the 20th field behind.
  const std::string text = stat.str();
  const std::size_t name = text.rfind(')');
  if (here.empty() || name == text.npos) return "";
  std::istringstream fields(text.substr(name + 1));
  std::string field, state;
  fields >> state;
  for (int i = 0; i < 19; ++i) fields >> field;
  if (!fields || state == "Z") return "";
  return here + std::to_string(pid) + " " + field;
}

// Whether the process that has written the file is known to have ended: it was one of this
// machine's.
bool isLeft(const Content& content) {
  const std::string here = machine();
  if (here.empty() || std::memchr(content.writer, '\0', sizeof content.writer) == nullptr ||
      std::strncmp(content.writer, here.c_str(), here.size()) != 0)
    return false;
  return writerOf(std::atoi(content.writer + here.size())) != content.writer;
}

// A new file beside `path` with the content, whose name is returned.
std::string draft(const std::string& path, const Content& content) {
  std::string name = path + ".XXXXXX";
  // O_EXCL, so through no link; for its user alone.
  FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) fail("write", path, errno);
  errno = EIO;
  if (::write(file.get(), &content, sizeof content) == static_cast<ssize_t>(sizeof content))
    return name;
  const int error = errno;
  ::unlink(name.c_str());
  fail("write", path, error);
}

// Has the draft appear at `path`.
void place(const std::string& name, const std::string& path) {
  constexpr int kTries = 3;
  for (int tries = 0; tries < kTries; ++tries) {
    if (::link(name.c_str(), path.c_str()) == 0) return;
    if (errno != EEXIST) fail("create", path, errno);
    const FoundId old = readIdFile(path);
    if (old.id) break;
    if (old.left) ::unlink(path.c_str());
  }
  invalid(path, " is there already; each run needs a new one. Remove it if its run has ended");
}

}  // namespace

IdFile::IdFile(const std::string& path, const moecclUniqueId& id) : path_(path) {
  Content content{id, {}};
  const std::string writer = writerOf(::getpid());
  if (writer.size() < sizeof content.writer) std::ranges::copy(writer, content.writer);
  const std::string name = draft(path, content);
  try {
    place(name, path);
  } catch (...) {
    ::unlink(name.c_str());
    throw;
  }
  ::unlink(name.c_str());
}

IdFile::~IdFile() { ::unlink(path_.c_str()); }

FoundId readIdFile(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  const int error = errno;
  if (!file && error == ENOENT) return {};
  struct stat about {};
  if (file ? ::fstat(file.get(), &about) != 0 : ::lstat(path.c_str(), &about) != 0)
    fail("read", path, error);
  if (!S_ISREG(about.st_mode)) invalid(path, " is no regular file; name a new one");
  if (about.st_uid != ::geteuid())
    invalid(path, stringf(" belongs to user %u, and this rank to user %u; all ranks must be of one "
                          "user",
                          about.st_uid, ::geteuid()));
  if (!file) fail("read", path, error);
  Content content;
  if (::read(file.get(), &content, sizeof content) != static_cast<ssize_t>(sizeof content))
    invalid(path, " holds no unique id; each run needs a new one");
  if (isLeft(content)) return {{}, true};
  return {content.id, false};
}

}  // namespace moeccl
