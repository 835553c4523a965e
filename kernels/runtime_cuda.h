// Memory, streams and events of the GPU that is the thread's current one: what the library asks of
// the CUDA runtime, without its header. Handles are CUDA's own. All throw Error, but what frees;
// what takes a stream enqueues and returns, unless it says that it waits. All may be called while
// other streams are being captured.
#pragma once

#include <cstddef>

namespace moeccl::cuda {

// Makes a device the thread's current one; returns which was.
int exchangeDevice(int device);

// At least one byte, so that there is an address.
std::byte* allocate(std::size_t bytes);
void free(void* memory) noexcept;
// Memory of the host that toHost need not wait for.
std::byte* allocatePinned(std::size_t bytes);
void freePinned(void* memory) noexcept;

// A stream that does not wait for the legacy default stream; `urgent`: of the highest priority.
void* newStream(bool urgent);
void deleteStream(void* stream) noexcept;
// Waits.
void synchronize(void* stream);
// Says why a call is refused for which CUDA has cudaErrorStreamCaptureImplicit.
inline constexpr const char* kLegacyStreamInCapture =
    "the stream is the legacy default stream, and a stream that waits for it is being captured: "
    "pass another stream, or capture one that cudaStreamNonBlocking made";
// Whether the stream is being captured into a graph. Throws InvalidUsage for the legacy default
// stream while a stream that waits for it is.
bool isCaptured(void* stream);

void* newEvent();
void deleteEvent(void* event) noexcept;
void record(void* event, void* stream);
void wait(void* stream, void* event);
// Whether what the event stands for is complete; never waits.
bool complete(void* event);
// The caller waits.
void await(void* event);

void clear(void* to, std::size_t bytes, void* stream);
// The host's memory may be used again on return where it is pageable; where it is pinned it must
// stay until the stream has come so far.
void toDevice(void* to, const void* from, std::size_t bytes, void* stream);
void toHost(void* to, const void* from, std::size_t bytes, void* stream);

}  // namespace moeccl::cuda
