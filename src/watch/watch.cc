// Keeps losses, news and posts under one mutex, and turns them into bytes of messages and back.
#include "src/watch/watch.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "src/base/error.h"

namespace moeccl {
namespace {

// The most unread news. A broken peer could send for ever about a communicator that nobody asks
// about any more.
constexpr std::size_t kMostUnread = 4096;

struct LossRecord {
  std::int32_t rank;
  std::int32_t left;
  char why[240];
};

template <typename Record>
std::vector<std::byte> bytesOf(const Record& record) {
  const auto bytes = std::as_bytes(std::span(&record, 1));
  return {bytes.begin(), bytes.end()};
}

template <typename Record>
std::optional<Record> recordIn(std::span<const std::byte> body) {
  static_assert(std::is_trivially_copyable_v<Record>);
  if (body.size() < sizeof(Record)) return std::nullopt;
  Record record;
  std::memcpy(&record, body.data(), sizeof record);
  return record;
}

}  // namespace

Watch::Watch(int rank, const Secret& secret, std::vector<std::string> hosts)
    : rank_(rank), secret_(secret), hosts_(std::move(hosts)) {}

void Watch::onNews(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

void Watch::changed() {
  changed_.notify_all();
  if (wake_) wake_();
}

void Watch::add(News news) {
  // Losses stay: there are no more than ranks.
  if (unread_.size() >= kMostUnread) {
    const auto oldest = std::ranges::find_if(
        unread_, [](const News& each) { return std::holds_alternative<Notice>(each); });
    if (oldest != unread_.end()) unread_.erase(oldest);
  }
  unread_.push_back(std::move(news));
  news_.fetch_add(1, std::memory_order_release);
}

bool Watch::next(News* news) {
  const std::lock_guard lock(mutex_);
  if (unread_.empty()) return false;
  *news = std::move(unread_.front());
  unread_.pop_front();
  return true;
}

std::vector<Loss> Watch::losses() const {
  const std::lock_guard lock(mutex_);
  return losses_;
}

bool Watch::isLost(int rank) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::find(losses_, rank, &Loss::rank) != losses_.end();
}

bool Watch::note(Loss loss) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(losses_, loss.rank, &Loss::rank) != losses_.end()) return false;
  losses_.reserve(losses_.size() + 1);  // so that a loss without memory is one that was not noted
  add(loss);
  losses_.push_back(std::move(loss));
  changed();
  return true;
}

Watch::Body Watch::bodyOf(const Loss& loss) {
  LossRecord record{loss.rank, loss.left, {}};
  std::strncpy(record.why, loss.why.c_str(), sizeof record.why - 1);
  return bytesOf(record);
}

void Watch::notify(const Notice& notice) { carry(Kind::notice, bytesOf(notice)); }

void Watch::post(const Topic& topic, std::span<const std::byte> bytes) {
  if (bytes.size() > kLongestPost)
    throw Error(moecclInternalError, "a post of " + std::to_string(bytes.size()) + " bytes");
  Body body = bytesOf(topic);
  body.insert(body.end(), bytes.begin(), bytes.end());
  arrived(rank_, Kind::post, body);
  carry(Kind::post, std::move(body));
}

void Watch::arrived(int origin, Kind kind, std::span<const std::byte> body) {
  switch (kind) {
    case Kind::notice:
      if (auto notice = recordIn<Notice>(body)) {
        notice->text[sizeof notice->text - 1] = '\0';
        notice->source = origin;
        if (notice->culprit < -1 || notice->culprit >= ranks()) notice->culprit = -1;
        const std::lock_guard lock(mutex_);
        add(*notice);
        changed();
      }
      return;
    case Kind::loss:
      if (auto loss = recordIn<LossRecord>(body); loss && loss->rank >= 0 && loss->rank < ranks()) {
        loss->why[sizeof loss->why - 1] = '\0';
        note({loss->rank, loss->left != 0, loss->why});
      }
      return;
    case Kind::post:
      if (const auto topic = recordIn<Topic>(body)) {
        body = body.subspan(sizeof(Topic));
        const std::lock_guard lock(mutex_);
        board_[*topic][origin].assign(body.begin(), body.end());
        changed_.notify_all();
      }
      return;
  }
}

bool Watch::await(const Topic& topic, TimePoint deadline, const Done& done) {
  std::unique_lock lock(mutex_);
  while (!done(board_[topic], losses_)) {
    if (isPast(deadline)) return false;
    if (deadline == kNever)
      changed_.wait(lock);
    else
      changed_.wait_until(lock, deadline);
  }
  return true;
}

std::uint32_t Watch::newestAttempt(std::uint32_t comm, std::span<const int> ranks) const {
  const std::lock_guard lock(mutex_);
  std::uint32_t newest = 0;
  for (auto place = board_.lower_bound({comm, 0, 0});
       place != board_.end() && place->first.comm == comm; ++place)
    if (std::ranges::any_of(ranks, [&](int rank) { return place->second.contains(rank); }))
      newest = place->first.attempt;
  return newest;
}

void Watch::forget(std::uint32_t comm, std::uint32_t attempt) {
  const std::lock_guard lock(mutex_);
  std::erase_if(board_, [&](const auto& place) {
    return place.first.comm == comm && place.first.attempt < attempt;
  });
}

}  // namespace moeccl
