// moeccl for C++17: owners of handles, exceptions, and element types instead of datatype codes.
// Header only, over moeccl.h, route.h and moe.h, whose comments say what each call does. get() is
// the handle. Programs link moeccl; those with a MoeLayer link moeccl-moe instead.
#ifndef MOECCL_MOECCL_HPP_
#define MOECCL_MOECCL_HPP_

#include <moeccl/moe.h>
#include <moeccl/moeccl.h>
#include <moeccl/route.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace moeccl {

// A failed call: moecclGetLastError's text, and the code.
class Error : public std::runtime_error {
 public:
  Error(moecclResult_t result, const std::string& text)
      : std::runtime_error(std::string(moecclGetErrorString(result)) + ": " + text),
        result_(result) {}
  moecclResult_t result() const noexcept { return result_; }

 private:
  moecclResult_t result_;
};

inline void check(moecclResult_t result, moecclComm_t comm = nullptr) {
  if (result != moecclSuccess) throw Error(result, moecclGetLastError(comm));
}

// Owns a handle of the C API, which `kEnd` ends: Owned<moecclProfile_t, moecclProfileDestroy>. The
// classes below own theirs.
template <typename Handle, moecclResult_t (*kEnd)(Handle)>
struct Ends {
  void operator()(Handle handle) const noexcept { kEnd(handle); }
};
template <typename Handle, moecclResult_t (*kEnd)(Handle)>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Ends<Handle, kEnd>>;

// The code of an element type. Specialise it for other types, such as the 16-bit floats of a
// framework:
//
//   template <> struct moeccl::DataType<at::BFloat16> {
//     static constexpr moecclDataType_t kValue = moecclBfloat16;
//   };
template <typename T, typename = void>
struct DataType;
template <typename T>
struct DataType<T, std::enable_if_t<std::is_integral_v<T>>> {
  static_assert(sizeof(T) <= 8, "moeccl has integers of 8 to 64 bits");
  static constexpr moecclDataType_t kValue =
      sizeof(T) == 1   ? (std::is_signed_v<T> ? moecclInt8 : moecclUint8)
      : sizeof(T) == 2 ? (std::is_signed_v<T> ? moecclInt16 : moecclUint16)
      : sizeof(T) == 4 ? (std::is_signed_v<T> ? moecclInt32 : moecclUint32)
                       : (std::is_signed_v<T> ? moecclInt64 : moecclUint64);
};
template <>
struct DataType<std::byte> {
  static constexpr moecclDataType_t kValue = moecclUint8;
};
template <>
struct DataType<float> {
  static constexpr moecclDataType_t kValue = moecclFloat32;
};
template <>
struct DataType<double> {
  static constexpr moecclDataType_t kValue = moecclFloat64;
};
template <typename T>
inline constexpr moecclDataType_t kDataType = DataType<std::remove_cv_t<T>>::kValue;

namespace detail {

inline std::string nameOf(moecclDataType_t datatype) {
  constexpr const char* kNames[] = {"int8",       "uint8",      "int32",   "uint32",  "int64",
                                    "uint64",     "float16",    "float32", "float64", "bfloat16",
                                    "float8e4m3", "float8e5m2", "int16",   "uint16"};
  static_assert(sizeof kNames / sizeof *kNames == moecclNumTypes);
  return kNames[datatype];
}

template <typename T, typename = void>
inline constexpr bool kHasDataType = false;
template <typename T>
inline constexpr bool kHasDataType<T, std::void_t<decltype(DataType<T>::kValue)>> = true;

// Whether programs keep floats in it that C++ has no type for.
template <typename T>
constexpr bool holdsAnything() {
  if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) return sizeof(T) <= 2;
  return false;
}

