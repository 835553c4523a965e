// A test double of GPUs and NCCL: no evidence that GPUs work, but of what the library asks of them.
// Each device's memory is the host's, its kernels are the CPU's, and its streams are queues, from
// which a GpuWorld takes what can run in a random order that events and messages allow.
//
// It finds fault with
//   - groups that have no partner, or one of another size, on the peer;
//   - accesses to the same bytes, one of them a write, that neither streams nor events nor messages
//     order;
//   - what a device is asked for while another is current;
//   - what must not be done during a capture, and captures that leave a stream unjoined;
//   - communicators that are destroyed while they have work, or freed while graphs use them;
//   - ranks that wait for ever to be connected, as two are at their first message where ranks are
//     threads;
//   - memory that is freed, and communicators that are destroyed, before it is deregistered;
//   - aborts that wait for kernels of other communicators, which nobody ends;
//   - aborts while another thread is in a call about the communicator, which NCCL forbids;
//   - contexts that threads of the library make on devices that are not their rank's;
//   - groups that a thread leaves open;
//   - kernels, copies and messages that touch what is not memory of their device, where a test has
//     its data there.
//
// gpu_double.cc has the calls, gpu_world.cc what the devices do, cuda_double.cc the kernels of
// layers, and gpu_ranks.h gives a device to every rank.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "src/exec/gpu.h"

namespace moeccl::test {

class GpuDouble;

// What a device was asked for.
struct GpuCall {
  enum class Kind {
    kernel,  // and copies from or to the host: `name` says which
    copy,    // of `runs` runs of blocks
    reduction,
    division,
    native,  // a function of NCCL's, `name`
    groupStart,
    send,
    receive,
    groupEnd,
    sends,  // to `peers`, which a group has put on a stream
    newStream,
    record,
    wait,      // of a stream, for an event
    hostWait,  // of the host, for an event
    split,
    settle,
    registration,
  };
  Kind kind;
  int device = -1;
  std::size_t stream = 0;
  bool urgent = false;  // the stream, of those from newStream on and of messages
  int peer = -1;
  std::vector<int> peers = {};
  std::size_t bytes = 0;
  std::size_t runs = 0;
  std::pair<const void*, int> event = {};  // and which of its records
  std::string name = {};
};

class GpuWorld {
 public:
  struct Options {
    unsigned seed = 1;
    // Every device runs one thing after another, as launched: the machine with one hardware queue.
    bool oneQueue = false;
    // Ranks are threads. Otherwise one thread is all of them, and splits are only made into lanes.
    bool threads = false;
    // Buffers are memory that the devices have allocated.
    bool ownMemory = false;
    // As NCCL before 2.28.
    bool withoutAllToAll = false;
    // As NCCL where it does not register memory.
    bool withoutRegistration = false;
    // As NCCL before 2.28.7: communicators for messages do not block.
    bool withoutRevoke = false;
    // An abort of communicators for messages takes a while, as NCCL joins threads.
    bool slowAborts = false;
    // A message that meets one of another size is no fault: both stand for ever.
    bool sizesMayDiffer = false;
  };
  // What is read or written; `host`: not on the device.
  struct Range {
    const void* begin;
    std::size_t bytes;
    bool write;
    bool host = false;
  };
  explicit GpuWorld(const Options& options) : options_(options), random_(options.seed) {}

  // Another device, and what its rank calls.
  std::shared_ptr<GpuDouble> newGpu();
  // Runs all that can run.
  void run();
  // What cannot, one a line; "" when everything is complete.
  std::string stuck();
  // What was found fault with, one a line.
  std::string problems();
  // What nobody has freed, one device a line.
  std::string leftovers();
  // From now on every asyncError() is this.
  void breakDown(moecclResult_t result, const std::string& text);
  // Every call of the executor's, in order.
  std::vector<GpuCall> calls();

 private:
  friend class GpuDouble;

  using Clock = std::vector<std::uint64_t>;  // by stream: how many of its items came before

