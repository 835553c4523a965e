// Doubles of CUDA's streams and events as torch sees them, and of moeccl's communicators on GPUs: a
// list of who waits for what. Loaded so that all find its functions first; calls about other
// communicators go to moeccl.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <moeccl/moeccl.h>
#include <torch/extension.h>

#include <string>
#include <utility>
#include <vector>

namespace {

constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;
constexpr c10::StreamId kSide = 7;

std::vector<std::string> calls;
c10::StreamId current = 0;
int events = 0;

void note(const std::string& what) { calls.push_back(what); }

std::string nameOf(const c10::Stream& stream) { return "stream " + std::to_string(stream.id()); }
std::string nameOf(void* event) { return "event " + std::to_string(*static_cast<int*>(event)); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kCuda; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kCuda, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  static c10::Stream streamOf(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kCuda, 0), id);
  }
  c10::Stream getStream(c10::Device) const override { return streamOf(current); }
  c10::Stream getDefaultStream(c10::Device) const override { return streamOf(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return streamOf(kSide); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return streamOf(std::exchange(current, stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new int(++events);
    note(nameOf(stream) + " records " + nameOf(*event));
  }
  void block(void* event, const c10::Stream& stream) const override {
    note(nameOf(stream) + " waits for " + nameOf(event));
  }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<int*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream& stream) const override {
    note("memory is kept for " + nameOf(stream));
  }
};

void install() { c10::impl::device_guard_impl_registry[static_cast<size_t>(kCuda)] = new Guard; }

at::Tensor tensorOnCuda(int64_t elements) {
  const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
  c10::DataPtr memory(
      new char[bytes], new int, [](void* it) { delete static_cast<int*>(it); },
      c10::Device(kCuda, 0));
  c10::Storage storage(c10::Storage::use_byte_size_t{}, bytes, std::move(memory), nullptr, false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({elements});
  return tensor;
}

// The communicator on GPUs.
int gpus;
const auto kGpus = reinterpret_cast<moecclComm_t>(&gpus);

template <typename Function>
Function real(Function, const char* name) {
  static void* const library = dlopen("libmoeccl.so.0", RTLD_LAZY | RTLD_NOLOAD);
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

#define REAL(function) real(&function, #function)

extern "C" {

moecclResult_t moecclCommInitOob(moecclComm_t* comm, int ranks, int rank, const moecclOob_t* oob,
                                 const moecclConfig_t* config) {
  if (config->memory != moecclMemoryCuda)
    return REAL(moecclCommInitOob)(comm, ranks, rank, oob, config);
  return *comm = kGpus, moecclSuccess;
}
moecclResult_t moecclAllReduce(const void* in, void* out, size_t count, moecclDataType_t type,
                               moecclRedOp_t op, moecclComm_t comm, moecclStream_t stream) {
  if (comm != kGpus) return REAL(moecclAllReduce)(in, out, count, type, op, comm, stream);
  note("all-reduce on stream " + std::to_string(reinterpret_cast<c10::StreamId>(stream)));
  return moecclSuccess;
}
moecclResult_t moecclCommSetTimeout(moecclComm_t comm, int64_t milliseconds) {
  return comm == kGpus ? moecclSuccess : REAL(moecclCommSetTimeout)(comm, milliseconds);
}
moecclResult_t moecclCommRelease(moecclComm_t comm) {
  return comm == kGpus ? moecclSuccess : REAL(moecclCommRelease)(comm);
}

}  // extern "C"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("install", &install);
  module.def("tensor", &tensorOnCuda);
  module.def("calls", [] { return std::exchange(calls, {}); });
}