// A buffer whose datatype a config names; `Void` is void or const void. Pointers to elements of
// another datatype are refused. Pointers to void, to bytes, to integers of 16 bits and to types
// without a DataType may hold any elements, and so may objects that convert to a pointer. {} and
// nullptr are NULL.
template <typename Void>
class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(std::nullptr_t) noexcept {}
  template <typename T, typename = std::enable_if_t<std::is_convertible_v<T*, Void*>>>
  Buffer(T* at) noexcept : at_(at), datatype_(datatypeOf<std::remove_cv_t<T>>()) {}
  template <typename T,
            std::enable_if_t<std::is_class_v<T> && std::is_convertible_v<const T&, Void*>, int> = 0>
  Buffer(const T& at) : at_(at) {}

  // The pointer. Throws Error if the elements have not the datatype of `whose`.
  Void* as(moecclDataType_t datatype, const char* name, const char* whose) const {
    if (datatype_ != moecclNumTypes && datatype_ != datatype)
      throw Error(moecclInvalidArgument, std::string(name) + " has elements of " +
                                             nameOf(datatype_) + "; it must have those of " +
                                             whose + ", " + nameOf(datatype));
    return at_;
  }

 private:
  template <typename T>
  static constexpr moecclDataType_t datatypeOf() {
    if constexpr (kHasDataType<T>)
      if constexpr (!holdsAnything<T>()) return kDataType<T>;
    return moecclNumTypes;
  }

  Void* at_ = nullptr;
  moecclDataType_t datatype_ = moecclNumTypes;  // any
};

}  // namespace detail

class Communicator;

// A queue of calls, freed once they are complete (moecclStreamCreate).
class Stream {
 public:
  inline explicit Stream(const Communicator& comm);
  moecclStream_t get() const noexcept { return stream_.get(); }
  // Whether all calls are complete. Throws the error that stopped them.
  bool query() const {
    const moecclResult_t result = moecclStreamQuery(get());
    if (result == moecclInProgress) return false;
    check(result);
    return true;
  }
  void synchronize() const { check(moecclStreamSynchronize(get())); }

 private:
  Owned<moecclStream_t, moecclStreamDestroy> stream_;
};

// A place in a stream (moecclEventCreate).
class Event {
 public:
  Event() {
    moecclEvent_t made = nullptr;
    check(moecclEventCreate(&made));
    event_.reset(made);
  }
  moecclEvent_t get() const noexcept { return event_.get(); }
  void record(const Stream& stream) { check(moecclEventRecord(get(), stream.get())); }
  bool query() const {
    const moecclResult_t result = moecclEventQuery(get());
    if (result == moecclInProgress) return false;
    check(result);
    return true;
  }
  void synchronize() const { check(moecclEventSynchronize(get())); }

 private:
  Owned<moecclEvent_t, moecclEventDestroy> event_;
};

// A communicator. Destroyed without waiting for peers (moecclCommRelease); close() waits.
class Communicator {
 public:
  // Takes over a handle.
  explicit Communicator(moecclComm_t comm) noexcept : comm_(comm) {}
  // Joins by the launcher's environment (moecclCommInitEnv).
  static Communicator init(const moecclConfig_t* config = nullptr) {
    moecclComm_t made = nullptr;
    check(moecclCommInitEnv(&made, config));
    return Communicator(made);
  }
  static Communicator init(int ranks, const moecclUniqueId& id, int rank,
                           const moecclConfig_t* config = nullptr) {
    moecclComm_t made = nullptr;
    check(moecclCommInitRankConfig(&made, ranks, id, rank, config));
    return Communicator(made);
  }
  // Joins by an all-gather (moecclCommInitOob). allgather(send, recv, bytes) gathers bytes of every
  // rank, in the order of the ranks, and returns whether it succeeded.
  template <typename AllGather>
  static Communicator init(int ranks, int rank, AllGather&& allgather,
                           const moecclConfig_t* config = nullptr) {
    using Function = std::remove_reference_t<AllGather>;
    moecclOob_t oob = {};
    oob.allgather = [](const void* send, void* recv, std::size_t bytes, void* context) -> int {
      try {
        return (*static_cast<Function*>(context))(send, recv, bytes) ? 0 : 1;
      } catch (...) {
        return 1;
      }
    };
    oob.context = const_cast<void*>(static_cast<const void*>(&allgather));
    moecclComm_t made = nullptr;
    check(moecclCommInitOob(&made, ranks, rank, &oob, config));
    return Communicator(made);
  }

