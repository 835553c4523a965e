// Rows on a GPU: the current device of the thread. Base: what is made of it, such as RowCompute.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "kernels/copy.h"
#include "kernels/narrow.h"
#include "kernels/permute.h"
#include "kernels/reduce.h"
#include "kernels/runtime_cuda.h"
#include "src/base/error.h"
#include "src/route/row_compute.h"

namespace moeccl {

class CudaMark final : public Mark {
 public:
  CudaMark() : event_(cuda::newEvent()) {}
  void set(moecclStream_t stream) override {
    cuda::record(event_.get(), stream);
    isSet_ = true;
  }
  void holdUp(moecclStream_t stream) override {
    if (isSet_) cuda::wait(stream, event_.get());
  }
  void await() override {
    if (isSet_) cuda::await(event_.get());
  }

 private:
  struct Delete {
    void operator()(void* event) const { cuda::deleteEvent(event); }
  };
  std::unique_ptr<void, Delete> event_;
  bool isSet_ = false;
};

// Exchanges go before the computation that they run beside, as that waits for them in the end.
class CudaSideStream final : public SideStream {
 public:
  CudaSideStream() : stream_(cuda::newStream(true)) {}
  moecclStream_t get() const override { return stream_.get(); }
  void follow(moecclStream_t pass) override { order(stream_.get(), pass); }
  moecclResult_t join(moecclStream_t pass) override {
    order(pass, stream_.get());
    return moecclSuccess;
  }

 private:
  struct Delete {
    void operator()(void* stream) const { cuda::deleteStream(stream); }
  };
  void order(moecclStream_t later, moecclStream_t earlier) {
    mark_.set(earlier);
    mark_.holdUp(later);
  }

  std::unique_ptr<void, Delete> stream_;
  CudaMark mark_;
};

template <typename Base>
class GpuCompute : public Base {
 public:
  using Base::Base;

  bool onStreams() const override { return true; }

  Memory allocate(std::size_t bytes) override { return {cuda::allocate(bytes), {cuda::free}}; }
  void toHost(void* host, const void* from, std::size_t bytes, moecclStream_t stream) override {
    cuda::toHost(host, from, bytes, stream);
    cuda::synchronize(stream);
  }
  void fromHost(void* to, const void* host, std::size_t bytes, moecclStream_t stream) override {
    cuda::toDevice(to, host, bytes, stream);
  }
  Memory allocateForHost(std::size_t bytes) override {
    return {cuda::allocatePinned(bytes), {cuda::freePinned}};
  }
  void toHostLater(void* host, const void* from, std::size_t bytes,
                   moecclStream_t stream) override {
    cuda::toHost(host, from, bytes, stream);
  }

  std::unique_ptr<Mark> mark() override { return std::make_unique<CudaMark>(); }
  std::unique_ptr<SideStream> sideStream(moecclComm_t) override {
    return std::make_unique<CudaSideStream>();
  }
  void await(moecclStream_t stream) override { cuda::synchronize(stream); }
  void requireUsable(moecclStream_t stream) override {
    if (cuda::isCaptured(stream))
      throw Error(
          moecclInvalidUsage,
          "the stream is being captured, and a pass of a layer, or under a schedule, cannot be "
          "part of a graph; its collectives can");
  }

  void clear(void* to, std::size_t bytes, moecclStream_t stream) override {
    if (bytes > 0) cuda::clear(to, bytes, stream);
  }
  void copyRuns(std::span<const CopiedRun> runs, moecclStream_t stream) override {
    copies_.clear();
    for (const CopiedRun& run : runs)
      copies_.push_back({bytes(run.to), 0, bytes(run.from), 0, bytesOf(run.count), 1});
    cuda::copyBlocks(copies_, stream);
  }
  void add(void* to, const void* from, std::int64_t count, moecclStream_t stream) override {
    const std::byte* const terms[] = {bytes(to), bytes(from)};
    cuda::reduce(moecclSum, this->datatype(), bytes(to), terms, 1, 2, bytesOf(count), stream);
  }
  void transpose(void* to, const void* from, std::int64_t outer, std::int64_t inner,
                 std::int64_t block, std::int64_t distance, moecclStream_t stream) override {
    const auto apart = [&](std::int64_t count) {
      return static_cast<std::ptrdiff_t>(bytesOf(count));
    };
    copies_.clear();
    for (std::int64_t i = 0; i < outer; ++i)
      copies_.push_back({bytes(this->at(to, i * block)), apart(outer * block),
                         bytes(this->at(from, i * inner * distance)), apart(distance),
                         bytesOf(block), inner});
    cuda::copyBlocks(copies_, stream);
  }

 protected:
  static std::byte* bytes(void* at) { return static_cast<std::byte*>(at); }
  static const std::byte* bytes(const void* at) { return static_cast<const std::byte*>(at); }
  std::size_t bytesOf(std::int64_t count) const {
    return static_cast<std::size_t>(count * this->elementBytes());
  }

