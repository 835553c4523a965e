// --memory, of the tools with ranks.
#pragma once

#include <moeccl/moeccl.h>

#include <CLI/CLI.hpp>
#include <string>

namespace moeccl::perf {

// `name` begins with the default and becomes what memoryNamed() reads.
inline void addMemoryOption(CLI::App& app, std::string& name) {
  app.add_option("--memory", name,
                 "host, or cuda: buffers on a GPU for each rank, and collectives over NCCL")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
}
inline moecclMemory_t memoryNamed(const std::string& name) {
  return name == "cuda" ? moecclMemoryCuda : moecclMemoryHost;
}

}  // namespace moeccl::perf
