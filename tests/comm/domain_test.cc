// When a thread that waits calls what its caller gave it for that.
#include "src/comm/domain.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "src/watch/local_watch.h"

namespace moeccl {
namespace {

// Finds something at its first looks.
class Looks final : public Transport {
 public:
  Looks(int* looks, int finds) : looks_(looks), finds_(finds) {}
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
  std::string name() const override { return "looks"; }
  Address address() override { return {}; }
  void connect(std::span<const Address>) override {}
  void send(int, Tag, const void*, std::size_t, Transfer*) override {}
  void recv(int, Tag, void*, std::size_t, Transfer*) override {}
  void cancel(Transfer*) override {}
  bool unexpected(Tag, Tag, Tag*) override { return false; }
  bool progress() override { return ++*looks_ <= finds_; }
  void wait(int) override {}
  void wake() override {}
  void lose(int, const std::string&) override {}
  bool close(bool, int) override { return true; }
  std::string lastError() const override { return {}; }

 private:
  int* looks_;
  int finds_;
};

// How often it is called while a thread looks so often, and finds something so often.
int callsWhile(int looks, int finds) {
  int looked = 0, called = 0;
  Domain domain(
      std::make_unique<Looks>(&looked, finds), makeLocalWatch(Secret{}, 0, {"host"}), nullptr,
      false,
      {.function = [](void* context) { ++*static_cast<int*>(context); }, .context = &called});
  Domain::Lock lock(domain);
  domain.wait(lock, [&] { return looked >= looks; });
  return called;
}

TEST(Domain, CallsIdleAfterLooksInVainAlone) {
  EXPECT_EQ(callsWhile(100, 100), 0);
  EXPECT_EQ(callsWhile(100, 60), 40);
  EXPECT_EQ(callsWhile(1000, 0), 1000);
}

}  // namespace
}  // namespace moeccl
