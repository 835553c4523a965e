// Stands in for all that layers ask of CUDA beside collectives: what kernels/*_cuda.* declare, on
// the double of the rank that is this thread. Kernels are the CPU's, run when the double comes to
// them, with what they touch for it to check. What is read on the host is read when they are
// launched.
#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/blas_cuda.h"
#include "kernels/copy.h"
#include "kernels/expert.h"
#include "kernels/gates/gate_cuda.h"
#include "kernels/latency_rows.h"
#include "kernels/narrow.h"
#include "kernels/permute.h"
#include "kernels/quantise.h"
#include "kernels/reduce.h"
#include "kernels/runtime_cuda.h"
#include "src/base/error.h"
#include "tests/exec/gpu_ranks.h"

namespace moeccl::cuda {
namespace {

using test::GpuWorld;
using test::myGpu;

using Ranges = std::vector<GpuWorld::Range>;

template <typename T>
GpuWorld::Range reads(const T* at, std::int64_t count) {
  return {at, at == nullptr ? 0 : static_cast<std::size_t>(count) * sizeof(T), false};
}
template <typename T>
GpuWorld::Range writes(T* at, std::int64_t count) {
  return {at, at == nullptr ? 0 : static_cast<std::size_t>(count) * sizeof(T), true};
}
Ranges operator+(Ranges a, const Ranges& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Whatever a workspace held is lost; and it has to be as large as was asked for.
void spoil(std::span<std::byte> workspace) { std::ranges::fill(workspace, std::byte{0xc3}); }
void requireRoom(std::span<std::byte> workspace, std::size_t bytes) {
  if (workspace.size() < bytes)
    throw Error(moecclInternalError, "the double misses room in a workspace");
}

// Calls function(Real{}) for elements of the datatype.
template <typename Function>
void withReal(moecclDataType_t datatype, Function function) {
  if (datatype == moecclFloat32)
    function(float{});
  else if (datatype == moecclFloat16)
    function(NarrowFloat16{});
  else if (datatype == moecclBfloat16)
    function(NarrowBfloat16{});
  else
    throw Error(moecclInternalError, "the double has no kernels for this datatype");
}

template <typename Real>
const Real* as(const void* at) {
  return static_cast<const Real*>(at);
}
template <typename Real>
Real* as(void* at) {
  return static_cast<Real*>(at);
}

// `count` elements.
GpuWorld::Range readsOf(moecclDataType_t datatype, const void* at, std::int64_t count) {
  return reads(static_cast<const std::byte*>(at),
               count * static_cast<std::int64_t>(sizeOf(datatype)));
}
GpuWorld::Range writesOf(moecclDataType_t datatype, void* at, std::int64_t count) {
  return writes(static_cast<std::byte*>(at), count * static_cast<std::int64_t>(sizeOf(datatype)));
}

Ranges readsOf(const Choices<float>& choices) {
  const std::int64_t count = choices.tokens * choices.choices;
  return {reads(choices.experts, count), reads(choices.slots, count),
          reads(choices.weights, count)};
}

// The places that choices have, from the first to the last.
GpuWorld::Range placesOf(const Choices<float>& choices, std::int64_t expertStride, const void* rows,
                         std::size_t rowBytes, bool write) {
  std::int64_t first = 0, behind = 0;
  for (std::int64_t at = 0; at < choices.tokens * choices.choices; ++at) {
    if (choices.slots[at] < 0) continue;
    const std::int64_t row = choices.experts[at] * expertStride + choices.slots[at];
    first = behind == 0 ? row : std::min(first, row);
    behind = std::max(behind, row + 1);
  }
  return {static_cast<const std::byte*>(rows) + static_cast<std::size_t>(first) * rowBytes,
          static_cast<std::size_t>(behind - first) * rowBytes, write};
}

// The row of each choice [tokens][choices], -1: none of these.
std::vector<std::int64_t> rowsOfChoices(const Choices<float>& choices, const ListedRows& listed) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(choices.tokens * choices.choices), -1);
  for (std::size_t at = 0; at < rows.size(); ++at) {
    const std::int64_t row = listed.positions[at] - listed.begin;
    if (row >= 0 && row < listed.count) rows[at] = row;
  }
  return rows;
}

}  // namespace

// ---- kernels/runtime_cuda.h ----

