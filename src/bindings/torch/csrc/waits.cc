// Writes to the store and reads what other ranks have written.
#include "waits.h"

#include <algorithm>

namespace moeccl::torch {
namespace {

using Clock = std::chrono::steady_clock;

// What a rank says: 'g' or 'l', a serial number, a space, and the call.
bool ofLayer(const std::string& said) { return said[0] == 'l'; }
std::string callOf(const std::string& said) { return said.substr(said.find(' ') + 1); }

std::string refusalOf(int64_t number) { return "moeccl/refused/" + std::to_string(number); }

}  // namespace

std::string Waits::keyOf(int rank) const { return "moeccl/waits/" + std::to_string(rank); }

void Waits::open() {
  if (own_ != nullptr) return;
  own_ = store_->clone();
  own_->setTimeout(kPatience * 4);
}

void Waits::watch() {
  const std::lock_guard lock(mutex_);
  open();
  watches_ = true;
}

bool Waits::watches() {
  const std::lock_guard lock(mutex_);
  return watches_;
}

void Waits::refuse(int64_t number, const std::string& why) {
  const std::lock_guard lock(mutex_);
  open();
  own_->set(refusalOf(number), why);
}

std::optional<std::string> Waits::refused(int64_t number) {
  const std::lock_guard lock(mutex_);
  open();
  const std::string key = refusalOf(number);
  if (!own_->check({key})) return std::nullopt;
  const std::vector<uint8_t> why = own_->get(key);
  return std::string(why.begin(), why.end());
}

int64_t Waits::nextSerial() {
  const std::lock_guard lock(mutex_);
  return ++last_;
}

void Waits::say(const std::string& what) {
  const std::lock_guard lock(mutex_);
  own_->set(keyOf(rank_), what);
}

std::optional<std::vector<std::string>> Waits::all() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> keys;
  for (int rank = 0; rank < size_; ++rank) keys.push_back(keyOf(rank));
  if (!own_->check(keys)) return std::nullopt;
  std::vector<std::string> said;
  for (const std::string& key : keys) {
    const std::vector<uint8_t> bytes = own_->get(key);
    said.emplace_back(bytes.begin(), bytes.end());
    if (said.back().empty()) return std::nullopt;
  }
  return said;
}

void Waits::tell(const std::vector<std::string>& said, const std::string& text) {
  const std::lock_guard lock(mutex_);
  for (int rank = 0; rank < size_; ++rank)
    own_->set(keyOf(rank) + "/told", said[static_cast<size_t>(rank)] + '\n' + text);
}

std::optional<std::string> Waits::told(const std::string& said) {
  const std::lock_guard lock(mutex_);
  const std::string key = keyOf(rank_) + "/told";
  if (!own_->check({key})) return std::nullopt;
  const std::vector<uint8_t> bytes = own_->get(key);
  const std::string all(bytes.begin(), bytes.end());
  if (!all.starts_with(said + '\n')) return std::nullopt;
  return all.substr(said.size() + 1);
}

Wait::Wait(std::shared_ptr<Waits> waits, Of of, std::string what, int64_t number)
    : waits_(std::move(waits)),
      of_(of),
      what_(std::move(what)),
      number_(number),
      next_(Clock::now() + Waits::kPatience) {}

Wait::~Wait() {
  if (said_.empty()) return;
  try {
    waits_->say("");
  } catch (...) {  // the store is gone, and with it who would read this
  }
}

std::optional<std::string> Wait::look() {
  if (waits_ == nullptr || failed_ || Clock::now() < next_) return std::nullopt;
  next_ = Clock::now() + Waits::kPatience;
  try {
    if (number_ >= 0)
      if (auto why = waits_->refused(number_)) return why;
    if (of_ == Of::some || !waits_->watches()) return std::nullopt;
    if (said_.empty()) {
      said_ = (of_ == Of::layer ? "l" : "g") + std::to_string(waits_->nextSerial()) + ' ' + what_;
      waits_->say(said_);
    }
    if (auto text = waits_->told(said_)) return text;
    const std::optional<std::vector<std::string>> said = waits_->all();
    if (!said || std::ranges::all_of(*said, ofLayer) || std::ranges::none_of(*said, ofLayer)) {
      before_.clear();
    } else if (before_ != *said) {
      before_ = *said;
    } else {
      const std::string text = found(*said);
      waits_->tell(*said, text);
      return text;
    }
  } catch (...) {
    failed_ = true;  // no store: ranks wait for the timeout
  }
  return std::nullopt;
}

std::string Wait::found(const std::vector<std::string>& said) const {
  std::string text = "ranks of one group wait for each other in different calls:";
  const char* separator = " ";
  for (size_t first = 0; first < said.size(); ++first) {
    const std::string call = callOf(said[first]);
    const auto same = [&](size_t rank) { return callOf(said[rank]) == call; };
    bool told = false;
    for (size_t rank = 0; rank < first; ++rank) told |= same(rank);
    if (told) continue;
    text += std::string(separator) + "rank " + std::to_string(first);
    for (size_t rank = first + 1; rank < said.size(); ++rank)
      if (same(rank)) text += ", " + std::to_string(rank);
    text += " in " + call;
    separator = "; ";
  }
  return text;
}

}  // namespace moeccl::torch
