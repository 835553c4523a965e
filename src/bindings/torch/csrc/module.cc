// What Python sees of the backend.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "backend.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.doc() = "torch.distributed over moeccl; see the package";
  module.def(
      "create",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
         std::chrono::milliseconds timeout, const std::vector<int64_t>& globalRanks,
         const std::string& group) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<moeccl::torch::MoecclBackend>(store, rank, size, timeout,
                                                                 globalRanks, group);
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
      py::arg("global_ranks"), py::arg("group"), py::call_guard<py::gil_scoped_release>());
}