std::byte* allocate(std::size_t bytes) { return myGpu().allocate(std::max<std::size_t>(bytes, 1)); }
void free(void* memory) noexcept { myGpu().free(static_cast<std::byte*>(memory)); }
std::byte* allocatePinned(std::size_t bytes) { return myGpu().allocatePinned(bytes); }
void freePinned(void* memory) noexcept { myGpu().freePinned(static_cast<std::byte*>(memory)); }

void* newStream(bool urgent) { return myGpu().newStream(urgent); }
void deleteStream(void* stream) noexcept { myGpu().deleteStream(stream); }
void synchronize(void* stream) { myGpu().synchronize(stream); }
bool isCaptured(void* stream) { return myGpu().capture(stream) != 0; }

int exchangeDevice(int device) {
  const int before = myGpu().device();
  myGpu().setDevice(device);
  return before;
}
void* newEvent() { return myGpu().newEvent(); }
void deleteEvent(void* event) noexcept { myGpu().deleteEvent(event); }
void record(void* event, void* stream) { myGpu().record(event, stream); }
void wait(void* stream, void* event) { myGpu().wait(stream, event); }
bool complete(void* event) { return myGpu().complete(event); }
void await(void* event) { myGpu().await(event); }

void clear(void* to, std::size_t bytes, void* stream) {
  auto* const begin = static_cast<std::byte*>(to);
  myGpu().kernel(
      "clearing memory",
      [=] {
        return Ranges{{begin, bytes, true}};
      },
      [=] { std::fill_n(begin, bytes, std::byte{0}); }, stream);
}
void toDevice(void* to, const void* from, std::size_t bytes, void* stream) {
  // From pageable memory, which may be used again on return.
  const auto* const begin = static_cast<const std::byte*>(from);
  const auto staged = std::make_shared<const std::vector<std::byte>>(begin, begin + bytes);
  auto* const target = static_cast<std::byte*>(to);
  myGpu().kernel(
      "a copy to the device",
      [=] {
        return Ranges{{target, bytes, true}, {from, 0, false, true}};
      },
      [=] { std::ranges::copy(*staged, target); }, stream);
}
void toHost(void* to, const void* from, std::size_t bytes, void* stream) {
  myGpu().toHost(to, static_cast<const std::byte*>(from), bytes, stream);
}

// ---- kernels/copy.h, kernels/reduce.h ----

void copyBlocks(std::span<const BlockCopy> copies, void* stream) {
  myGpu().copyBlocks(copies, stream);
}

void reduce(moecclRedOp_t op, moecclDataType_t datatype, std::byte* dst,
            const std::byte* const* sources, std::size_t stride, std::size_t count,
            std::size_t bytes, void* stream) {
  if (count > kMaxTerms) throw Error(moecclInternalError, "the double adds no more terms");
  myGpu().reduce(op, datatype, dst, sources, stride, count, bytes, stream);
}

void divide(moecclDataType_t datatype, std::byte* data, std::size_t bytes, std::int64_t divisor,
            void* stream) {
  myGpu().divide(datatype, data, bytes, divisor, stream);
}

// ---- what token routes ask for ----

void copyRows(const RowMatrices& matrices, const RowCopies& copies, void* stream) {
  myGpu().copyRows(matrices, copies, stream);
}

void addRows(moecclDataType_t datatype, const RowMatrices& matrices, const RowSums& sums,
             const RowWeights& weights, void* stream) {
  myGpu().addRows(datatype, matrices, sums, weights, stream);
}

void weighGradients(const WeighedRows& rows, float* ofWeights, void* stream) {
  myGpu().weighGradients(rows, ofWeights, stream);
}

void runLatency(LatencyStep step, const LatencyRows& rows, void* stream) {
  myGpu().runLatency(step, rows, stream);
}

void quantise(moecclDataType_t to, moecclDataType_t from, const std::byte* rows,
              std::size_t rowCount, std::size_t elements, std::byte* quantised, void* stream) {
  myGpu().quantise(to, from, rows, rowCount, elements, quantised, stream);
}

void dequantise(moecclDataType_t from, moecclDataType_t to, const std::byte* quantised,
                std::size_t rowCount, std::size_t elements, std::byte* rows, void* stream) {
  myGpu().dequantise(from, to, quantised, rowCount, elements, rows, stream);
}

// ---- kernels/blas_cuda.h: kernels that would multiply do it themselves ----