 private:
  std::vector<BlockCopy> copies_;  // of the launch at hand
};

// Moves by what its subclass sets.
template <typename Base>
class GpuRouter : public Base {
 public:
  // `compute` must outlive this.
  GpuRouter(RowCompute& compute, const RowShape& shape) : rowShape_(shape), rowCompute_(compute) {}

  void scatter(const void* input, std::int64_t expertStride, void* rows,
               moecclStream_t stream) override {
    cuda::scatterTokens(choices(), input, tokenBytes(), expertStride, rows, stream);
    clearUnusedPlaces(expertStride, rows, stream);
  }
  void combine(const void* rows, std::int64_t expertStride, void* output,
               moecclStream_t stream) override {
    cuda::combineTokens(rowCompute_.datatype(), choices(), rows, rowShape_.embedding, expertStride,
                        output, stream);
  }
  void combineBackward(const void* rows, const void* outputGradient, std::int64_t expertStride,
                       void* rowGradients, void* weightGradients, moecclStream_t stream) override {
    cuda::combineTokensBackward(rowCompute_.datatype(), choices(), rows, outputGradient,
                                rowShape_.embedding, expertStride, rowGradients, weightGradients,
                                stream);
    clearUnusedPlaces(expertStride, rowGradients, stream);
  }
  void scatterBackward(const void* rowGradients, std::int64_t expertStride, void* inputGradient,
                       moecclStream_t stream) override {
    cuda::scatterTokensBackward(rowCompute_.datatype(), choices(), rowGradients,
                                rowShape_.embedding, expertStride, inputGradient, stream);
  }

  moecclRouting_t chosen() override {
    return routingOf(tables_.tokens, tables_.experts, tables_.weights);
  }
  void setWeightGradients(const float* from, void* to, moecclStream_t stream) override {
    const std::int64_t count = tables_.tokens * rowShape_.choices;
    rowCompute_.zero(to, count, stream);
    cuda::addNarrowed(rowCompute_.datatype(), from, count, to, stream);
  }

  using Listed = RowRouter::Listed;
  void gather(Listed listed, const void* input, void* rows, moecclStream_t stream) override {
    const cuda::GatheredRows all{indices(listed), input, rows};
    cuda::gatherListed(rowShape_.choices, {&all, 1}, tokenBytes(), stream);
  }
  void add(Listed listed, const void* rows, void* output, moecclStream_t stream) override {
    cuda::addListed(rowCompute_.datatype(), choices(), rowsOf(listed), rows, rowShape_.embedding,
                    output, stream);
  }
  void addBackward(Listed listed, const void* rows, const void* outputGradient, void* rowGradients,
                   void* weightGradients, moecclStream_t stream) override {
    cuda::addListedBackward(rowCompute_.datatype(), choices(), indices(listed), rows,
                            outputGradient, rowShape_.embedding, rowGradients, weightGradients,
                            stream);
  }
  void gatherBackward(Listed listed, const void* rowGradients, void* inputGradient,
                      moecclStream_t stream) override {
    cuda::gatherListedBackward(rowCompute_.datatype(), choices(), rowsOf(listed), rowGradients,
                               rowShape_.embedding, inputGradient, stream);
  }

  std::span<const std::int64_t> indices(Listed listed) const {
    return {tables_.listed + listed.begin, static_cast<std::size_t>(listed.count)};
  }

 protected:
  // On the GPU; positions [tokens][choices]: where tables_.listed has each choice.
  RowTables tables_;
  const std::int64_t* positions_ = nullptr;
  const RowShape rowShape_;

 private:
  Choices<float> choices() const {
    return {tables_.experts, tables_.slots, static_cast<const float*>(tables_.weights),
            tables_.tokens, rowShape_.choices};
  }
  cuda::ListedRows rowsOf(Listed listed) const { return {positions_, listed.begin, listed.count}; }
  std::size_t tokenBytes() const {
    return static_cast<std::size_t>(rowShape_.embedding * rowCompute_.elementBytes());
  }
  void clearUnusedPlaces(std::int64_t expertStride, void* rows, moecclStream_t stream) const {
    cuda::clearUnused(tables_.used, tables_.groups, rowShape_.experts, rowShape_.groupSlots,
                      tokenBytes(), expertStride, rows, stream);
  }

  RowCompute& rowCompute_;
};

// Gathers the rows of several routers at once.
template <typename Router>
void gatherOnGpu(std::span<const Gathering> parts, std::int32_t choices, std::size_t tokenBytes,
                 std::vector<cuda::GatheredRows>& gathered, moecclStream_t stream) {
  gathered.clear();
  for (const Gathering& part : parts)
    gathered.push_back({static_cast<const Router*>(part.router)->indices({part.begin, part.count}),
                        part.input, part.rows});
  cuda::gatherListed(choices, gathered, tokenBytes, stream);
}

}  // namespace moeccl
