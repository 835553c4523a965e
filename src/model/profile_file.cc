// Reads and writes the file of a profile. A new one is written beside the old one and renamed over
// it, so that nobody reads half of it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/model/profile.h"

namespace moeccl {
namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

[[noreturn]] void fail(const char* what, const std::string& path) {
  const int error = errno;
  throw Error(moecclSystemError,
              stringf("cannot %s the profile %s: %s", what, path.c_str(), std::strerror(error)));
}

// Only what parseProfile would take: sizes are known before anything is read, and files may grow.
std::string readAll(std::FILE* file, const std::string& path) {
  struct stat status;
  if (::fstat(::fileno(file), &status) != 0) fail("read", path);
  if (!S_ISREG(status.st_mode))
    throw Error(moecclInvalidArgument, "the profile " + path + " is no regular file");
  if (status.st_size > static_cast<off_t>(kMaxProfileBytes))
    throw Error(moecclInvalidArgument,
                stringf("the profile %s: there are %lld bytes; at most %zu are allowed",
                        path.c_str(), static_cast<long long>(status.st_size), kMaxProfileBytes));
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  if (std::ferror(file)) fail("read", path);
  return text;
}

File opened(int fd, const char* mode) {
  File file(fd < 0 ? nullptr : ::fdopen(fd, mode));
  if (!file && fd >= 0) ::close(fd);
  return file;
}

// A file beside `path` until keep() puts it in its place.
class Replacement {
 public:
  explicit Replacement(const std::string& path) : path_(path) {
    // Files of that name may be there: of other threads that write the same profile, and of
    // processes that ended before they were done.
    static std::atomic<unsigned> number{0};
    do {
      temporary_ = stringf("%s.%ld.%u.new", path.c_str(), static_cast<long>(::getpid()), number++);
      const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
      file_ = opened(::open(temporary_.c_str(), flags, 0666), "w");
    } while (!file_ && errno == EEXIST);
    if (!file_) fail("write", path_);
  }
  ~Replacement() {
    if (!kept_) ::unlink(temporary_.c_str());
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  void write(const std::string& text) {
    if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() ||
        std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0)
      fail("write", path_);
  }
  void keep() {
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("write", path_);
    kept_ = true;
  }

 private:
  const std::string path_;
  std::string temporary_;
  File file_;
  bool kept_ = false;
};

}  // namespace

Profile loadProfile(const std::string& path) {
  // Opening must not block: a pipe without a writer would wait for one.
  const File file = opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), "r");
  if (!file) fail("read", path);
  const std::string text = readAll(file.get(), path);
  try {
    return parseProfile(text);
  } catch (const Error& error) {
    throw Error(error.result(), "the profile " + path + ": " + error.what());
  }
}

void saveProfile(const Profile& profile, const std::string& path) {
  const std::string text = printProfile(profile);
  Replacement file(path);
  file.write(text);
  file.keep();
}

}  // namespace moeccl