struct Blas::Groups {};
Blas::Blas(std::span<std::byte> workspace) : workspace_(workspace) {}
Blas::~Blas() = default;

// ---- kernels/expert.h ----

namespace {

// What of a stack is expert e's.
template <typename Part, typename Real, typename Stack>
Part partOf(const ExpertShape& shape, const Stack& all, std::int64_t e) {
  const std::int64_t matrix = shape.embedding * shape.hidden;
  const auto of = [&](auto* stacked, std::int64_t size) {
    return stacked == nullptr ? nullptr : as<Real>(stacked) + e * size;
  };
  return {of(all.w1, matrix), of(all.b1, shape.hidden), of(all.w2, matrix),
          of(all.b2, shape.embedding)};
}

Ranges readsOf(const ExpertShape& shape, const StackedWeights& all) {
  const std::int64_t matrix = shape.experts * shape.embedding * shape.hidden;
  const moecclDataType_t type = shape.datatype;
  return {readsOf(type, all.w1, matrix), readsOf(type, all.b1, shape.experts * shape.hidden),
          readsOf(type, all.w2, matrix), readsOf(type, all.b2, shape.experts * shape.embedding)};
}
Ranges writesOf(const ExpertShape& shape, const StackedGradients& all) {
  const std::int64_t matrix = shape.experts * shape.embedding * shape.hidden;
  const moecclDataType_t type = shape.datatype;
  return {writesOf(type, all.w1, matrix), writesOf(type, all.b1, shape.experts * shape.hidden),
          writesOf(type, all.w2, matrix), writesOf(type, all.b2, shape.experts * shape.embedding)};
}

void requireBegins(const ExpertShape& shape, std::span<const std::int64_t> begins) {
  if (std::ssize(begins) != shape.experts + 1)
    throw Error(moecclInternalError, "the double is given other begins than experts");
}

// What the CPU's experts need.
template <typename Real>
std::vector<float> roomOf(const ExpertShape& shape) {
  return std::vector<float>(static_cast<std::size_t>(
      kIsNarrow<Real> ? narrowExpertWorkspace(shape.embedding, shape.hidden, shape.hidden)
                      : moeccl::expertBackwardWorkspace(shape.hidden)));
}

}  // namespace

std::size_t expertWorkspace(const ExpertShape& shape, std::int64_t rows) {
  return static_cast<std::size_t>(rows * shape.hidden) * sizeOf(shape.datatype);
}
std::size_t expertBackwardWorkspace(const ExpertShape& shape, std::int64_t rows) {
  return 2 * expertWorkspace(shape, rows);
}

void expertForward(const ExpertShape& shape, const StackedWeights& weights, const void* input,
                   std::span<const std::int64_t> begins, Blas&, std::span<std::byte> workspace,
                   void* output, void* stream) {
  requireBegins(shape, begins);
  requireRoom(workspace, expertWorkspace(shape, begins.back()));
  const std::vector<std::int64_t> rows(begins.begin(), begins.end());
  const std::int64_t first = rows.front() * shape.embedding;
  const std::int64_t count = (rows.back() - rows.front()) * shape.embedding;
  withReal(shape.datatype, [&]<typename Real>(Real) {
    myGpu().kernel(
        "experts",
        [=] {
          return readsOf(shape, weights) + Ranges{reads(as<Real>(input) + first, count),
                                                  writes(as<Real>(output) + first, count),
                                                  writes(workspace.data(), std::ssize(workspace))};
        },
        [=] {
          std::vector<float> room = roomOf<Real>(shape);
          for (std::int64_t e = 0; e < shape.experts; ++e) {
            const std::int64_t at = rows[e] * shape.embedding;
            moeccl::expertForward<Real>(shape.activation,
                                        partOf<ExpertWeights<Real>, Real>(shape, weights, e),
                                        shape.embedding, shape.hidden, as<Real>(input) + at,
                                        rows[e + 1] - rows[e], room, as<Real>(output) + at);
          }
          spoil(workspace);
        },
        stream);
  });
}

