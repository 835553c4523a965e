// Sends and receives of a caller that begin at once, over a transport. A receive may be of anybody:
// it takes the first message of its tag that no other receive was posted for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/exec/run.h"
#include "src/exec/tag.h"

namespace moeccl {

inline constexpr int kAnySource = -1;

struct Message {
  bool isSend = false;
  int peer = kAnySource;  // rank of the communicator
  std::uint32_t tag = 0;
  std::byte* data = nullptr;  // not written to by a send
  std::size_t bytes = 0;
  int* source = nullptr;  // gets the sender's rank, where that is anybody
};

class MessageRun final : public Run {
 public:
  // Where messages go: as Route of a HostRun.
  struct Path {
    Transport* transport = nullptr;
    std::span<const int> transportRank;  // by rank of the communicator; must outlive the run
    std::uint32_t comm = 0;
    MessageOwner kind = MessageOwner::caller;
    int rank = -1;  // this one's in the communicator
  };

  // The run must be idle. Each message of this rank for itself has its receive, of the same size,
  // among them; they are matched by tag, in order. Receives that must wait for others are left to
  // `queue`.
  class Queue;
  void start(const Path& path, std::span<const Message> messages, Queue* queue);
  void cancel() override;
  // A receive has not been posted, as nobody has sent anything for it.
  bool waitsForAnybody() const;
  // In order to be found in a queue.
  MessageOwner kind() const { return path_.kind; }

 private:
  struct Part : Transfer {
    MessageRun* run = nullptr;
    Message message;
    bool active = false, over = false;
  };

  static void partDone(Transfer* self, TransferStatus status, std::size_t bytes);
  std::vector<int> peersOf(bool sends) const override;
  bool isOwn(const Part& part) const { return part.message.peer == path_.rank; }
  void copyOwn();
  // `peer`: who sends it.
  void receive(Part& part, int peer);

  Path path_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::size_t used_ = 0;  // of parts_
};

// Receives of one communicator that are not posted yet: those of anybody, for which no message has
// come, and those that began behind one of these with the same tag.
class MessageRun::Queue {
 public:
  bool empty() const { return waiting_.empty(); }
  // Posts what can be posted; returns whether anything was.
  bool advance();
  // Forgets those of a run.
  void forget(const MessageRun& run);

 private:
  friend class MessageRun;
  struct Waiting {
    MessageRun* run;
    Part* part;
  };
  bool isBehind(const MessageRun& run, std::uint32_t tag) const;

  std::vector<Waiting> waiting_;
};

}  // namespace moeccl
