// Switches the fibres of a block from barrier to barrier.
#include "tests/gpu/emulation/emulator.h"

#include <algorithm>
#include <bit>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "src/base/text.h"
#include "tests/gpu/emulation/fiber_switch.h"

namespace moeccl::emulation {
namespace {

namespace context = boost::context;

struct Abandoned {};  // thrown through what a thread of a broken kernel still has to do

// Runs threads until one of them waits, and then that one alone.
class Worker {
 public:
  explicit Worker(std::function<void()> body)
      : stack_(context::protected_fixedsize_stack(kStackBytes).allocate()),
        fiber_(std::allocator_arg, context::preallocated(stack_.sp, stack_.size, stack_),
               context::protected_fixedsize_stack(kStackBytes),
               [this, body = std::move(body)](context::fiber&& scheduler) {
                 inside_.begin();
                 scheduler_ = std::move(scheduler);
                 for (;;) {
                   body();
                   leave();
                 }
                 return context::fiber();
               }) {}
  Worker(const Worker&) = delete;

  // Called by the scheduler, and by the body.
  void enter() {
    inside_.enter(static_cast<const char*>(stack_.sp) - stack_.size, stack_.size);
    fiber_ = std::move(fiber_).resume();
    inside_.entered();
  }
  void leave() {
    inside_.leave();
    scheduler_ = std::move(scheduler_).resume();
    inside_.begin();
  }

 private:
  static constexpr std::size_t kStackBytes = 256 << 10;

  FiberSwitch inside_;
  context::stack_context stack_;
  context::fiber fiber_, scheduler_;
};

enum class State { ready, waiting, done };

struct Thread {
  uint3 index;
  State state = State::ready;
  Worker* worker = nullptr;  // that is in the middle of it
  // What it waits for: other lanes where there is a mask, else the block.
  const char* what = nullptr;
  Site site = {};
  unsigned mask = 0;
  std::uint64_t word = 0;

  bool meets(const Thread& other) const {
    return state == State::waiting && other.state == State::waiting && mask == other.mask &&
           std::string_view(what) == other.what && site.line == other.site.line &&
           std::string_view(site.file) == other.site.file;
  }
};

class Scheduler {
 public:
  Order order = Order::rising;
  std::mt19937 random;
  int mostWarps = 0;  // of a block, that have met

  std::string run(dim3 blocks, dim3 threads, const std::function<void()>& kernel,
                  std::size_t sharedBytes) {
    const std::lock_guard lock(mutex_);
    shared_ = std::make_unique<std::byte[]>(sharedBytes);
    kernel_ = &kernel;
    blockDim = threads, gridDim = blocks;
    problem_.clear();
    mostWarps = 0;
    const std::uint64_t count = std::uint64_t{blocks.x} * blocks.y * blocks.z;
    std::vector<std::uint64_t> numbers = ordered<std::uint64_t>(count);
    for (std::uint64_t block : numbers) {
      blockIdx = {static_cast<unsigned>(block % blocks.x),
                  static_cast<unsigned>(block / blocks.x % blocks.y),
                  static_cast<unsigned>(block / blocks.x / blocks.y)};
      std::memset(shared_.get(), kPoison, sharedBytes);
      runBlock();
      if (!problem_.empty()) break;
    }
    return problem_;
  }

  const std::uint64_t* wait(const char* what, unsigned mask, std::uint64_t word, Site site) {
    Thread& thread = *current_;
    thread.what = what, thread.mask = mask, thread.word = word, thread.site = site;
    thread.state = State::waiting;
    if (mask != 0) met_ |= std::uint64_t{1} << warpOf(thread);
    thread.worker->leave();
    if (abandoning_) throw Abandoned{};
    return words_.data() + warpOf(thread) * warpSize;
  }
  std::byte* sharedMemory() const { return shared_.get(); }
  int lane() const { return static_cast<int>((current_ - threads_.data()) % warpSize); }
  [[noreturn]] void fault(const std::string& text, Site site) {
    problem_ = stringf("%s:%d: thread %s: %s", site.file, site.line, name(*current_).c_str(),
                       text.c_str());
    throw Abandoned{};
  }

 private:
  template <typename Number>
  std::vector<Number> ordered(std::uint64_t count) {
    std::vector<Number> numbers(count);
    std::iota(numbers.begin(), numbers.end(), Number{0});
    if (order == Order::falling) std::ranges::reverse(numbers);
    if (order == Order::random) std::ranges::shuffle(numbers, random);
    return numbers;
  }

  void runBlock() {
    const unsigned count = blockDim.x * blockDim.y * blockDim.z;
    met_ = 0;
    threads_.assign(count, {});
    for (unsigned i = 0; i < count; ++i)
      threads_[i].index = {i % blockDim.x, i / blockDim.x % blockDim.y,
                           i / blockDim.x / blockDim.y};
    words_.resize((count + warpSize - 1) / warpSize * warpSize);
    turns_ = ordered<unsigned>(count);
    for (fresh_ = 0; fresh_ < count;) {
      if (idle_.empty()) addWorker();
      Worker* const worker = idle_.back();
      idle_.pop_back();
      worker->enter();
    }
    while (problem_.empty() && release())
      for (unsigned turn : turns_) resume(threads_[turn]);
    if (problem_.empty()) problem_ = stuck();
    mostWarps = std::max(mostWarps, std::popcount(met_));
    abandoning_ = true;
    for (Thread& thread : threads_)
      if (thread.state == State::waiting) thread.state = State::ready, resume(thread);
    abandoning_ = false;
  }

