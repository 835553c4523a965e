// Routings and what must come of them, in the plainest way: what tests of routes on hosts and
// on GPUs hold them against, to the last bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kernels/reduce.h"
#include "moeccl/route.h"
#include "tests/api/ranks.h"

namespace moeccl::test {

using Bytes = std::vector<unsigned char>;

enum class Style { random, uneven, hot, none, repeated };
inline constexpr const char* kStyles[] = {"random", "uneven", "hot", "none", "repeated"};

struct Backend {
  const char* name;
  bool processes, ucx;
};
inline constexpr Backend kLoopback = {"loopback", false, false};

struct Case {
  const Backend* backend = &kLoopback;
  std::vector<int> nodes = {1};
  int esp = 1;
  moecclGridOrder_t order = moecclOrderEspEp;
  int experts = 4, choices = 2;
  moecclDataType_t datatype = moecclFloat32, combined = moecclFloat32;
  moecclRouteWeights_t weights = moecclRouteWeightsCombine;
  const char* algorithm = "";
  Style style = Style::random;
  bool stream = false;
  int64_t maxTokens = 0;
  bool latency = false;
  std::vector<int64_t> buckets = {};
  int tokens = 6;
  int64_t hidden = 5;
  int64_t maxRows = 0, alignment = 0;
  moecclDataType_t wire = static_cast<moecclDataType_t>(0);

  int ranks() const { return std::accumulate(nodes.begin(), nodes.end(), 0); }
  bool hasWeights() const { return weights != moecclRouteWeightsNone; }
  bool weighs() const { return weights == moecclRouteWeightsCombine; }
  bool narrow() const { return sizeOf(datatype) == 1; }
  size_t rowBytes() const {
    return static_cast<size_t>(hidden) * sizeOf(datatype) +
           (narrow() ? static_cast<size_t>(hidden) / 128 * 4 : 0);
  }
  size_t combinedBytes() const { return static_cast<size_t>(hidden) * sizeOf(combined); }
};

std::string textOf(const Case& c);
void PrintTo(const Case& c, std::ostream* out);

// All pairs of algorithms, payloads, numbers of choices, placements, grids and modes.
std::vector<Case> productCases(std::span<const Backend> backends, bool onGpus);
inline const auto nameOfRoute = [](const auto& info) {
  return std::string(info.param.backend->name) + "_" + std::to_string(info.index);
};

float rounded(float value, moecclDataType_t type);
void put(Bytes& bytes, size_t index, float value, moecclDataType_t type);

// What everybody chose, as all ranks know it, and where it must go, in the plainest way.
struct World {
  struct Choice {
    int source, token, choice;
  };

  explicit World(const Case& it);

  int tokens(int rank) const { return static_cast<int>(experts[rank].size()) / c.choices; }
  int positionOf(int rank) const { return c.order == moecclOrderEspEp ? rank / c.esp : rank % ep; }
  int shardOf(int rank) const { return c.order == moecclOrderEspEp ? rank % c.esp : rank / ep; }
  int rankOf(int position, int shard) const {
    return c.order == moecclOrderEspEp ? position * c.esp + shard : shard * ep + position;
  }
  // The first experts % ep positions hold one more.
  int firstExpert(int position) const;
  int holderOf(int expert) const;
  // By local expert of a rank.
  std::vector<std::vector<Choice>> rowsOf(int rank) const;
  // Weights of choices [tokens][k].
  std::vector<float> weights(int rank) const;
  // Exact in every type, and products with others are.
  float weight(const Choice& at) const;
  // Choices of a rank that have no room.
  int64_t dropped(int rank) const;

  const Case& c;
  const int ep;
  std::vector<std::vector<int32_t>> chosen;   // by rank
  std::vector<std::vector<int32_t>> experts;  // -1 where there is no room
  std::vector<int> node;                      // by rank

