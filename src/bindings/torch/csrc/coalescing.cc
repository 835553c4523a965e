// Launches what was gathered as one group of the library's.
#include "coalescing.h"

#include <pybind11/pybind11.h>

#include <iterator>

namespace moeccl::torch {

namespace py = pybind11;

Coalescing::Coalescing() {
  const py::gil_scoped_acquire gil;
  py::object block = py::module_::import("moeccl.coalescing").attr("opened")();
  if (block.is_none()) return;
  block_ = std::shared_ptr<PyObject>(block.release().ptr(), [](PyObject* object) {
    const py::gil_scoped_acquire held;
    Py_DECREF(object);
  });
}

bool Coalescing::abandoned() const {
  if (block_ == nullptr) return false;
  const py::gil_scoped_acquire gil;
  return py::handle(block_.get()).attr("over").cast<bool>();
}

void Coalescing::note(Needs needs, Launch launch, std::shared_ptr<Communicator> communicator,
                      moecclStream_t stream, bool onCuda) {
  TORCH_CHECK(noted_.empty() || onCuda == onCuda_, "call ", noted_.size() + 1,
              " of a coalesced group has tensors on ", onCuda ? "CUDA" : "the CPU",
              ", calls before it on ", onCuda_ ? "CUDA" : "the CPU",
              "; coalesce the calls of each device in a group of their own");
  noted_.push_back({std::move(launch), std::move(communicator), stream});
  onCuda_ = onCuda;
  const auto move = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  move(needs.tensors, needs_.tensors);
  move(needs.after, needs_.after);
  move(needs.outputs, needs_.outputs);
  if (needs.source != nullptr) needs_.after.emplace_back([kept = needs.source] {});
}

void Coalescing::launch(moecclStream_t stream, const std::string& where) const {
  std::exception_ptr refused;
  check(moecclGroupStart(), nullptr, where);
  try {
    for (const Noted& each : noted_) {
      const moecclComm_t comm = each.communicator->comm();
      check(each.launch(comm, onCuda_ ? each.stream : stream), comm, where);
    }
  } catch (...) {
    refused = std::current_exception();
  }
  // Whatever was refused, the thread's group must end.
  const moecclResult_t result = moecclGroupEnd();
  if (refused) std::rethrow_exception(refused);
  check(result, nullptr, where);
}

}  // namespace moeccl::torch
