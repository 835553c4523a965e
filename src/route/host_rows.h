// Rows on host memory, moved by the caller's own thread. Real: float, double, or an element of
// kernels/narrow.h. Base: what is made of it, such as RowCompute.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/copy.h"
#include "kernels/narrow.h"
#include "kernels/permute.h"
#include "src/base/error.h"
#include "src/route/row_compute.h"

namespace moeccl {

// The caller's thread computes, and waits for exchanges itself.
class HostSideStream final : public SideStream {
 public:
  explicit HostSideStream(moecclComm_t comm) {
    moecclStream_t stream = nullptr;
    const moecclResult_t result = moecclStreamCreate(comm, &stream);
    if (result != moecclSuccess) throw Error(result, moecclGetLastError(comm));
    stream_.reset(stream);
  }
  moecclStream_t get() const override { return stream_.get(); }
  void follow(moecclStream_t) override {}
  moecclResult_t join(moecclStream_t) override { return moecclStreamSynchronize(stream_.get()); }
  void progress() override { moecclStreamQuery(stream_.get()); }

 private:
  struct Destroy {
    void operator()(void* stream) const { moecclStreamDestroy(stream); }
  };
  std::unique_ptr<void, Destroy> stream_;
};

template <typename Real, typename Base>
class HostCompute : public Base {
 public:
  using Base::Base;

  bool onStreams() const override { return false; }

  Memory allocate(std::size_t bytes) override {
    return {::operator new(bytes), {[](void* memory) { ::operator delete(memory); }}};
  }
  void toHost(void* host, const void* from, std::size_t bytes, moecclStream_t) override {
    std::memcpy(host, from, bytes);
  }
  void fromHost(void* to, const void* host, std::size_t bytes, moecclStream_t) override {
    std::memcpy(to, host, bytes);
  }
  Memory allocateForHost(std::size_t bytes) override { return allocate(bytes); }
  void toHostLater(void* host, const void* from, std::size_t bytes,
                   moecclStream_t stream) override {
    toHost(host, from, bytes, stream);
  }
  std::unique_ptr<SideStream> sideStream(moecclComm_t comm) override {
    return std::make_unique<HostSideStream>(comm);
  }

  void clear(void* to, std::size_t bytes, moecclStream_t) override {
    std::fill_n(static_cast<std::byte*>(to), bytes, std::byte{0});
  }
  void copyRuns(std::span<const CopiedRun> runs, moecclStream_t) override {
    for (const CopiedRun& run : runs)
      std::copy_n(static_cast<const Real*>(run.from), run.count, static_cast<Real*>(run.to));
  }
  void add(void* to, const void* from, std::int64_t count, moecclStream_t) override {
    Real* const sum = static_cast<Real*>(to);
    const Real* const summand = static_cast<const Real*>(from);
    for (std::int64_t i = 0; i < count; ++i)
      sum[i] = narrowed<Real>(moeccl::widen(sum[i]) + moeccl::widen(summand[i]));
  }
  void transpose(void* to, const void* from, std::int64_t outer, std::int64_t inner,
                 std::int64_t block, std::int64_t distance, moecclStream_t) override {
    const auto bytes = [](std::int64_t elements) {
      return static_cast<std::ptrdiff_t>(elements * static_cast<std::int64_t>(sizeof(Real)));
    };
    for (std::int64_t i = 0; i < outer; ++i)
      copyBlocks(static_cast<std::byte*>(this->at(to, i * block)), bytes(outer * block),
                 static_cast<const std::byte*>(this->at(from, i * inner * distance)),
                 bytes(distance), static_cast<std::size_t>(bytes(block)), inner);
  }

  void gather(std::span<const Gathering> parts, moecclStream_t stream) override {
    for (const Gathering& part : parts)
      part.router->gather({part.begin, part.count}, part.input, part.rows, stream);
  }
};

// Moves by what its subclass sets. Weight: of gradients of weights.
template <typename Real, typename Weight, typename Base>
class HostRouter : public Base {
 public:
  explicit HostRouter(const RowShape& shape) : rowShape_(shape) {}

