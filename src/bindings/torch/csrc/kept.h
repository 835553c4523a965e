// Passes that tensors keep.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <memory>

namespace moeccl::torch {

// A pass of a layer or a route, from its first half until nothing needs it.
class KeptPass : public std::enable_shared_from_this<KeptPass> {
 public:
  // note: the caller's, to be read from tickets.
  explicit KeptPass(int64_t note);
  KeptPass(const KeptPass&) = delete;
  KeptPass& operator=(const KeptPass&) = delete;
  virtual ~KeptPass();

  // int64 [2], the pass's number and its note. The tensor keeps the pass: where it is saved for the
  // backward pass, whatever drops saved tensors and makes them again (activation checkpointing)
  // does so to the pass.
  at::Tensor ticket();
  // How many there are.
  static size_t count();

  // Throws where the ticket's pass is gone, or another kind of pass.
  template <typename Pass>
  static std::shared_ptr<Pass> of(const at::Tensor& ticket) {
    auto pass = std::dynamic_pointer_cast<Pass>(find(ticket));
    TORCH_CHECK(
        pass != nullptr,
        "what this pass saved for its gradients is gone; hooks on saved tensors may drop and "
        "recompute them, but not move them (torch.autograd.graph.save_on_cpu)");
    return pass;
  }

 private:
  static std::shared_ptr<KeptPass> find(const at::Tensor& ticket);

  std::array<int64_t, 2> numbers_;
};

}  // namespace moeccl::torch