  moecclComm_t get() const noexcept { return comm_.get(); }
  int rank() const { return number(moecclCommUserRank); }
  int size() const { return number(moecclCommCount); }
  int nodes() const { return number(moecclCommNodeCount); }
  int nodeOf(int rank) const {
    int node = 0;
    check(moecclCommNodeOfRank(get(), rank, &node), get());
    return node;
  }

  // Nothing if color is MOECCL_SPLIT_NOCOLOR.
  std::optional<Communicator> split(int color, int key = 0,
                                    const moecclConfig_t* config = nullptr) const {
    moecclComm_t made = nullptr;
    check(moecclCommSplit(get(), color, key, &made, config), get());
    return made == nullptr ? std::nullopt : std::optional<Communicator>(Communicator(made));
  }
  // Fails it on all ranks, with this text (moecclCommRevoke).
  void revoke(const std::string& text) const { check(moecclCommRevoke(get(), text.c_str())); }
  // Makes a communicator of the ranks that live, without these.
  Communicator shrink(const std::vector<int>& exclude = {},
                      const moecclConfig_t* config = nullptr) const {
    moecclComm_t made = nullptr;
    check(moecclCommShrink(get(), exclude.data(), static_cast<int>(exclude.size()), &made, config),
          get());
    return Communicator(made);
  }
  std::vector<int> failedRanks() const {
    std::vector<int> ranks(static_cast<std::size_t>(size()));
    int count = size();
    check(moecclCommGetFailedRanks(get(), ranks.data(), &count), get());
    ranks.resize(static_cast<std::size_t>(count));
    return ranks;
  }
  // Waits for the other ranks, and throws if that fails.
  void close() { check(moecclCommDestroy(comm_.release())); }
  void abort() noexcept { moecclCommAbort(comm_.release()); }

  // Collectives as in moeccl.h. Without a stream they are complete when they return. {} stands for
  // NULL where the other buffer has the element type.

  template <typename T>
  void allToAll(const T* send, T* recv, std::size_t count, const Stream* stream = nullptr) const {
    call(moecclAllToAll(send, recv, count, kDataType<T>, get(), of(stream)));
  }
  template <typename T>
  void allToAllv(const T* send, const std::size_t* sendCounts, const std::size_t* sendDispls,
                 T* recv, const std::size_t* recvCounts, const std::size_t* recvDispls,
                 const Stream* stream = nullptr) const {
    call(moecclAllToAllv(send, sendCounts, sendDispls, recv, recvCounts, recvDispls, kDataType<T>,
                         get(), of(stream)));
  }
  template <typename T>
  void allGather(const T* send, T* recv, std::size_t count, const Stream* stream = nullptr) const {
    call(moecclAllGather(send, recv, count, kDataType<T>, get(), of(stream)));
  }
  template <typename T>
  void reduceScatter(const T* send, T* recv, std::size_t count, moecclRedOp_t op = moecclSum,
                     const Stream* stream = nullptr) const {
    call(moecclReduceScatter(send, recv, count, kDataType<T>, op, get(), of(stream)));
  }
  template <typename T>
  void allReduce(const T* send, T* recv, std::size_t count, moecclRedOp_t op = moecclSum,
                 const Stream* stream = nullptr) const {
    call(moecclAllReduce(send, recv, count, kDataType<T>, op, get(), of(stream)));
  }
  template <typename T>
  void broadcast(const T* send, T* recv, std::size_t count, int root,
                 const Stream* stream = nullptr) const {
    call(moecclBroadcast(send, recv, count, kDataType<T>, root, get(), of(stream)));
  }
  void barrier(const Stream* stream = nullptr) const { call(moecclBarrier(get(), of(stream))); }

