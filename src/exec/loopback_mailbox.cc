// Finds mailboxes by number, and keeps copies of messages in buffers that are used again.
#include "src/exec/loopback_mailbox.h"

#include <unistd.h>

#include <new>
#include <random>
#include <unordered_map>

namespace moeccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, std::weak_ptr<Mailbox>> mailboxes;
  std::uint64_t last = 0;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

BufferedMessage* Mailbox::buffer(Tag tag, const std::byte* data, std::size_t bytes) {
  auto* message = static_cast<BufferedMessage*>(spare_.popFront());
  try {
    if (!message) {
      buffers_.push_back(std::make_unique<BufferedMessage>());
      message = buffers_.back().get();
      message->flight.buffered = true;
    }
    message->copy.assign(data, data + bytes);
  } catch (const std::bad_alloc&) {
    if (message) spare_.pushBack(message);
    return nullptr;
  }
  message->flight.tag = tag;
  message->flight.from = message->copy.data();
  message->flight.bytes = bytes;
  return message;
}

std::uint64_t registerMailbox(const std::shared_ptr<Mailbox>& mailbox) {
  const std::lock_guard lock(registry().mutex);
  registry().mailboxes[++registry().last] = mailbox;
  return registry().last;
}

void unregisterMailbox(std::uint64_t number) {
  const std::lock_guard lock(registry().mutex);
  registry().mailboxes.erase(number);
}

std::shared_ptr<Mailbox> findMailbox(std::uint64_t number) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().mailboxes.find(number);
  return found == registry().mailboxes.end() ? nullptr : found->second.lock();
}

std::uint64_t processCookie() {
  // A forked child inherits the number, hence the process id.
  static const std::uint64_t random = std::uint64_t{std::random_device{}()} << 32;
  return random ^ static_cast<std::uint64_t>(getpid());
}

}  // namespace moeccl
