// Runs handlers that are due, and keeps what they raise until the call has returned.
#include "signals.h"

#include <pybind11/pybind11.h>

#include <string>

namespace moeccl::torch {
namespace {

thread_local Interruptible* current = nullptr;

}  // namespace

void runSignalHandlers() {
  if (Py_IsInitialized() == 0) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

Interruptible::Interruptible(moecclComm_t comm, Wait* wait)
    : comm_(comm), wait_(wait), before_(current) {
  current = this;
}

Interruptible::~Interruptible() { current = before_; }

void Interruptible::idle(void* /*context*/) {
  Interruptible* const self = current;
  if (self == nullptr || self->raised_) return;
  try {
    runSignalHandlers();
    if (self->wait_ == nullptr) return;
    if (const auto text = self->wait_->look()) moecclCommRevoke(self->comm_, text->c_str());
    return;
  } catch (...) {
    self->raised_ = std::current_exception();
  }
  moecclCommRevoke(self->comm_, "a signal's handler raised an exception while the rank waited");
}

}  // namespace moeccl::torch