 private:
  struct Release {
    void operator()(moecclComm_t comm) const noexcept {
      // Calls are unfinished, and nothing can wait for them any more.
      if (moecclCommRelease(comm) != moecclSuccess) moecclCommAbort(comm);
    }
  };
  static moecclStream_t of(const Stream* stream) {
    return stream == nullptr ? nullptr : stream->get();
  }
  void call(moecclResult_t result) const { check(result, get()); }
  int number(moecclResult_t (*ask)(moecclComm_t, int*)) const {
    int answer = 0;
    check(ask(get(), &answer), get());
    return answer;
  }

  std::unique_ptr<std::remove_pointer_t<moecclComm_t>, Release> comm_;
};

inline Stream::Stream(const Communicator& comm) {
  moecclStream_t made = nullptr;
  check(moecclStreamCreate(comm.get(), &made), comm.get());
  stream_.reset(made);
}

// MP, EP and ESP groups of a communicator, which must outlive it (moecclGridCreate).
class Grid {
 public:
  Grid(const Communicator& comm, moecclGridShape_t shape) : comm_(comm.get()) {
    moecclGrid_t made = nullptr;
    check(moecclGridCreate(comm_, shape, &made), comm_);
    grid_.reset(made);
  }
  moecclGrid_t get() const noexcept { return grid_.get(); }
  // The caller's group, which belongs to the grid.
  moecclComm_t group(moecclGroup_t group) const {
    moecclComm_t found = nullptr;
    check(moecclGridGetComm(get(), group, &found), comm_);
    return found;
  }
  template <typename T>
  void dispatch(const T* send, T* recv, std::size_t count, int expertsPerRank,
                const Stream* stream = nullptr) const {
    check(moecclDispatch(send, recv, count, expertsPerRank, kDataType<T>, get(), of(stream)),
          comm_);
  }
  template <typename T>
  void combine(const T* send, T* recv, std::size_t count, int expertsPerRank,
               const Stream* stream = nullptr) const {
    check(moecclCombine(send, recv, count, expertsPerRank, kDataType<T>, get(), of(stream)), comm_);
  }
  // Waits for the other ranks.
  void close() { check(moecclGridDestroy(grid_.release()), comm_); }

 private:
  static moecclStream_t of(const Stream* stream) {
    return stream == nullptr ? nullptr : stream->get();
  }

  moecclComm_t comm_;
  Owned<moecclGrid_t, moecclGridAbort> grid_;
};

// One use of a route (moecclRouteBegin). Buffers are the caller's; route.h has their shapes.
// Arguments are pointers to elements of config.tokenDatatype or config.datatype, or to void; {} and
// nullptr where route.h allows NULL. Elements of another datatype throw Error before anything is
// sent.
class RoutePass {
 public:
  using In = detail::Buffer<const void>;
  using Out = detail::Buffer<void>;

