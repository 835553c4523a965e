// Opens a file at once, so that a wrong path is known before anything is measured. Its old content
// goes when the new one is written.
#include "perf/common/output_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace moeccl::perf {

OutputFile::OutputFile(const char* option, std::string path)
    : option_(option), path_(std::move(path)) {
  if (path_.empty()) return;
  file_.open(path_, std::ios::app);
  if (!file_)
    throw std::runtime_error(std::string(option_) + ": cannot write " + path_ + ": " +
                             std::strerror(errno));
}

void OutputFile::write(std::string_view text) {
  if (path_.empty()) return;
  std::error_code error;
  if (std::filesystem::is_regular_file(path_, error)) std::filesystem::resize_file(path_, 0, error);
  file_ << text;
  if (error || !file_.flush())
    throw std::runtime_error(std::string(option_) + ": cannot write all of " + path_);
}

}  // namespace moeccl::perf