void expertBackward(const ExpertShape& shape, const StackedWeights& weights, const void* input,
                    const void* outputGradient, std::span<const std::int64_t> begins, Blas&,
                    std::span<std::byte> workspace, const StackedGradients& gradients,
                    void* inputGradient, void* stream) {
  requireBegins(shape, begins);
  requireRoom(workspace, expertBackwardWorkspace(shape, begins.back()));
  const std::vector<std::int64_t> rows(begins.begin(), begins.end());
  const std::int64_t first = rows.front() * shape.embedding;
  const std::int64_t count = (rows.back() - rows.front()) * shape.embedding;
  withReal(shape.datatype, [&]<typename Real>(Real) {
    myGpu().kernel(
        "experts backward",
        [=] {
          return readsOf(shape, weights) + writesOf(shape, gradients) +
                 Ranges{reads(as<Real>(input) + first, count),
                        reads(as<Real>(outputGradient) + first, count),
                        writes(as<Real>(inputGradient) + first, count),
                        writes(workspace.data(), std::ssize(workspace))};
        },
        [=] {
          std::vector<float> room = roomOf<Real>(shape);
          for (std::int64_t e = 0; e < shape.experts; ++e) {
            const std::int64_t at = rows[e] * shape.embedding;
            moeccl::expertBackward<Real>(shape.activation,
                                         partOf<ExpertWeights<Real>, Real>(shape, weights, e),
                                         shape.embedding, shape.hidden, as<Real>(input) + at,
                                         as<Real>(outputGradient) + at, rows[e + 1] - rows[e], room,
                                         partOf<ExpertGradients<Real>, Real>(shape, gradients, e),
                                         as<Real>(inputGradient) + at);
          }
          spoil(workspace);
        },
        stream);
  });
}

// ---- kernels/narrow.h ----

void widen(moecclDataType_t datatype, const void* from, std::int64_t count, float* to,
           void* stream) {
  withReal(datatype, [&]<typename Real>(Real) {
    myGpu().kernel(
        "widening elements",
        [=] {
          return Ranges{reads(as<Real>(from), count), writes(to, count)};
        },
        [=] { moeccl::widen(as<Real>(from), count, to); }, stream);
  });
}

void addNarrowed(moecclDataType_t datatype, const float* from, std::int64_t count, void* to,
                 void* stream) {
  withReal(datatype, [&]<typename Real>(Real) {
    myGpu().kernel(
        "adding to narrow elements",
        [=] {
          return Ranges{reads(from, count), writes(as<Real>(to), count)};
        },
        [=] { moeccl::addNarrowed(from, count, as<Real>(to)); }, stream);
  });
}

// ---- kernels/permute.h ----

void scatterTokens(const Choices<float>& choices, const void* input, std::size_t tokenBytes,
                   std::int64_t expertStride, void* rows, void* stream) {
  const auto bytes = static_cast<std::int64_t>(tokenBytes);
  myGpu().kernel(
      "scattering tokens",
      [=] {
        return readsOf(choices) + Ranges{reads(as<std::byte>(input), choices.tokens * bytes),
                                         placesOf(choices, expertStride, rows, tokenBytes, true)};
      },
      [=] {
        moeccl::scatterTokens<NarrowBfloat16>(choices, as<NarrowBfloat16>(input), bytes / 2,
                                              expertStride, as<NarrowBfloat16>(rows));
      },
      stream);
}

void clearUnused(const std::int64_t* used, std::int64_t groups, std::int32_t experts,
                 std::int64_t groupSlots, std::size_t tokenBytes, std::int64_t expertStride,
                 void* rows, void* stream) {
  const auto bytes = static_cast<std::int64_t>(tokenBytes);
  myGpu().kernel(
      "clearing places",
      [=] {
        Ranges ranges{reads(used, groups * experts)};
        for (std::int64_t group = 0; group < groups; ++group)
          for (std::int64_t e = 0; e < experts; ++e) {
            const std::int64_t taken = used[group * experts + e];
            ranges.push_back(writes(
                as<std::byte>(rows) + (e * expertStride + group * groupSlots + taken) * bytes,
                (groupSlots - taken) * bytes));
          }
        return ranges;
      },
      [=] {
        moeccl::clearUnused<NarrowBfloat16>(used, groups, experts, groupSlots, bytes / 2,
                                            expertStride, as<NarrowBfloat16>(rows));
      },
      stream);
}