  moecclRoutePass_t get() const noexcept { return pass_.get(); }
  // The rows that come to this rank.
  moecclRows_t rows() const {
    moecclRows_t rows = MOECCL_ROWS_INITIALIZER;
    check(moecclPassGetRows(get(), &rows));
    return rows;
  }
  void dispatch(In tokens, Out rows, const Stream* stream = nullptr) const {
    check(
        moecclPassDispatch(get(), ofTokens(tokens, "tokens"), ofTokens(rows, "rows"), of(stream)));
  }
  void combine(In rows, Out output, const Stream* stream = nullptr) const {
    check(
        moecclPassCombine(get(), ofResults(rows, "rows"), ofResults(output, "output"), of(stream)));
  }
  void combineBackward(In outputGradients, In rows, Out rowGradients, Out weightGradients,
                       const Stream* stream = nullptr) const {
    check(moecclPassCombineBackward(
        get(), ofResults(outputGradients, "outputGradients"), ofResults(rows, "rows"),
        ofResults(rowGradients, "rowGradients"),
        ofWeights(weightGradients, "weightGradients", results_), of(stream)));
  }
  // The last two are for moecclRouteWeightsRows alone.
  void dispatchBackward(In rowGradients, Out tokenGradients, const Stream* stream = nullptr,
                        const float* rowWeightGradients = nullptr,
                        float* weightGradients = nullptr) const {
    check(moecclPassDispatchBackward(
        get(), ofResults(rowGradients, "rowGradients"), rowWeightGradients,
        ofResults(tokenGradients, "tokenGradients"), weightGradients, of(stream)));
  }

 private:
  friend class Route;
  RoutePass(moecclRoutePass_t pass, moecclDataType_t tokens, moecclDataType_t results) noexcept
      : pass_(pass), tokens_(tokens), results_(results) {}
  static moecclStream_t of(const Stream* stream) {
    return stream == nullptr ? nullptr : stream->get();
  }
  template <typename Void>
  Void* ofTokens(const detail::Buffer<Void>& buffer, const char* name) const {
    return buffer.as(tokens_, name,
                     tokens_ == results_ ? "config.datatype" : "config.tokenDatatype");
  }
  template <typename Void>
  Void* ofResults(const detail::Buffer<Void>& buffer, const char* name) const {
    return buffer.as(results_, name, "config.datatype");
  }
  template <typename Void>
  static Void* ofWeights(const detail::Buffer<Void>& buffer, const char* name,
                         moecclDataType_t results) {
    return buffer.as(results == moecclFloat64 ? moecclFloat64 : moecclFloat32, name, "weights");
  }

  Owned<moecclRoutePass_t, moecclPassEnd> pass_;
  moecclDataType_t tokens_, results_;
};

namespace detail {

// A text that the library hands out, without its final zero.
template <typename Handle>
std::string textOf(moecclResult_t (*ask)(Handle, char*, std::size_t*), Handle handle) {
  std::size_t bytes = 0;
  check(ask(handle, nullptr, &bytes));
  std::string told(bytes, '\0');
  check(ask(handle, told.data(), &bytes));
  told.resize(bytes - 1);
  return told;
}

}  // namespace detail

// Brings rows to experts and back (moecclRouteCreate). The grid's communicator must outlive its
// calls.
class Route {
 public:
  Route(const Grid& grid, const moecclRouteConfig_t& config)
      : tokens_(config.tokenDatatype == moecclDataType_t{} ? config.datatype
                                                           : config.tokenDatatype),
        results_(config.datatype) {
    moecclRoute_t made = nullptr;
    check(moecclRouteCreate(grid.get(), &config, &made));
    route_.reset(made);
  }
  moecclRoute_t get() const noexcept { return route_.get(); }
  moecclRouteInfo_t info() const {
    moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
    check(moecclRouteGetInfo(get(), &info));
    return info;
  }
  // experts and weights [tokens][topK].
  RoutePass begin(std::int64_t tokens, const std::int32_t* experts, RoutePass::In weights,
                  const Stream* stream = nullptr) const {
    moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
    routing.tokens = tokens;
    routing.experts = experts;
    routing.weights = RoutePass::ofWeights(weights, "weights", results_);
    return begin(routing, stream);
  }
  RoutePass begin(const moecclRouting_t& routing, const Stream* stream = nullptr) const {
    moecclRoutePass_t made = nullptr;
    check(moecclRouteBegin(get(), &routing, RoutePass::of(stream), &made));
    return RoutePass(made, tokens_, results_);
  }
  // Which schedule or algorithm the last pass took, and why.
  std::string explain() const { return detail::textOf(moecclRouteExplain, get()); }
  // The schedule, and what was learned, for a checkpoint.
  std::string save() const { return detail::textOf(moecclRouteSave, get()); }
  void restore(const std::string& saved) const { check(moecclRouteRestore(get(), saved.c_str())); }