  struct Item;
  struct Message {
    bool isSend;
    std::byte* data;
    std::size_t bytes;
    std::string comm;
    int from, to;
    Item* item = nullptr;
    Message* partner = nullptr;
    bool done = false;
    bool inside = false;  // of a collective: what it arrives in is NCCL's own
  };
  struct Event {
    int issued = 0;             // the latest record
    std::uint64_t capture = 0;  // that it was part of
    std::map<int, Clock> done;  // records that have happened, and what they stand for
  };
  enum class Kind { kernel, record, wait, group };
  struct Stream;
  struct Item {
    Stream* stream = nullptr;
    Kind kind = Kind::kernel;
    std::string what;
    std::function<void()> work;
    std::vector<Range> ranges;  // of a kernel
    // The same where they depend on what it reads.
    std::function<std::vector<Range>()> rangesNow;
    std::shared_ptr<Event> event;
    int version = 0;
    std::vector<std::unique_ptr<Message>> messages;
    Clock known;  // what the host knew to be complete when it asked for this
    bool started = false;
    std::uint64_t order = 0;  // on its device
  };
  struct Stream {
    GpuDouble* device;
    std::size_t number;  // in clocks
    std::deque<std::unique_ptr<Item>> queue;
    Clock clock;
    std::uint64_t capture = 0;
    bool urgent = false;
  };
  struct Access {
    Range range;
    std::size_t stream;
    std::uint64_t tick;
    std::string what;
  };
  // What a stream has captured, with the structure of waits for the check that all is joined.
  struct Captured {
    Stream* stream;
    std::unique_ptr<Item> item;
  };
  struct Matching {
    std::vector<Message*> sends, recvs;
  };
  struct Waiting {
    Stream* stream;
    const void* comm;
    std::unique_ptr<Item> item;
  };
  struct Group {
    int depth = 0;
    std::vector<Waiting> launches;
  };

  static void merge(Clock& into, const Clock& other);
  void problem(const std::string& text) { problems_.push_back(text); }
  Stream& newStream(GpuDouble& device);
  void enqueue(Stream& stream, std::unique_ptr<Item> item);
  bool runnable(const Stream& stream) const;
  void advance(Stream& stream);
  void start(Stream& stream, Item& item);
  void transfer(Message& a, Message& b);
  void check(const Stream& stream, const Range& range, const std::string& what);
  void checkPlace(const Stream& stream, const Range& range, const std::string& what);
  void runLocked();
  // Calls done() until it is true, while others call too; false: it is not after a minute.
  bool runUntil(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done);

  const Options options_;
  std::mt19937 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<GpuDouble>> devices_;
  std::deque<Stream> streams_;
  std::map<std::tuple<std::string, int, int>, Matching> matching_;
  // By communicator and way, sender and receiver: which of the two have come.
  std::map<std::tuple<std::string, int, int>, std::array<bool, 2>> connections_;
  std::vector<std::string> problems_;
  std::vector<GpuCall> calls_;
  std::map<std::thread::id, Group> groups_;  // NCCL has one per thread
  std::uint64_t ids_ = 0;
  // Splits under way: by communicator and which split it is, (color, key) by rank.
  std::map<std::string, std::map<int, std::pair<int, int>>> splits_;
  moecclResult_t broken_ = moecclSuccess;
  std::string brokenText_;
};

class GpuDouble final : public Gpu {
 public:
  GpuDouble(GpuWorld& world, int number) : world_(world), number_(number) {}

  // For tests, as cudaStreamBeginCapture and its relatives do.
  struct Graph;
  // `blocking`: the stream waits for the legacy default stream.
  void beginCapture(Stream stream, bool blocking = false);
  // As work that a capture forbids does.
  void invalidateCapture(Stream stream);
  // nullptr where the capture has become invalid.
  std::shared_ptr<Graph> endCapture(Stream stream);
  void replay(const Graph& graph, Stream stream);
  // What the executor does not ask for, but layers and tests do. `work` runs later; what it touches
  // may be found out then.
  void kernel(const std::string& what, std::function<std::vector<GpuWorld::Range>()> ranges,
              std::function<void()> work, Stream stream);
  // From now on launches of kernels and messages whose names begin so fail; "": none do.
  void breakKernels(const std::string& what);
  // What all messages to and from this device have taken, if one takes so long after another: a
  // clock that no other load of the machine moves.
  static constexpr double kLatency = 20e-6, kSecondsPerByte = 1e-9;
  double secondsOfMessages() const;
  // From now on memory of so many bytes and more is not to be had.
  void limitMemory(std::size_t bytes) { limit_ = bytes; }
  // "GPU double SXM" unless set.
  void setModel(const std::string& model) { model_ = model; }
  // Is called once, where somebody asks for an error of NCCL's next.
  void onAsyncError(std::function<void()> hook) { onAsyncError_ = std::move(hook); }
  // Is called once, where memory of the device is asked for next.
  void onAllocate(std::function<void()> hook) { onAllocate_ = std::move(hook); }
  // What the work of a kernel finds fault with.
  void fault(const std::string& text) {
    world_.problem("device " + std::to_string(number_) + ": " + text);
  }
  // The caller waits, for a minute at most.
  void await(Event event);
  void synchronize(Stream stream);

