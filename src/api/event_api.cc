// Events of host streams.
#include "moeccl/moeccl.h"
#include "src/api/handles.h"
#include "src/comm/event.h"

using moeccl::boundary;
using moeccl::require;
using moeccl::streamOf;

namespace {

moeccl::Event* eventOf(moecclEvent_t event) {
  require(event != nullptr, "event is NULL; pass an event made by moecclEventCreate");
  moeccl::requireLive(moeccl::HandleKind::event, event);
  return reinterpret_cast<moeccl::Event*>(event);
}

}  // namespace

moecclResult_t moecclEventCreate(moecclEvent_t* event) {
  return boundary("moecclEventCreate", nullptr, [&] {
    require(event != nullptr, "event is NULL; pass where to store the event");
    auto made = std::make_unique<moeccl::Event>();
    moeccl::addHandle(moeccl::HandleKind::event, made.get());
    *event = reinterpret_cast<moecclEvent_t>(made.release());
  });
}

moecclResult_t moecclEventRecord(moecclEvent_t event, moecclStream_t stream) {
  return boundary("moecclEventRecord", nullptr, [&] {
    moeccl::Event* const known = eventOf(event);
    if (stream == nullptr)
      known->record(nullptr, nullptr);
    else
      streamOf(stream)->record(*known);
  });
}

moecclResult_t moecclEventQuery(moecclEvent_t event) {
  bool complete = false;
  const moecclResult_t result =
      boundary("moecclEventQuery", nullptr, [&] { complete = eventOf(event)->query(); });
  return result == moecclSuccess && !complete ? moecclInProgress : result;
}

moecclResult_t moecclEventSynchronize(moecclEvent_t event) {
  return boundary("moecclEventSynchronize", nullptr, [&] { eventOf(event)->synchronize(); });
}

moecclResult_t moecclEventSetCallback(moecclEvent_t event, moecclEventCallback_t callback,
                                      void* context) {
  return boundary("moecclEventSetCallback", nullptr, [&] {
    moeccl::Event* const known = eventOf(event);
    require(callback != nullptr, "callback is NULL; pass what to call");
    known->setCallback([=](moecclResult_t result) { callback(result, context); });
  });
}

moecclResult_t moecclStreamWaitEvent(moecclStream_t stream, moecclEvent_t event) {
  return boundary("moecclStreamWaitEvent", nullptr, [&] {
    require(stream != nullptr, "stream is NULL; calls on the NULL stream wait for nothing");
    streamOf(stream)->wait(*eventOf(event));
  });
}

moecclResult_t moecclEventDestroy(moecclEvent_t event) {
  if (event == nullptr) return moecclSuccess;
  return boundary("moecclEventDestroy", nullptr, [&] {
    moeccl::requireLive(moeccl::HandleKind::event,
                        moeccl::removeHandle(moeccl::HandleKind::event, event).state);
    const std::unique_ptr<moeccl::Event> freed(reinterpret_cast<moeccl::Event*>(event));
  });
}