  void resume(Thread& thread) {
    if (thread.state != State::ready) return;
    current_ = &thread;
    threadIdx = thread.index;
    thread.worker->enter();
  }

  void addWorker() {
    const std::size_t number = workers_.size();
    workers_.push_back(std::make_unique<Worker>([this, number] { work(workers_[number].get()); }));
    idle_.push_back(workers_.back().get());
  }

  // On a worker's stack: threads that nobody has begun, until there are none or one waited.
  void work(Worker* worker) {
    bool waited = false;
    while (!waited && fresh_ < turns_.size()) {
      Thread& thread = threads_[turns_[fresh_++]];
      current_ = &thread;
      threadIdx = thread.index;
      thread.worker = worker;
      try {
        if (problem_.empty()) (*kernel_)();
      } catch (const Abandoned&) {
      }
      thread.state = State::done;
      waited = thread.what != nullptr;
    }
    idle_.push_back(worker);
  }

  std::size_t warpOf(const Thread& thread) const { return (&thread - threads_.data()) / warpSize; }

  // Whether there was anybody who can go on now.
  bool release() {
    bool any = false;
    const Thread& first = threads_.front();
    if (std::ranges::all_of(threads_,
                            [&](const Thread& t) { return t.mask == 0 && t.meets(first); })) {
      for (Thread& thread : threads_) thread.state = State::ready;
      return true;
    }
    for (Thread& thread : threads_)
      if (thread.state == State::waiting && thread.mask != 0) any |= releaseLanes(thread);
    return any;
  }

  bool releaseLanes(Thread& thread) {
    const std::size_t begin = warpOf(thread) * warpSize;
    const unsigned mask = thread.mask;
    const auto each = [&](auto function) {
      for (std::size_t lane = 0; lane < warpSize; ++lane)
        if (mask >> lane & 1) function(lane);
    };
    bool all = true;
    each([&](std::size_t lane) {
      all = all && begin + lane < threads_.size() && threads_[begin + lane].meets(thread);
    });
    if (!all) return false;
    each([&](std::size_t lane) {
      words_[begin + lane] = threads_[begin + lane].word;
      threads_[begin + lane].state = State::ready;
    });
    return true;
  }

  // Whom the first one that waits lacks; "" where all are done.
  std::string stuck() const {
    const auto first = std::ranges::find(threads_, State::waiting, &Thread::state);
    if (first == threads_.end()) return "";
    const std::size_t begin = first->mask == 0 ? 0 : warpOf(*first) * warpSize;
    const std::size_t count = first->mask == 0 ? threads_.size() : warpSize;
    std::string text = stringf("%s:%d: %s of thread %s", first->site.file, first->site.line,
                               first->what, name(*first).c_str());
    if (first->mask != 0) text += stringf(", of lanes %#x,", first->mask);
    for (std::size_t i = begin; i < begin + count; ++i) {
      if (first->mask != 0 && !(first->mask >> (i - begin) & 1)) continue;
      if (i >= threads_.size())
        return text + stringf(" is not reached by lane %zu, which there is not", i - begin);
      const Thread& other = threads_[i];
      if (other.meets(*first)) continue;
      text += stringf(" is not reached by thread %s, which ", name(other).c_str());
      if (other.state == State::done) return text + "has returned";
      return text + stringf("is at %s of lanes %#x, %s:%d", other.what, other.mask, other.site.file,
                            other.site.line);
    }
    return text + " goes on for nobody";
  }

  static std::string name(const Thread& thread) {
    return stringf("(%u, %u, %u) of block (%u, %u, %u)", thread.index.x, thread.index.y,
                   thread.index.z, blockIdx.x, blockIdx.y, blockIdx.z);
  }

  static constexpr int kPoison = 0xa7;

  std::mutex mutex_;
  std::unique_ptr<std::byte[]> shared_;
  const std::function<void()>* kernel_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<std::uint64_t> words_;  // of all lanes, as they met
  std::vector<unsigned> turns_;
  std::size_t fresh_ = 0;  // turns that have not begun
  std::uint64_t met_ = 0;  // warps of the block
  Thread* current_ = nullptr;
  bool abandoning_ = false;
  std::string problem_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;
};

// Never destroyed: its fibres end with the process, in the middle of waiting for work.
Scheduler& scheduler() {
  static Scheduler& all = *new Scheduler;
  return all;
}

}  // namespace

void setOrder(Order order, unsigned seed) {
  scheduler().order = order;
  scheduler().random.seed(seed);
}

std::string run(dim3 blocks, dim3 threads, const std::function<void()>& kernel,
                std::size_t sharedBytes) {
  return scheduler().run(blocks, threads, kernel, sharedBytes);
}

int busyWarps() { return scheduler().mostWarps; }

std::byte* sharedMemory() { return scheduler().sharedMemory(); }

void waitForBlock(const char* what, Site site) { scheduler().wait(what, 0, 0, site); }

const std::uint64_t* meet(const char* what, unsigned mask, std::uint64_t word, Site site) {
  if (!(mask >> laneOfThread() & 1))
    fault(stringf("%s of lanes %#x, without its own", what, mask), site);
  return scheduler().wait(what, mask, word, site);
}

int laneOfThread() { return scheduler().lane(); }

void fault(const std::string& text, Site site) { scheduler().fault(text, site); }

}  // namespace moeccl::emulation
