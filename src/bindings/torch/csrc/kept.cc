#include "kept.h"

#include <mutex>
#include <unordered_map>

namespace moeccl::torch {
namespace {

std::mutex mutex;
std::unordered_map<int64_t, std::weak_ptr<KeptPass>> passes;  // by number
int64_t lastNumber = 0;

}  // namespace

KeptPass::KeptPass(int64_t note) : numbers_{0, note} {}

KeptPass::~KeptPass() {
  const std::lock_guard lock(mutex);
  passes.erase(numbers_[0]);
}

at::Tensor KeptPass::ticket() {
  const std::shared_ptr<KeptPass> self = shared_from_this();
  {
    const std::lock_guard lock(mutex);
    if (numbers_[0] == 0) numbers_[0] = ++lastNumber;
    passes.emplace(numbers_[0], self);
  }
  return at::from_blob(
      numbers_.data(), {2}, [self](void*) {}, at::kLong);
}

size_t KeptPass::count() {
  const std::lock_guard lock(mutex);
  return passes.size();
}

std::shared_ptr<KeptPass> KeptPass::find(const at::Tensor& ticket) {
  if (ticket.numel() != 2) return nullptr;
  const std::lock_guard lock(mutex);
  const auto found = passes.find(ticket.const_data_ptr<int64_t>()[0]);
  return found == passes.end() ? nullptr : found->second.lock();
}

}  // namespace moeccl::torch
