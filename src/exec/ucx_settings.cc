#include "src/exec/ucx_settings.h"

#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace moeccl {
namespace {

// A choice of ours, unless the user has set one of `variables`.
struct Setting {
  const char* name;
  const char* value;
  std::initializer_list<const char*> variables;
};

const Setting kSettings[] = {
    // Endpoints are made for peers that may fail (UCP_ERR_HANDLING_MODE_PEER): only those give back
    // what is in flight when a peer is gone. Of the transports of one machine UCX (1.13) then uses
    // none unless told to, and falls back to TCP over loopback: 50 times the latency, a quarter of
    // the bandwidth.
    {"MM_ERROR_HANDLING",
     "y",
     {"UCX_MM_ERROR_HANDLING", "UCX_POSIX_ERROR_HANDLING", "UCX_SYSV_ERROR_HANDLING"}},
    // Likewise for large messages inside a node, one copy by the receiver (process_vm_readv): UCX
    // wants to take back a failed sender's permission to read its memory, which the kernel cannot.
    // The fall-back, two copies through 8 KiB pieces, is no slower while each rank has a core, and
    // 8 to 20 times slower where ranks share one. What is lost: a rank that gives up a send in
    // flight cannot stop the receiver from reading that memory meanwhile.
    {"MEMORY_INVALIDATE", "y", {"UCX_CMA_MEMORY_INVALIDATE"}},
    // How long a dead peer may go unnoticed where neither the kernel tells (ProcessWatch) nor a
    // connection breaks. UCX's own choice is 20 s. A look at a peer costs some 10 microseconds, at
    // most 128 of them per interval.
    {"KEEPALIVE_INTERVAL", "2s", {"UCX_KEEPALIVE_INTERVAL"}},
};

}  // namespace

UcxConfig readUcxConfig() {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK)
    throw std::runtime_error(std::string("reading UCX's configuration (UCX_* variables): ") +
                             ucs_status_string(status));
  UcxConfig owned(config);
  for (const Setting& setting : kSettings) {
    bool spoken = false;
    for (const char* variable : setting.variables) spoken |= std::getenv(variable) != nullptr;
    // A version of UCX that does not know the setting goes without it.
    if (!spoken) ucp_config_modify(config, setting.name, setting.value);
  }
  return owned;
}

}  // namespace moeccl
