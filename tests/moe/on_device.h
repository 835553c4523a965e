// A layer on a GPU, real or a double, with all that is the caller's in its memory, against the
// reference. Ranks call all of this together. It throws what is wrong.
#pragma once

#include <memory>

#include "tests/api/device.h"
#include "tests/moe/task.h"

namespace moeccl::test {

// Elements in a device's memory.
class DeviceElements {
 public:
  DeviceElements(DeviceMemory& device, const void* host, std::size_t bytes);
  DeviceElements(DeviceMemory& device, const moe_reference::Elements& host)
      : DeviceElements(device, host.data(), host.size()) {}
  DeviceElements(const DeviceElements&) = delete;
  DeviceElements& operator=(const DeviceElements&) = delete;
  ~DeviceElements();

  // Null where there are none.
  void* get() const { return memory_; }
  void set(const void* host);
  // Waits for nothing but its own copy.
  moe_reference::Elements read() const;

 private:
  DeviceMemory& device_;
  std::size_t bytes_;
  unsigned char* memory_ = nullptr;
};

// A stream of a device's.
class DeviceStream {
 public:
  explicit DeviceStream(Device& device) : device_(device), stream_(device.newStream()) {}
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  ~DeviceStream() { device_.deleteStream(stream_); }
  moecclStream_t get() const { return stream_; }

 private:
  Device& device_;
  moecclStream_t stream_;
};

// A layer and its weights.
class DeviceLayer {
 public:
  DeviceLayer(Device& device, moecclGrid_t grid, const moe_reference::Layer& whole,
              moecclSchedule_t schedule);
  DeviceLayer(const DeviceLayer&) = delete;
  DeviceLayer& operator=(const DeviceLayer&) = delete;
  ~DeviceLayer();

  moecclMoeLayer_t get() const { return layer_; }
  const moecclMoeShapes_t& shapes() const { return shapes_; }
  DeviceElements& bias();

 private:
  struct Weights;
  moecclMoeLayer_t layer_ = nullptr;
  moecclMoeShapes_t shapes_ = MOECCL_MOE_SHAPES_INITIALIZER;
  std::unique_ptr<Weights> weights_;
};

// What the last Forward of a layer says of itself, but for its output.
Outcome statsOf(const Problem& problem, moecclMoeLayer_t layer);

struct Turn {
  moecclSchedule_t schedule;
  bool inPlace = false;
  bool onDefaultStream = false;
};

// Two passes forward and backward, on streams that only the layer orders against each other,
// without a wait of the caller's before the end.
void train(Device& device, moecclGrid_t grid, int rank, const Task& task, const Turn& turn);

}  // namespace moeccl::test
