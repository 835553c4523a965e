// Which transports UCX may use, and two settings for those that it finds. UCX is started once to
// list what it finds.
#include "src/exec/ucx_settings.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace moeccl {
namespace {

// A choice of ours, unless the user has set one of `variables`. A transport's own setting goes by
// the name that UCX's tables have it under, which may lack the prefix of its variable.
struct Setting {
  const char* name;
  const char* value;
  std::initializer_list<const char*> variables;
  // For machines with one of these transports. UCX warns about settings of those that it does not
  // find or that UCX_TLS excludes.
  std::initializer_list<const char*> with;
};

// How the names of transports with RDMA begin.
constexpr std::array kRdma = {"rc_", "dc_", "ud_"};

const Setting kSettings[] = {
    // Endpoints are made for peers that may fail (UCP_ERR_HANDLING_MODE_PEER): only those give back
    // what is in flight when a peer is gone. Then UCX (1.13) uses none of the transports of one
    // machine unless told to, and falls back to TCP over loopback, with some 50 times the latency
    // and a third of the bandwidth. With these first two settings, endpoints of both modes perform
    // alike (8 bytes: 4 % more latency; from 64 KiB on: no difference).
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
};

// UCX's names for all shared memory bring System V's too, whose segments the ranks' whole group may
// read and write. POSIX's belong to the user alone, and have no name once they are made.
constexpr std::array kSharedMemory = {"shm", "sm", "mm"};
constexpr char kOwnMemory[] = "posix,cma";

const char* transportsOf(UcxReach reach) {
  switch (reach) {
    case UcxReach::everything:
      return "^sysv";
    case UcxReach::sharedMemory:
      return "self,posix,cma";
    case UcxReach::noTcp:
      return "^tcp,sysv";
  }
  return nullptr;
}

// The user's UCX_TLS without what must be asked for: System V's shared memory by its name, and TCP
// by MOECCL_TRANSPORT=ucx.
std::string narrowed(std::string_view transports, UcxReach reach) {
  const bool tcp = reach == UcxReach::everything;
  if (transports.starts_with('^')) return std::string(transports) + (tcp ? ",sysv" : ",tcp,sysv");
  std::string kept;
  while (!transports.empty()) {
    std::string_view each = transports.substr(0, transports.find(','));
    transports.remove_prefix(std::min(each.size() + 1, transports.size()));
    if (each == "all") return transportsOf(reach);
    if (each == "tcp" && !tcp) continue;
    if (std::ranges::find(kSharedMemory, each) != kSharedMemory.end()) each = kOwnMemory;
    if (!kept.empty()) kept += ',';
    kept += each;
  }
  return kept;
}

UcxConfig readConfig(UcxReach reach) {
  ucp_config_t* config = nullptr;
  const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK)
    throw std::runtime_error(std::string("reading UCX's configuration (UCX_* variables): ") +
                             ucs_status_string(status));
  UcxConfig owned(config);
  const char* const asked = std::getenv("UCX_TLS");
  const std::string kept = asked != nullptr ? narrowed(asked, reach) : "";
  ucp_config_modify(config, "TLS", kept.empty() ? transportsOf(reach) : kept.c_str());
  return owned;
}

// UCX's list of what it has found and may use: "... resource 4 : ... posix/memory ...".
// Takes some milliseconds. Empty where UCX does not start; that is for others to report.
std::string inventory(UcxReach reach) {
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG;
  ucp_context_h context = nullptr;
  if (ucp_init(&params, readConfig(reach).get(), &context) != UCS_OK) return {};
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

bool mentions(const std::string& inventory, const char* transport) {
  return inventory.find(transport) != std::string::npos;
}

bool userSpeaks(const Setting& setting) {
  return std::ranges::any_of(setting.variables,
                             [](const char* variable) { return std::getenv(variable) != nullptr; });
}

}  // namespace

UcxConfig readUcxConfig(UcxReach reach, bool* tcp) {
  const std::string found = inventory(reach);
  const auto has = [&](const char* transport) { return mentions(found, transport); };
  *tcp = has("tcp/");
  UcxConfig config = readConfig(reach);
  for (const Setting& setting : kSettings) {
    // A version of UCX that does not know the setting goes without it.
    if (std::ranges::any_of(setting.with, has) && !userSpeaks(setting))
      ucp_config_modify(config.get(), setting.name, setting.value);
  }
  return config;
}

bool hasUcx() { return true; }

bool ucxFindsRdma() {
  std::error_code none;
  if (std::filesystem::is_empty("/sys/class/infiniband", none) || none) return false;
  const std::string found = inventory(UcxReach::noTcp);
  return std::ranges::any_of(kRdma,
                             [&](const char* transport) { return mentions(found, transport); });
}

}  // namespace moeccl