  std::string name() const override { return "NCCL double"; }
  std::string model(int) override { return model_; }
  int device() override { return current(); }
  void setDevice(int device) override;
  std::byte* allocate(std::size_t bytes) override;
  void free(std::byte* memory) noexcept override;
  std::byte* allocatePinned(std::size_t bytes) override;
  void freePinned(std::byte* memory) noexcept override;
  std::byte* allocateForMessages(std::size_t bytes) override;
  void freeForMessages(std::byte* memory) noexcept override;
  void* registerWith(Comm comm, std::byte* memory, std::size_t bytes) noexcept override;
  void deregister(Comm comm, void* registration) noexcept override;
  Stream newStream(bool urgent) override;
  void deleteStream(Stream stream) noexcept override;
  Event newEvent() override;
  void deleteEvent(Event event) noexcept override;
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool complete(Event event) override;
  std::uint64_t capture(Stream stream) override;
  void keepInGraph(Stream stream, std::shared_ptr<const void> what) override;
  void toDevice(std::byte* to, const void* from, std::size_t bytes, Stream stream) override;
  void toHost(void* to, const std::byte* from, std::size_t bytes, Stream stream) override;
  void copyBlocks(std::span<const BlockCopy> copies, Stream stream) override;
  void reduce(moecclRedOp_t op, moecclDataType_t datatype, std::byte* dst,
              const std::byte* const* sources, std::size_t stride, std::size_t count,
              std::size_t bytes, Stream stream) override;
  void divide(moecclDataType_t datatype, std::byte* data, std::size_t bytes, std::int64_t divisor,
              Stream stream) override;
  void copyRows(const RowMatrices& matrices, const RowCopies& copies, Stream stream) override;
  void addRows(moecclDataType_t datatype, const RowMatrices& matrices, const RowSums& sums,
               const RowWeights& weights, Stream stream) override;
  void weighGradients(const WeighedRows& rows, float* ofWeights, Stream stream) override;
  void clear(std::byte* to, std::size_t bytes, Stream stream) override;
  void runLatency(LatencyStep step, const LatencyRows& rows, Stream stream) override;
  void quantise(moecclDataType_t to, moecclDataType_t from, const std::byte* rows,
                std::size_t rowCount, std::size_t elements, std::byte* quantised,
                Stream stream) override;
  void dequantise(moecclDataType_t from, moecclDataType_t to, const std::byte* quantised,
                  std::size_t rowCount, std::size_t elements, std::byte* rows,
                  Stream stream) override;
  Id newId() override;
  Comm join(const Id& id, int ranks, int rank, const Patience& patience) override;
  Comm split(Comm comm, int color, int key, Purpose purpose, const Patience& patience) override;
  void settle(Comm comm, const Patience& patience) override;
  void destroy(Comm comm) noexcept override;
  void abort(std::span<const Comm> comms) noexcept override;
  bool revokes() const override { return !world_.options_.withoutRevoke; }
  void revoke(std::span<const Comm> comms) noexcept override;
  int ranks(Comm comm) override;
  int rank(Comm comm) override;
  int device(Comm comm) override;
  moecclResult_t asyncError(Comm comm, std::string* text) override;
  void groupStart() override;
  void groupEnd(Comm comm, const Patience& patience) override;
  void send(const std::byte* from, std::size_t bytes, int peer, Comm comm, Stream stream) override;
  void recv(std::byte* to, std::size_t bytes, int peer, Comm comm, Stream stream) override;
  bool has(Native what) const override;
  void run(Native what, const std::byte* from, std::byte* to, std::size_t count,
           moecclDataType_t datatype, moecclRedOp_t op, Comm comm, Stream stream,
           const Patience& patience) override;

