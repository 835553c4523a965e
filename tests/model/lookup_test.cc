// Looking something up in a profile allocates nothing: operator new of this program counts.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "src/model/profile.h"
#include "tests/model/profile_sample.h"

namespace {
long allocations = 0;
}

void* operator new(std::size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace moeccl {
namespace {

TEST(ProfileLookup, AllocatesNothing) {
  Profile profile = sampleProfile();
  const std::string collective = "a collective whose name takes memory of its own";
  const std::string where = "a group whose name takes memory of its own as well";
  profile.add({collective, "an algorithm with many parameters", where}, lineOf(1e-5, 1e-9));
  const LocalWork work{256, 128, 512, 8, 2, 300, 8};
  double sum = 0;
  const long before = allocations;
  sum += profile.find(collective, "an algorithm with many parameters", where)->seconds(1e6);
  for (const Curve& curve : profile.curves(collective, where)) sum += curve.fit.at(1e3);
  sum += profile.local(Pass::backward)->fit.at(featuresOf(work));
  EXPECT_EQ(allocations, before);
  EXPECT_GT(sum, 0);
  EXPECT_GT(before, 0);
}

}  // namespace
}  // namespace moeccl