void combineTokens(moecclDataType_t datatype, const Choices<float>& choices, const void* rows,
                   std::int64_t embedding, std::int64_t expertStride, void* output, void* stream) {
  const std::size_t rowBytes = static_cast<std::size_t>(embedding) * sizeOf(datatype);
  withReal(datatype, [&]<typename Real>(Real) {
    myGpu().kernel(
        "combining tokens",
        [=] {
          return readsOf(choices) + Ranges{placesOf(choices, expertStride, rows, rowBytes, false),
                                           writes(as<Real>(output), choices.tokens * embedding)};
        },
        [=] {
          moeccl::combineTokens<Real>(choices, as<Real>(rows), embedding, expertStride,
                                      as<Real>(output));
        },
        stream);
  });
}

void scatterTokensBackward(moecclDataType_t datatype, const Choices<float>& choices,
                           const void* rowGradients, std::int64_t embedding,
                           std::int64_t expertStride, void* inputGradient, void* stream) {
  const std::size_t rowBytes = static_cast<std::size_t>(embedding) * sizeOf(datatype);
  withReal(datatype, [&]<typename Real>(Real) {
    myGpu().kernel(
        "gathering gradients of tokens",
        [=] {
          return readsOf(choices) +
                 Ranges{placesOf(choices, expertStride, rowGradients, rowBytes, false),
                        writes(as<Real>(inputGradient), choices.tokens * embedding)};
        },
        [=] {
          moeccl::scatterTokensBackward<Real>(choices, as<Real>(rowGradients), embedding,
                                              expertStride, as<Real>(inputGradient));
        },
        stream);
  });
}

void combineTokensBackward(moecclDataType_t datatype, const Choices<float>& choices,
                           const void* rows, const void* outputGradient, std::int64_t embedding,
                           std::int64_t expertStride, void* rowGradients, void* weightGradients,
                           void* stream) {
  const std::size_t rowBytes = static_cast<std::size_t>(embedding) * sizeOf(datatype);
  withReal(datatype, [&]<typename Real>(Real) {
    myGpu().kernel(
        "scattering gradients of tokens",
        [=] {
          return readsOf(choices) +
                 Ranges{placesOf(choices, expertStride, rows, rowBytes, false),
                        reads(as<Real>(outputGradient), choices.tokens * embedding),
                        placesOf(choices, expertStride, rowGradients, rowBytes, true),
                        writes(as<Real>(weightGradients), choices.tokens * choices.choices)};
        },
        [=] {
          moeccl::combineTokensBackward<Real>(choices, as<Real>(rows), as<Real>(outputGradient),
                                              embedding, expertStride, as<Real>(rowGradients),
                                              as<Real>(weightGradients));
        },
        stream);
  });
}

std::size_t listByExpertWorkspace(std::int64_t choices, std::int64_t groups, std::int32_t experts) {
  return static_cast<std::size_t>(choices + groups * experts) * 8;
}

void listByExpert(const Choices<float>& choices, std::int64_t groups, std::int32_t experts,
                  std::int64_t* begins, std::int64_t* listed, std::int64_t* positions,
                  const ExpertCounts& counts, std::span<std::byte> workspace, void* stream) {
  const std::int64_t count = choices.tokens * choices.choices;
  requireRoom(workspace, listByExpertWorkspace(count, groups, experts));
  Choices<float> one = choices;
  one.tokens = choices.tokens / groups;
  one.weights = nullptr;
  myGpu().kernel(
      "listing choices by expert",
      [=] {
        Ranges ranges{reads(choices.experts, count),
                      reads(choices.slots, count),
                      writes(begins, groups * (experts + 1)),
                      writes(listed, count),
                      writes(positions, count),
                      writes(counts.sums, experts),
                      writes(workspace.data(), std::ssize(workspace))};
        for (std::int64_t e = 0; e < experts && counts.counts != nullptr; e += counts.block)
          ranges.push_back(writes(
              counts.counts + e / counts.block * counts.distance,
              (groups - 1) * counts.block + std::min<std::int64_t>(counts.block, experts - e)));
        return ranges;
      },
      [=] {
        std::fill_n(positions, count, -1);
        std::int64_t before = 0;
        for (std::int64_t group = 0; group < groups; ++group) {
          const std::int64_t first = group * one.tokens * one.choices;
          std::int64_t* const of = begins + group * (experts + 1);
          Choices<float> own = one;
          own.experts += first;
          if (own.slots != nullptr) own.slots += first;
          moeccl::listByExpert<float>(own, experts, of, listed + before);
          for (std::int64_t i = 0; i < of[experts]; ++i)
            positions[first + listed[before + i]] = before + i;
          for (std::int32_t e = 0; e < experts; ++e) counts.set(group, e, of[e + 1] - of[e]);
          const std::int64_t kept = of[experts];
          for (std::int32_t e = 0; e <= experts; ++e) of[e] += before;
          before += kept;
        }
        spoil(workspace);
      },
      stream);
}

