// For the tests of the set-up: how ranks end, what a process has open, connections.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "src/base/error.h"
#include "src/bootstrap/socket.h"
#include "tests/job.h"

namespace moeccl::test {

// How a rank's part ended.
struct Outcome {
  moecclResult_t result = moecclSuccess;
  std::string text;
};

inline Outcome outcomeOf(const std::function<void()>& part) {
  try {
    part();
    return {};
  } catch (const Error& error) {
    return {error.result(), error.what()};
  } catch (const std::exception& error) {
    return {moecclNumResults, error.what()};
  }
}

inline std::vector<Outcome> runThreads(int count, const std::function<void(int)>& part) {
  std::vector<Outcome> outcomes(count);
  asThreads(count, [&](int i) { outcomes[i] = outcomeOf([&] { part(i); }); });
  return outcomes;
}

inline void expectSuccess(const std::vector<Outcome>& outcomes) {
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    EXPECT_EQ(outcomes[i].result, moecclSuccess) << "part " << i << ": " << outcomes[i].text;
}

inline void expectFailure(const Outcome& outcome, moecclResult_t result,
                          const std::string& fragment) {
  EXPECT_EQ(outcome.result, result) << outcome.text;
  EXPECT_NE(outcome.text.find(fragment), std::string::npos)
      << "\"" << fragment << "\" is not in \"" << outcome.text << "\"";
}

inline int entriesOf(const char* directory) {
  DIR* dir = opendir(directory);
  if (dir == nullptr) return -1;
  int count = 0;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

// Descriptors and threads of this process.
struct Usage {
  int descriptors = entriesOf("/proc/self/fd");
  int threads = entriesOf("/proc/self/task");
};

inline const IpAddress kLoopback{AF_INET, {127, 0, 0, 1}};

inline Socket connectTo(std::uint16_t port, const IpAddress& address = kLoopback) {
  Socket socket;
  EXPECT_EQ(startConnect(address, port, &socket), 0);
  pollfd polled{socket.get(), POLLOUT, 0};
  poll(&polled, 1, 5000);
  EXPECT_EQ(connectResult(socket), 0);
  return socket;
}

inline bool eventually(const std::function<bool()>& holds,
                       std::chrono::milliseconds limit = std::chrono::seconds(10)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// A test that leaves no descriptor and no thread behind, once what it started has ended.
class LeaklessTest : public ::testing::Test {
 protected:
  // The thread sanitizer adds a thread of its own to the first one.
  static void SetUpTestSuite() {
    std::thread([] {}).join();
  }

  void TearDown() override {
    EXPECT_TRUE(eventually([&] {
      const Usage now;
      return now.descriptors <= before_.descriptors && now.threads <= before_.threads;
    })) << "descriptors "
        << before_.descriptors << " -> " << Usage().descriptors << ", threads " << before_.threads
        << " -> " << Usage().threads;
  }

 private:
  Usage before_;
};

}  // namespace moeccl::test
