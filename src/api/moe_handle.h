// What moecclMoeLayer_t points to.
#pragma once

#include <memory>
#include <string>

#include "src/base/boundary.h"
#include "src/base/live_handles.h"
#include "src/route/moe_layer.h"

struct moecclMoeLayer {
  const int device;  // of a GPU; -1: host memory
  const moeccl::ComputeMakers& makers;
  moeccl::MoeLayer layer;
};

namespace moeccl {

// Throws Error unless it is one that lives.
inline MoeLayer& layerOf(moecclMoeLayer_t layer) {
  require(layer != nullptr, "layer is NULL; pass a layer made by moecclMoeLayerCreate");
  requireLive(HandleKind::layer, layer);
  return layer->layer;
}

// Makes the device of a layer current while it lives.
class DeviceGuard {
 public:
  DeviceGuard(const ComputeMakers& makers, int device)
      : makers_(makers), before_(device < 0 ? -1 : makers.exchangeDevice(device)) {}
  explicit DeviceGuard(const moecclMoeLayer& layer) : DeviceGuard(layer.makers, layer.device) {}
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    try {
      if (before_ >= 0) makers_.exchangeDevice(before_);
    } catch (...) {  // it was current before
    }
  }

 private:
  const ComputeMakers& makers_;
  const int before_;
};

}  // namespace moeccl
