// Ranks meet in a hub, under whose mutex each message is handed to all others.
#include "src/watch/local_watch.h"

#include <algorithm>
#include <utility>

namespace moeccl {
namespace {

class LocalWatch;

// The ranks of one job that have not left.
struct Hub {
  std::mutex mutex;
  std::vector<LocalWatch*> members;
};

std::shared_ptr<Hub> hubOf(const Secret& secret) {
  static std::mutex mutex;
  static std::map<Secret, std::weak_ptr<Hub>> hubs;
  const std::lock_guard lock(mutex);
  std::erase_if(hubs, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Hub> hub = hubs[secret].lock();
  if (!hub) hubs[secret] = hub = std::make_shared<Hub>();
  return hub;
}

class LocalWatch final : public Watch {
 public:
  LocalWatch(const Secret& secret, int rank, std::vector<std::string> hosts)
      : Watch(rank, secret, std::move(hosts)), hub_(hubOf(secret)) {
    const std::lock_guard lock(hub_->mutex);
    hub_->members.push_back(this);
  }
  ~LocalWatch() override { leave(); }

  void leave() override {
    const std::lock_guard lock(hub_->mutex);
    if (std::erase(hub_->members, this) == 0) return;
    for (LocalWatch* other : hub_->members)
      other->arrived(rank(), Kind::loss, bodyOf({rank(), true, {}}));
  }

 private:
  void carry(Kind kind, Body body) override {
    const std::lock_guard lock(hub_->mutex);
    if (std::ranges::find(hub_->members, this) == hub_->members.end()) return;
    for (LocalWatch* other : hub_->members)
      if (other != this) other->arrived(rank(), kind, body);
  }

  const std::shared_ptr<Hub> hub_;
};

}  // namespace

std::unique_ptr<Watch> makeLocalWatch(const Secret& secret, int rank,
                                      std::vector<std::string> hosts) {
  return std::make_unique<LocalWatch>(secret, rank, std::move(hosts));
}

}  // namespace moeccl
