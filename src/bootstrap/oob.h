// The all-gather that a communicator has before it has anything else: it carries addresses,
// identities and settings while the communicator is set up, and is dropped afterwards.
#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "src/base/error.h"

namespace moeccl {

class Oob {
 public:
  virtual ~Oob() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // Collective; every rank passes the same `bytes`. `recv` has room for ranks() * bytes, rank r's
  // part at r * bytes. Throws Error; afterwards the Oob is of no more use.
  virtual void allgather(const void* send, void* recv, std::size_t bytes) = 0;
  // What its ranks alone hold, from which they can make secrets although others may read what the
  // all-gather carries; empty where the launcher is trusted to carry them.
  virtual std::span<const std::byte> key() const { return {}; }
  // For ranks that wait for one another by other means: throws Error where it is known that one of
  // them has failed. Does not wait.
  virtual void check() {}
  // Whether check() learns of a rank that throws instead of going on.
  virtual bool tellsOfFailures() const { return false; }
  // This rank needs the others no more. Whoever drops it without that has failed.
  virtual void finish() {}
};

// The launcher's all-gather. `oob.context` must outlive this.
class CallbackOob : public Oob {
 public:
  // `rank` is one of `ranks`. Throws Error when the callback is missing.
  CallbackOob(const moecclOob_t& oob, int ranks, int rank);

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  void allgather(const void* send, void* recv, std::size_t bytes) override;

 private:
  moecclOob_t oob_;
  int ranks_, rank_;
};

// What each rank brings, by rank; sizes may differ. Collective, like all below.
std::vector<std::vector<std::byte>> exchangeBytes(Oob& oob, std::span<const std::byte> mine);
std::vector<std::string> exchangeText(Oob& oob, std::string_view mine);

template <typename T>
std::vector<T> exchangeValue(Oob& oob, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(oob.ranks()));
  oob.allgather(&mine, all.data(), sizeof(T));
  return all;
}

// Lets all ranks fail together: each brings its error, if it has one. Returns when none has. A rank
// with an error throws that; the others throw moecclRemoteError with the first such rank's text.
void agree(Oob& oob, const std::optional<Error>& mine);

// The error that a step throws, which may fail on one rank alone.
template <typename Step>
std::optional<Error> failureOf(Step&& step) {
  try {
    step();
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(moecclSystemError, "out of memory");
  } catch (const std::exception& error) {
    return Error(moecclSystemError, error.what());
  }
  return std::nullopt;
}

// Runs such a step, then agrees.
template <typename Step>
void agreeAfter(Oob& oob, Step&& step) {
  agree(oob, failureOf(step));
}

}  // namespace moeccl
