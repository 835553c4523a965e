// Makes the stream wait for the current one, and keeps tensors until it has used them.
#include "side_stream.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace moeccl::torch {

c10::Stream SideStream::behindCurrent(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (!stream_) stream_ = guard.getStreamFromGlobalPool(device);
  c10::Event reached(device.type());
  reached.record(guard.getStream(device));
  reached.block(*stream_);
  return *stream_;
}

void SideStream::keep(const MoecclWork::Needs& needs, const c10::Stream& stream) {
  const c10::impl::VirtualGuardImpl guard(stream.device_type());
  for (const auto* tensors : {&needs.tensors, &needs.outputs})
    for (const at::Tensor& tensor : *tensors)
      if (tensor.has_storage()) guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

}  // namespace moeccl::torch