 private:
  friend class GpuWorld;
  struct CommState {
    std::string name;  // the same on all ranks
    int ranks, rank;
    // Only one for parts is split.
    Purpose purpose = Purpose::parts;
    int splits = 0;
    int graphs = 0;  // that use it
    int inside = 0;  // threads that wait in a call about it
    bool revoked = false;
    std::set<const std::byte*> registered = {};  // memory for messages
  };
  struct Capture {
    std::uint64_t id;
    GpuWorld::Stream* origin;
    bool blocking;
    bool invalid = false;
    std::vector<GpuWorld::Captured> items;
    std::vector<std::shared_ptr<const void>> kept;
    // Per stream how many items of each it comes after, and the same of events.
    std::map<GpuWorld::Stream*, std::map<GpuWorld::Stream*, std::size_t>> after;
    std::map<GpuWorld::Event*, std::map<GpuWorld::Stream*, std::size_t>> recorded;
  };
  bool owns(const GpuWorld::Range& range) const;
  bool idle() const;
  void requireWhole(const std::string& what) const;
  [[noreturn]] void refuse(const std::string& text);
  // The device that is current in the calling thread.
  int& current();
  void requireCurrent();
  // The device that is current has a context from now on.
  void noteContext();
  void note(GpuCall call);
  GpuWorld::Stream& streamOf(Stream stream);
  std::shared_ptr<GpuWorld::Event> eventOf(Event event);
  CommState& commOf(Comm comm);
  void submit(GpuWorld::Stream& stream, std::unique_ptr<GpuWorld::Item> item);
  void message(bool isSend, std::byte* data, std::size_t bytes, int peer, Comm comm, Stream stream);
  // Ends what is enqueued on a communicator.
  void drop(const CommState& comm, bool abort);
  // NCCL waits for graphs.
  void awaitGraphs(std::unique_lock<std::mutex>& lock, const CommState& comm);
  bool hasKernels() const;
  // Waits for ranks that have yet to be connected for these messages, until `comm` is revoked;
  // where that cannot be, as long as patience has.
  void connect(std::unique_lock<std::mutex>& lock, CommState& comm, const std::string& way,
               const std::vector<std::unique_ptr<GpuWorld::Message>>& messages,
               const Patience& patience);
  void connectPatiently(std::unique_lock<std::mutex>& lock, const std::function<bool()>& met,
                        const Patience& patience);
  void addGraphs(const Graph& graph, int change);

  GpuWorld& world_;
  const int number_;
  const std::thread::id thread_ = std::this_thread::get_id();  // the rank's
  GpuWorld::Stream* legacy_ = nullptr;
  std::vector<GpuWorld::Stream*> streams_;
  std::map<GpuWorld::Event*, std::shared_ptr<GpuWorld::Event>> events_;
  std::map<CommState*, std::unique_ptr<CommState>> comms_;
  // Whole pages, which cost nothing where nobody touches them: workspaces are large.
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, Unmap>;
  static Memory map(std::size_t bytes);
  std::map<const std::byte*, Memory> memory_, pinned_;
  std::set<const std::byte*> forMessages_;  // of memory_
  std::vector<Memory> kept_;                // freed, perhaps while there was work
  std::vector<GpuWorld::Access> history_;
  GpuWorld::Clock known_;  // to the host to be complete
  std::uint64_t launched_ = 0;
  double secondsOfMessages_ = 0;
  std::string brokenKernel_;
  std::function<void()> onAsyncError_, onAllocate_;
  std::string model_ = "GPU double SXM";
  std::atomic<std::size_t> limit_ = static_cast<std::size_t>(-1);
  std::unique_ptr<Capture> capture_;
};

struct GpuDouble::Graph {
  explicit Graph(GpuDouble& of) : device(of) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  GpuDouble& device;
  GpuWorld::Stream* origin = nullptr;
  std::vector<GpuWorld::Captured> items;
  std::vector<std::shared_ptr<const void>> kept;
};

}  // namespace moeccl::test
