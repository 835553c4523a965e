// Owners of UCX's handles.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>

namespace moeccl {

struct UcxDeleter {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
  void operator()(ucp_context_h context) const { ucp_cleanup(context); }
  void operator()(ucp_worker_h worker) const { ucp_worker_destroy(worker); }
  // Without a word to the peer: what is in flight is dropped.
  void operator()(ucp_ep_h endpoint) const {
    ucp_request_param_t how{};
    how.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    how.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &how);
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  }
};

using UcxConfig = std::unique_ptr<ucp_config_t, UcxDeleter>;
using UcxContext = std::unique_ptr<std::remove_pointer_t<ucp_context_h>, UcxDeleter>;
using UcxWorker = std::unique_ptr<std::remove_pointer_t<ucp_worker_h>, UcxDeleter>;
using UcxEndpoint = std::unique_ptr<std::remove_pointer_t<ucp_ep_h>, UcxDeleter>;

}  // namespace moeccl
