// Writes a graph as it is, or runs Graphviz's dot to make a picture of it.
#include "perf/plan/drawing.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "perf/common/output_file.h"

namespace moeccl::perf::plan {
namespace {

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::runtime_error(what + ": " + std::strerror(error));
}

struct Actions {
  Actions() { posix_spawn_file_actions_init(&it); }
  ~Actions() { posix_spawn_file_actions_destroy(&it); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;

  posix_spawn_file_actions_t it;
};

// Runs dot, whose graph comes from `graph`.
void runDot(const std::string& path, int graph) {
  Actions actions;
  posix_spawn_file_actions_adddup2(&actions.it, graph, STDIN_FILENO);
  std::string name = "dot", format = "-Tsvg", out = "-o" + path;
  char* const arguments[] = {name.data(), format.data(), out.data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawnp(&child, "dot", &actions.it, nullptr, arguments, environ);
  if (error == ENOENT)
    throw std::runtime_error(
        "--svg: there is no dot, which draws it; install it (apt-get install graphviz), or take "
        "--dot");
  if (error != 0) fail("--svg: cannot start dot", error);
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) fail("--svg: cannot wait for dot", errno);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error("--svg: dot could not write " + path);
}

}  // namespace

void writeDot(const std::string& path, const std::string& graph) {
  OutputFile("--dot", path).write(graph);
}

void writeSvg(const std::string& path, const std::string& graph) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  if (file == nullptr || std::fwrite(graph.data(), 1, graph.size(), file.get()) != graph.size() ||
      std::fflush(file.get()) != 0)
    fail("--svg: cannot keep the graph for dot", errno);
  std::rewind(file.get());
  runDot(path, fileno(file.get()));
}

}  // namespace moeccl::perf::plan