  void scatter(const void* input, std::int64_t expertStride, void* rows, moecclStream_t) override {
    scatterTokens(choices(), read(input), rowShape_.embedding, expertStride, written(rows));
    clearUnusedPlaces(expertStride, written(rows));
  }
  void combine(const void* rows, std::int64_t expertStride, void* output, moecclStream_t) override {
    combineTokens(choices(), read(rows), rowShape_.embedding, expertStride, written(output));
  }
  void combineBackward(const void* rows, const void* outputGradient, std::int64_t expertStride,
                       void* rowGradients, void* weightGradients, moecclStream_t) override {
    combineTokensBackward(choices(), read(rows), read(outputGradient), rowShape_.embedding,
                          expertStride, written(rowGradients),
                          static_cast<Weight*>(weightGradients));
    clearUnusedPlaces(expertStride, written(rowGradients));
  }
  void scatterBackward(const void* rowGradients, std::int64_t expertStride, void* inputGradient,
                       moecclStream_t) override {
    scatterTokensBackward(choices(), read(rowGradients), rowShape_.embedding, expertStride,
                          written(inputGradient));
  }

  moecclRouting_t chosen() override {
    if constexpr (std::is_same_v<Wide<Real>, float>) {
      if (tables_.slots == nullptr)
        return routingOf(tables_.tokens, tables_.experts, tables_.weights);
      kept_.resize(static_cast<std::size_t>(tables_.tokens * rowShape_.choices));
      for (std::size_t i = 0; i < kept_.size(); ++i)
        kept_[i] = tables_.slots[i] < 0 ? -1 : tables_.experts[i];
      return routingOf(tables_.tokens, kept_.data(), tables_.weights);
    } else {
      return Base::chosen();
    }
  }
  void setWeightGradients(const float* from, void* to, moecclStream_t) override {
    for (std::int64_t i = 0; i < tables_.tokens * rowShape_.choices; ++i)
      static_cast<Weight*>(to)[i] = narrowed<Weight>(static_cast<Wide<Real>>(from[i]));
  }

  using Listed = RowRouter::Listed;
  void gather(Listed listed, const void* input, void* rows, moecclStream_t) override {
    gatherListed(choices(), indices(listed), read(input), rowShape_.embedding, written(rows));
  }
  void add(Listed listed, const void* rows, void* output, moecclStream_t) override {
    if constexpr (kIsNarrow<Real>)
      addListedByToken(listed, true, rows, output);
    else
      addListed(choices(), indices(listed), read(rows), rowShape_.embedding, written(output));
  }
  void addBackward(Listed listed, const void* rows, const void* outputGradient, void* rowGradients,
                   void* weightGradients, moecclStream_t) override {
    addListedBackward(choices(), indices(listed), read(rows), read(outputGradient),
                      rowShape_.embedding, written(rowGradients),
                      static_cast<Weight*>(weightGradients));
  }
  void gatherBackward(Listed listed, const void* rowGradients, void* inputGradient,
                      moecclStream_t) override {
    if constexpr (kIsNarrow<Real>)
      addListedByToken(listed, false, rowGradients, inputGradient);
    else
      gatherListedBackward(choices(), indices(listed), read(rowGradients), rowShape_.embedding,
                           written(inputGradient));
  }

 protected:
  RowTables tables_;
  const RowShape rowShape_;

 private:
  static const Real* read(const void* elements) { return static_cast<const Real*>(elements); }
  static Real* written(void* elements) { return static_cast<Real*>(elements); }
  Choices<Wide<Real>> choices() const {
    return {tables_.experts, tables_.slots, static_cast<const Wide<Real>*>(tables_.weights),
            tables_.tokens, rowShape_.choices};
  }
  std::span<const std::int64_t> indices(Listed listed) const {
    return {tables_.listed + listed.begin, static_cast<std::size_t>(listed.count)};
  }
  void clearUnusedPlaces(std::int64_t expertStride, Real* rows) const {
    clearUnused(tables_.used, tables_.groups, rowShape_.experts, rowShape_.groupSlots,
                rowShape_.embedding, expertStride, rows);
  }
  void addListedByToken(Listed listed, bool weighted, const void* rows, void* output) {
    positions_.assign(static_cast<std::size_t>(tables_.tokens * rowShape_.choices), -1);
    for (std::int64_t i = 0; i < listed.count; ++i)
      positions_[static_cast<std::size_t>(tables_.listed[listed.begin + i])] = i;
    addByToken(choices(), positions_.data(), weighted, read(rows), rowShape_.embedding,
               written(output));
  }

  std::vector<std::int32_t> kept_;       // choices without those that have no place
  std::vector<std::int64_t> positions_;  // where in a list each choice is
};

}  // namespace moeccl