 private:
  Owned<moecclRoute_t, moecclRouteDestroy> route_;
  moecclDataType_t tokens_, results_;
};

// A layer with gate and experts of the library (moecclMoeLayerCreate). The grid must outlive it.
// Weights, gradients and buffers are the caller's; moe.h has their shapes.
class MoeLayer {
 public:
  MoeLayer(const Grid& grid, const moecclMoeConfig_t& config) : datatype_(config.datatype) {
    moecclMoeLayer_t made = nullptr;
    check(moecclMoeLayerCreate(grid.get(), &config, &made));
    layer_.reset(made);
  }
  moecclMoeLayer_t get() const noexcept { return layer_.get(); }
  // The caller's experts, and its part of them.
  moecclMoeShapes_t shapes() const {
    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    check(moecclMoeLayerGetShapes(get(), &shapes));
    return shapes;
  }
  // Weights that forward() reads, and gradients that backward() adds to: valid until the next call
  // of the same function, or the layer's end.
  void setWeights(const moecclMoeWeights_t& weights) {
    check(moecclMoeLayerSetWeights(get(), &weights));
  }
  void setGradients(const moecclMoeGradients_t& gradients) {
    check(moecclMoeLayerSetGradients(get(), &gradients));
  }
  // The place of the next pass in the sequence of random numbers, the same on every rank.
  void setStep(std::int64_t step) { check(moecclMoeLayerSetStep(get(), step)); }
  void setFirstBatch(std::int64_t batch) { check(moecclMoeLayerSetFirstBatch(get(), batch)); }

  // Buffers are [tokens][embedding] of config.datatype, as those of a RoutePass are; the two of a
  // call may be one.
  void forward(RoutePass::In input, RoutePass::Out output, const Stream* stream = nullptr) const {
    check(
        moecclMoeForward(get(), elements(input, "input"), elements(output, "output"), of(stream)));
  }
  // auxiliaryLossScale is the loss's gradient by the gate's auxiliary loss.
  void backward(RoutePass::In outputGradient, double auxiliaryLossScale,
                RoutePass::Out inputGradient, const Stream* stream = nullptr) const {
    check(moecclMoeBackward(get(), elements(outputGradient, "outputGradient"), auxiliaryLossScale,
                            elements(inputGradient, "inputGradient"), of(stream)));
  }
  // Balances the bias [experts] of a sigmoid gate.
  void updateBias(double* bias, double speed) const {
    check(moecclMoeUpdateBias(get(), bias, speed));
  }
  // Counts of the last forward(). Its arrays are the layer's, and valid until the next one.
  moecclMoeStats_t stats() const {
    moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
    check(moecclMoeGetStats(get(), &stats));
    return stats;
  }
  // Which schedule the layer runs under, and why.
  std::string explain() const { return detail::textOf(moecclMoeLayerExplainChoice, get()); }
  // The schedule, and what was learned, for a checkpoint.
  std::string save() const { return detail::textOf(moecclMoeLayerSaveChoice, get()); }
  void restore(const std::string& saved) {
    check(moecclMoeLayerRestoreChoice(get(), saved.c_str()));
  }

 private:
  static moecclStream_t of(const Stream* stream) {
    return stream == nullptr ? nullptr : stream->get();
  }
  template <typename Void>
  Void* elements(const detail::Buffer<Void>& buffer, const char* name) const {
    return buffer.as(datatype_, name, "config.datatype");
  }
  Owned<moecclMoeLayer_t, moecclMoeLayerDestroy> layer_;
  moecclDataType_t datatype_;
};

}  // namespace moeccl

#endif  // MOECCL_MOECCL_HPP_
