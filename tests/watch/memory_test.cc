// Where memory is short, the thread that watches waits for it: nothing is forgotten, and the
// process goes on.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "src/watch/mesh_watch.h"
#include "tests/bootstrap/support.h"
#include "tests/sanitized.h"

namespace {

std::atomic<int> refusals = 0;  // of memory that the thread asks for

bool refused() {
  if (refusals.load(std::memory_order_relaxed) <= 0) return false;
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return std::string_view(name) == "moeccl-watch" && refusals-- > 0;
}

}  // namespace

// Sanitizers bring operators of their own.
#ifndef MOECCL_SANITIZED
void* operator new(std::size_t bytes) {
  if (void* memory = refused() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace moeccl::test {
namespace {

TEST(WatchMemory, ALossIsToldOnceThereIsMemory) {
#ifdef MOECCL_SANITIZED
  GTEST_SKIP() << "sanitizers replace operator new";
#endif
  constexpr int kRefusals = 20;
  const Topology topology(std::vector<int>{0, 0});
  MeshOptions options;
  options.secret = {};
  options.hosts = {"host0", "host0"};
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
  Mesh mesh;
  mesh.processes.resize(2);
  mesh.links.push_back({1, Socket(pair[0])});
  const auto watch = makeMeshWatch(0, topology, options, std::move(mesh));
  refusals = kRefusals;
  { const Socket end(pair[1]); }  // the peer's
  Loss loss;
  ASSERT_TRUE(eventually([&] {
    for (Watch::News news; watch->next(&news);)
      if (const auto* found = std::get_if<Loss>(&news)) {
        loss = *found;
        return true;
      }
    return false;
  }));
  EXPECT_LE(refusals, 0);
  EXPECT_EQ(loss.rank, 1);
  EXPECT_NE(loss.why.find("has ended"), std::string::npos) << loss.why;
  EXPECT_EQ(watch->losses().size(), 1u);
}

}  // namespace
}  // namespace moeccl::test