void gatherListed(std::int32_t choices, std::span<const GatheredRows> parts, std::size_t tokenBytes,
                  void* stream) {
  const auto bytes = static_cast<std::int64_t>(tokenBytes);
  const std::vector<GatheredRows> all(parts.begin(), parts.end());
  if (std::ranges::all_of(all, [](const GatheredRows& part) { return part.listed.empty(); }))
    return;
  myGpu().kernel(
      "gathering tokens",
      [=] {
        Ranges ranges;
        for (const GatheredRows& part : all) {
          ranges.push_back(reads(part.listed.data(), std::ssize(part.listed)));
          ranges.push_back(writes(as<std::byte>(part.rows), std::ssize(part.listed) * bytes));
          for (const std::int64_t at : part.listed)
            ranges.push_back(reads(as<std::byte>(part.input) + at / choices * bytes, bytes));
        }
        return ranges;
      },
      [=] {
        const Choices<float> width{nullptr, nullptr, nullptr, 0, choices};
        for (const GatheredRows& part : all)
          moeccl::gatherListed<NarrowBfloat16>(width, part.listed, as<NarrowBfloat16>(part.input),
                                               bytes / 2, as<NarrowBfloat16>(part.rows));
      },
      stream);
}

namespace {

void addByToken(const char* what, moecclDataType_t datatype, const Choices<float>& choices,
                const ListedRows& listed, bool weighted, const void* rows, std::int64_t embedding,
                void* output, void* stream) {
  withReal(datatype, [&]<typename Real>(Real) {
    myGpu().kernel(
        what,
        [=] {
          return readsOf(choices) +
                 Ranges{reads(listed.positions, choices.tokens * choices.choices),
                        reads(as<Real>(rows), listed.count * embedding),
                        writes(as<Real>(output), choices.tokens * embedding)};
        },
        [=] {
          moeccl::addByToken<Real>(choices, rowsOfChoices(choices, listed).data(), weighted,
                                   as<Real>(rows), embedding, as<Real>(output));
        },
        stream);
  });
}

}  // namespace

void addListed(moecclDataType_t datatype, const Choices<float>& choices, const ListedRows& listed,
               const void* rows, std::int64_t embedding, void* output, void* stream) {
  addByToken("adding to tokens", datatype, choices, listed, true, rows, embedding, output, stream);
}

void gatherListedBackward(moecclDataType_t datatype, const Choices<float>& choices,
                          const ListedRows& listed, const void* rowGradients,
                          std::int64_t embedding, void* inputGradient, void* stream) {
  addByToken("adding to gradients of tokens", datatype, choices, listed, false, rowGradients,
             embedding, inputGradient, stream);
}

void addListedBackward(moecclDataType_t datatype, const Choices<float>& choices,
                       std::span<const std::int64_t> listed, const void* rows,
                       const void* outputGradient, std::int64_t embedding, void* rowGradients,
                       void* weightGradients, void* stream) {
  withReal(datatype, [&]<typename Real>(Real) {
    myGpu().kernel(
        "gathering gradients of tokens",
        [=] {
          return Ranges{reads(listed.data(), std::ssize(listed)),
                        reads(as<Real>(rows), std::ssize(listed) * embedding),
                        reads(as<Real>(outputGradient), choices.tokens * embedding),
                        writes(as<Real>(rowGradients), std::ssize(listed) * embedding),
                        writes(as<Real>(weightGradients), choices.tokens * choices.choices)};
        },
        [=] {
          moeccl::addListedBackward<Real>(choices, listed, as<Real>(rows), as<Real>(outputGradient),
                                          embedding, as<Real>(rowGradients),
                                          as<Real>(weightGradients));
        },
        stream);
  });
}

// ---- kernels/gates/gate_cuda.h ----