 private:
  void drop();
};

// What each gets of some room: one unit after another, while there are any, to each that wants
// more.
std::vector<int64_t> handOut(const std::vector<int64_t>& wants, int64_t room, int64_t unit);

// -3..3
float small(int a, int b, int64_t element);

struct Route {
  Route(moecclGrid_t grid, const Case& c, bool byToken = false) {
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.experts = c.experts;
    config.topK = c.choices;
    config.weights = c.weights;
    config.datatype = c.combined;
    config.tokenDatatype = c.datatype;
    config.hidden = c.hidden;
    config.maxTokens = c.maxTokens;
    config.mode = c.latency ? "latency" : nullptr;
    config.algorithm = c.algorithm;
    config.buckets = c.buckets.data();
    config.numBuckets = static_cast<int64_t>(c.buckets.size());
    config.maxRows = c.maxRows;
    config.alignment = c.alignment;
    config.wire = c.wire;
    config.rowsByToken = byToken ? 1 : 0;
    check(moecclRouteCreate(grid, &config, &it));
  }
  ~Route() { moecclRouteDestroy(it); }
  moecclRoute_t it = nullptr;
};

// moecclRouteBegin, with a routing of these.
moecclResult_t begin(moecclRoute_t route, int64_t tokens, const int32_t* experts,
                     const float* weights, moecclStream_t stream, moecclRoutePass_t* pass);

struct Pass {
  Pass(moecclComm_t comm, moecclRoute_t route, int64_t tokens, const int32_t* experts,
       const float* weights, moecclStream_t stream)
      : comm(comm) {
    check(begin(route, tokens, experts, weights, stream, &it), comm);
  }
  ~Pass() { moecclPassEnd(it); }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  moecclRows_t rows() const {
    moecclRows_t rows = MOECCL_ROWS_INITIALIZER;
    check(moecclPassGetRows(it, &rows), comm);
    return rows;
  }
  moecclComm_t comm;
  moecclRoutePass_t it = nullptr;
};
// The most rows of a route in latency mode.
int64_t maxRowsOf(moecclRoute_t route);

struct Grid {
  Grid(moecclComm_t comm, const World& world) {
    check(moecclGridCreate(comm, {1, world.ep, world.c.esp, world.c.order}, &it), comm);
  }
  ~Grid() { moecclGridDestroy(it); }
  moecclGrid_t it = nullptr;
};

Job jobOf(const Case& c);

// Where a rank's buffers are.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* memory) noexcept = 0;
  // Behind what the stream has; `from` stays.
  virtual void put(void* to, const void* from, size_t bytes, moecclStream_t stream) = 0;
  // When the stream has come so far.
  virtual void get(void* to, const void* from, size_t bytes, moecclStream_t stream) = 0;
};

class HostMemory final : public Memory {
 public:
  void* allocate(size_t bytes) override { return ::operator new(bytes); }
  void free(void* memory) noexcept override { ::operator delete(memory); }
  void put(void* to, const void* from, size_t bytes, moecclStream_t stream) override;
  void get(void* to, const void* from, size_t bytes, moecclStream_t stream) override;
};

// A buffer, and what it is filled with.
class Buffer {
 public:
  Buffer(Memory& memory, moecclStream_t stream, Bytes content);
  template <typename T>
  Buffer(Memory& memory, moecclStream_t stream, const std::vector<T>& content)
      : Buffer(memory, stream, bytesOf(content)) {}
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <typename T = void>
  T* at() const {
    return static_cast<T*>(at_);
  }
  Bytes get() const;

 private:
  template <typename T>
  static Bytes bytesOf(const std::vector<T>& content) {
    const auto* const begin = reinterpret_cast<const unsigned char*>(content.data());
    return {begin, begin + content.size() * sizeof(T)};
  }

  Memory& memory_;
  const moecclStream_t stream_;
  const Bytes content_;
  void* at_ = nullptr;
};

// One rank's part of everything that a route does; a row that goes elsewhere, or a sum in another
// order, throws.
void exercise(const World& world, moecclComm_t comm, moecclRoute_t route, int rank, Memory& memory,
              moecclStream_t stream);

}  // namespace moeccl::test
