// Runs one function as every rank of a job, over some transport: ranks as threads or as processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/exec/transport.h"

namespace moeccl::test {

using Make = std::function<std::unique_ptr<Transport>(int rank, int ranks)>;

// Which sends surely complete before their receive is posted. Of the others, all the better.
enum class Buffered { none, small, all };

struct Kind {
  std::string name;
  bool processes = false;
  Make make;
  Buffered buffered = Buffered::small;
  bool outlivesPeers = true;  // else what a dead peer does to it is no business of ours
  // Its receivers read a sender's memory. Those that no longer find it there lose the sender.
  bool readsMemory = false;
};

// Memory that all ranks share: a barrier, and their addresses.
class Board;

// What a rank's function gets.
class Member {
 public:
  Member(Transport& transport, Board& board, bool isProcess)
      : transport(transport), board_(board), isProcess_(isProcess) {}

  Transport& transport;
  int rank() const { return transport.rank(); }
  int ranks() const { return transport.ranks(); }

  // Waits for `count` ranks (all of them by default), not by the transport and without progressing
  // it.
  void meet(int count = 0);
  // Ends this rank in the middle of things: its process is killed, or its transport closed.
  [[noreturn]] void die();

 private:
  Board& board_;
  bool isProcess_;
};

// Runs `body` as ranks 0 to ranks - 1 of a connected job, and closes in order afterwards. A rank
// that hangs fails the test after a while. Returns what ranks (as processes) wrote to stdout and
// stderr.
std::string runJob(const Kind& kind, int ranks, const std::function<void(Member&)>& body);

// A transfer that counts its completions.
struct Probe : Transfer {
  Probe();

  int completions = 0;
  TransferStatus status = TransferStatus::failed;
  std::size_t arrived = 0;
};

// Progresses, sleeping in between, until `condition` or `milliseconds` have passed; returns whether
// it came true.
bool progressUntil(Transport& transport, const std::function<bool()>& condition,
                   int milliseconds = 120000);
// The same for the end of all the probes.
bool finish(Transport& transport, std::initializer_list<const Probe*> probes,
            int milliseconds = 120000);

// Data that tells messages, and places in them, apart.
std::vector<std::uint8_t> pattern(std::uint64_t seed, std::size_t bytes);

// A tag of the given sender.
Tag tagOf(int source, std::uint32_t call);

}  // namespace moeccl::test