namespace {

// What gates compute with, in float32; null stays null.
template <typename Real>
std::vector<float> wide(const void* from, std::int64_t count) {
  std::vector<float> values(from == nullptr ? 0 : static_cast<std::size_t>(count));
  if (from != nullptr) moeccl::widen(as<Real>(from), count, values.data());
  return values;
}
float* orNull(std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

// A gate's matrices and tokens of some type.
template <typename Real>
struct WideGate {
  WideGate(const gates::Config& config, const gates::Parameters<void>& given,
           const gates::Part<void>& tokens)
      : gate(wide<Real>(given.gate, config.embedding * config.experts)),
        noise(wide<Real>(given.noise, config.embedding * config.experts)),
        input(wide<Real>(tokens.input, tokens.tokens * config.embedding)),
        parameters{gate.data(), orNull(noise), given.bias},
        part{input.data(), tokens.tokens, tokens.firstToken, tokens.draw} {}

  std::vector<float> gate, noise, input;
  gates::Parameters<float> parameters;
  gates::Part<float> part;
};

}  // namespace

Gate::Gate(const gates::Config& config, moecclDataType_t datatype, std::int64_t tokens,
           std::int64_t groups)
    : config_(config),
      datatype_(datatype),
      tokens_(tokens),
      workspaceBytes_(static_cast<std::size_t>(64 + tokens + groups * config.experts) * 8) {}

namespace {

template <typename Real>
Ranges readsOf(const gates::Config& config, const gates::Parameters<void>& parameters,
               const gates::Part<void>& part) {
  const std::int64_t matrix = config.embedding * config.experts;
  return {reads(as<Real>(parameters.gate), matrix), reads(as<Real>(parameters.noise), matrix),
          reads(parameters.bias, config.experts),
          reads(as<Real>(part.input), part.tokens * config.embedding)};
}

// What the CPU's gate decides.
struct Decided {
  Decided(const gates::Config& config, const gates::Parameters<float>& parameters,
          const gates::Part<float>& part)
      : logits(static_cast<std::size_t>(part.tokens * gates::logitsPerToken(config))),
        sums(static_cast<std::size_t>(gates::sumsSize(config))),
        chosen(static_cast<std::size_t>(part.tokens * gates::width(config))),
        weights(chosen.size()) {
    gates::Gate<float>(config).forward(parameters, part,
                                       {logits.data(), chosen.data(), weights.data()}, sums.data());
  }

