// A file that a tool was asked to write.
#pragma once

#include <fstream>
#include <string>
#include <string_view>

namespace moeccl::perf {

class OutputFile {
 public:
  // Opens it, so that a wrong name is found before anything is measured; what is there stays until
  // write(). `option` names it in errors; "" as path: there is none to write. Throws
  // std::runtime_error.
  OutputFile(const char* option, std::string path);

  // Replaces what is there. Throws std::runtime_error.
  void write(std::string_view text);

 private:
  const char* option_;
  std::string path_;
  std::ofstream file_;
};

}  // namespace moeccl::perf
