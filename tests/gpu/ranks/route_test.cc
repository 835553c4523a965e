// Token routes in both of their modes against plain loops, to the last bit.
#include <string>
#include <vector>

#include "tests/api/results.h"
#include "tests/api/route_world.h"
#include "tests/gpu/ranks/rank.h"

namespace moeccl::gpu {
namespace {

using test::Case;

class RankMemory final : public test::Memory {
 public:
  explicit RankMemory(test::Device& device) : device_(device) {}
  void* allocate(std::size_t bytes) override { return device_.allocate(bytes); }
  void free(void* memory) noexcept override { device_.free(static_cast<unsigned char*>(memory)); }
  void put(void* to, const void* from, std::size_t bytes, moecclStream_t stream) override {
    device_.synchronize(stream);
    device_.put(static_cast<unsigned char*>(to), from, bytes);
  }
  void get(void* to, const void* from, std::size_t bytes, moecclStream_t stream) override {
    device_.synchronize(stream);
    if (bytes > 0) device_.get(to, static_cast<const unsigned char*>(from), bytes);
  }

 private:
  test::Device& device_;
};

// Where the ranks are, which are numbered node by node.
std::vector<int> nodesOf(const Rank& rank) {
  std::vector<int> sizes;
  for (int each = 0, last = -1; each < rank.ranks(); ++each) {
    int node = 0;
    test::check(moecclCommNodeOfRank(rank.comm(), each, &node), rank.comm());
    if (node != last) sizes.push_back(0);
    ++sizes.back();
    last = node;
  }
  return sizes;
}

void route(Rank& rank, const Case& given) {
  for (const char* algorithm : {"node", "rank", "flat"}) {
    Case c = given;
    c.nodes = nodesOf(rank);
    if (rank.quick()) {
      c.tokens /= 3;
      if (!c.narrow()) c.hidden /= 3;
    }
    c.algorithm = algorithm;
    if (c.ranks() % c.esp != 0) continue;
    c.experts = 2 * c.ranks() / c.esp + 1;
    const test::World world(c);
    Case fewer = c;
    fewer.tokens = c.tokens / 2;
    const test::World then(fewer);
    rank.step(test::textOf(c), [&] {
      const test::Grid grid(rank.comm(), world);
      const test::Route made(grid.it, c);
      RankMemory memory(rank.device());
      for (const test::World* it : {&world, &then, &world})
        test::exercise(*it, rank.comm(), made.it, rank.rank(), memory,
                       c.esp == 1 ? rank.stream() : nullptr);
    });
  }
}

Case caseOf(moecclDataType_t datatype, moecclDataType_t combined) {
  Case c;
  c.choices = 4;
  c.datatype = datatype;
  c.combined = combined;
  c.tokens = 21;
  c.hidden = 384;
  return c;
}

RANKS_TEST(routesOfTokens) {
  route(rank, caseOf(moecclFloat32, moecclFloat32));
  route(rank, caseOf(moecclBfloat16, moecclBfloat16));
  route(rank, caseOf(moecclFloat8e4m3, moecclFloat16));
  Case c = caseOf(moecclFloat16, moecclFloat32);
  c.esp = 2;
  c.style = test::Style::repeated;
  c.hidden = 37;
  route(rank, c);
}

RANKS_TEST(routesOfTokensInLatencyMode) {
  Case c = caseOf(moecclBfloat16, moecclBfloat16);
  c.latency = true;
  c.maxTokens = 32;
  c.buckets = {12, 24};
  route(rank, c);
  c.datatype = moecclFloat8e5m2;
  c.combined = moecclFloat32;
  c.esp = 2;
  route(rank, c);
}

}  // namespace
}  // namespace moeccl::gpu