  std::vector<double> logits, sums;
  std::vector<std::int32_t> chosen;
  std::vector<float> weights;
};

}  // namespace

void Gate::computeLogits(const gates::Parameters<void>& parameters, const gates::Part<void>& part,
                         double* logits, void* stream) const {
  if (part.tokens == 0) return;
  const std::int64_t count = part.tokens * gates::logitsPerToken(config_);
  withReal(datatype_, [&]<typename Real>(Real) {
    myGpu().kernel(
        "computing logits",
        [=, config = config_] {
          return readsOf<Real>(config, parameters, part) + Ranges{writes(logits, count)};
        },
        [=, config = config_] {
          const WideGate<Real> all(config, parameters, part);
          std::ranges::copy(Decided(config, all.parameters, all.part).logits, logits);
        },
        stream);
  });
}

void Gate::choose(const gates::Parameters<void>& parameters, const gates::Part<void>& part,
                  const gates::Decisions<float>& decisions, double* sums,
                  std::span<std::byte> workspace, void* stream) const {
  if (part.tokens == 0) return;
  if (part.tokens > tokens_) throw Error(moecclInternalError, "the double has fewer tokens");
  requireRoom(workspace, workspaceBytes_);
  const std::int64_t width = gates::width(config_) * part.tokens;
  const std::int64_t count = part.tokens * gates::logitsPerToken(config_);
  withReal(datatype_, [&]<typename Real>(Real) {
    myGpu().kernel(
        sums == nullptr ? "choosing experts alone" : "choosing experts",
        [=, config = config_] {
          return readsOf<Real>(config, parameters, part) +
                 Ranges{reads(decisions.logits, count), writes(decisions.chosen, width),
                        writes(decisions.weights, width), writes(sums, gates::sumsSize(config)),
                        writes(workspace.data(), std::ssize(workspace))};
        },
        [=, config = config_] {
          const WideGate<Real> all(config, parameters, part);
          const Decided decided(config, all.parameters, all.part);
          if (!std::equal(decided.logits.begin(), decided.logits.end(), decisions.logits))
            myGpu().fault("choices of other logits");
          std::ranges::copy(decided.chosen, decisions.chosen);
          std::ranges::copy(decided.weights, decisions.weights);
          for (std::size_t i = 0; sums != nullptr && i < decided.sums.size(); ++i)
            sums[i] += decided.sums[i];
          spoil(workspace);
        },
        stream);
  });
}

void Gate::place(std::int64_t tokens, std::int64_t groups, std::int32_t* chosen, float* weights,
                 std::int64_t* used, std::int64_t* slots, double* factors, double* sums,
                 std::span<std::byte> workspace, void* stream) const {
  if (groups == 0) return;
  requireRoom(workspace, workspaceBytes_);
  const std::int64_t width = gates::width(config_) * tokens;
  myGpu().kernel(
      "giving places",
      [=, config = config_] {
        return Ranges{writes(chosen, width),
                      writes(weights, width),
                      writes(used, groups * config.experts),
                      writes(slots, width),
                      writes(factors, gates::renormalizedSum(config) > 0 ? tokens : 0),
                      writes(sums, gates::sumsSize(config)),
                      writes(workspace.data(), std::ssize(workspace))};
      },
      [=, config = config_] {
        std::vector<double> unseen(static_cast<std::size_t>(gates::sumsSize(config)));
        gates::Gate<float>(config).place(tokens, groups, chosen, weights, used, slots, factors,
                                         sums == nullptr ? unseen.data() : sums);
        spoil(workspace);
      },
      stream);
}

void Gate::loss(const double* sums, double scale, double* dSums, double* loss, void* stream) const {
  myGpu().kernel(
      "computing a gate's loss",
      [=, config = config_] {
        return Ranges{reads(sums, gates::sumsSize(config)), writes(dSums, gates::sumsSize(config)),
                      writes(loss, 1)};
      },
      [=, config = config_] {
        const double value = gates::Gate<float>(config).loss(sums, scale, dSums);
        if (loss != nullptr) *loss = value;
      },
      stream);
}

void Gate::backward(const gates::Parameters<void>& parameters, const gates::Part<void>& part,
                    const double* logits, const std::int32_t* chosen,
                    const gates::Kept<float>& kept, const void* dWeights, const double* dSums,
                    const gates::Gradients<void>& gradients, Blas&, std::span<std::byte> workspace,
                    void* stream) const {
  if (part.tokens == 0) return;
  requireRoom(workspace, workspaceBytes_);
  const std::int64_t matrix = config_.embedding * config_.experts;
  const std::int64_t width = gates::width(config_) * part.tokens;
  const std::int64_t input = config_.embedding * part.tokens;
  const bool renormalizes = gates::renormalizedSum(config_) > 0;
  withReal(datatype_, [&]<typename Real>(Real) {
    myGpu().kernel(
        "differentiating a gate",
        [=, config = config_] {
          return Ranges{reads(as<Real>(parameters.gate), matrix),
                        reads(as<Real>(parameters.noise), matrix),
                        reads(parameters.bias, config.experts),
                        reads(as<Real>(part.input), input),
                        reads(logits, part.tokens * gates::logitsPerToken(config)),
                        reads(chosen, width),
                        reads(kept.slots, renormalizes ? width : 0),
                        reads(kept.weights, renormalizes ? width : 0),
                        reads(kept.factors, renormalizes ? part.tokens : 0),
                        reads(as<Real>(dWeights), width),
                        reads(dSums, gates::sumsSize(config)),
                        writes(as<Real>(gradients.gate), matrix),
                        writes(as<Real>(gradients.noise), matrix),
                        writes(as<Real>(gradients.input), input),
                        writes(workspace.data(), std::ssize(workspace))};
        },
        [=, config = config_] {
          const WideGate<Real> all(config, parameters, part);
          std::vector<float> gate = wide<Real>(gradients.gate, matrix);
          std::vector<float> noise = wide<Real>(gradients.noise, matrix);
          std::vector<float> tokens = wide<Real>(gradients.input, input);
          gates::Gate<float>(config).backward(all.parameters, all.part, logits, chosen, kept,
                                              wide<Real>(dWeights, width).data(), dSums,
                                              {orNull(gate), orNull(noise), tokens.data()});
          const auto store = [](const std::vector<float>& values, void* to) {
            if (!values.empty()) moeccl::narrow(values.data(), std::ssize(values), as<Real>(to));
          };
          store(gate, gradients.gate);
          store(noise, gradients.noise);
          store(tokens, gradients.input);
          spoil(workspace);
        },
        stream);
  });
}

}  // namespace moeccl::cuda
