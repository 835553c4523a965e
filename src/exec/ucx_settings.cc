#include "src/exec/ucx_settings.h"

#include <algorithm>
#include <cstdio>
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
  // It concerns these transports only; none: all of them. UCX warns about settings of transports
  // that it does not find on the machine or that UCX_TLS excludes.
  std::initializer_list<const char*> transports;
};

const Setting kSettings[] = {
    // Endpoints are made for peers that may fail (UCP_ERR_HANDLING_MODE_PEER): only those give back
    // what is in flight when a peer is gone. Of the transports of one machine UCX (1.13) then uses
    // none unless told to, and falls back to TCP over loopback: 50 times the latency, a quarter of
    // the bandwidth.
    {"MM_ERROR_HANDLING",
     "y",
     {"UCX_MM_ERROR_HANDLING", "UCX_POSIX_ERROR_HANDLING", "UCX_SYSV_ERROR_HANDLING"},
     {"posix/", "sysv/"}},
    // Likewise for large messages inside a node, one copy by the receiver (process_vm_readv): UCX
    // wants to take back a failed sender's permission to read its memory, which the kernel cannot.
    // The fall-back, two copies through 8 KiB pieces, is no slower while each rank has a core, and
    // 8 to 20 times slower where ranks share one. What is lost: a rank that gives up a send in
    // flight cannot stop the receiver from reading that memory meanwhile.
    {"MEMORY_INVALIDATE", "y", {"UCX_CMA_MEMORY_INVALIDATE"}, {"cma/"}},
    // How long a dead peer may go unnoticed where neither the kernel tells (ProcessWatch) nor a
    // connection breaks. UCX's own choice is 20 s. A look at a peer costs some 10 microseconds, at
    // most 128 of them per interval.
    {"KEEPALIVE_INTERVAL", "2s", {"UCX_KEEPALIVE_INTERVAL"}, {}},
};

UcxConfig readConfig() {
  ucp_config_t* config = nullptr;
  const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK)
    throw std::runtime_error(std::string("reading UCX's configuration (UCX_* variables): ") +
                             ucs_status_string(status));
  return UcxConfig(config);
}

// UCX's list of what it has found and may use: "... resource 4 : ... posix/memory ...".
// Takes some milliseconds. Empty where UCX does not start; that is for others to report.
std::string inventory() {
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG;
  ucp_context_h context = nullptr;
  if (ucp_init(&params, readConfig().get(), &context) != UCS_OK) return {};
  const UcxContext owned(context);
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* const stream = open_memstream(&text, &bytes);
  if (!stream) return {};
  ucp_context_print_info(context, stream);
  std::fclose(stream);
  const std::string list(text, bytes);
  std::free(text);
  return list;
}

bool userSpeaks(const Setting& setting) {
  return std::ranges::any_of(setting.variables,
                             [](const char* variable) { return std::getenv(variable) != nullptr; });
}

}  // namespace

UcxConfig readUcxConfig() {
  const std::string found = inventory();
  UcxConfig config = readConfig();
  for (const Setting& setting : kSettings) {
    const bool concerned = setting.transports.size() == 0 ||
                           std::ranges::any_of(setting.transports, [&](const char* transport) {
                             return found.find(transport) != std::string::npos;
                           });
    // A version of UCX that does not know the setting goes without it.
    if (concerned && !userSpeaks(setting))
      ucp_config_modify(config.get(), setting.name, setting.value);
  }
  return config;
}

}  // namespace moeccl
