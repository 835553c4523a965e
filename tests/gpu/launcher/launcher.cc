// Starts ranks, reads what they tell, and kills those that hang.
#include "tests/gpu/launcher/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>

extern char** environ;

namespace moeccl::gpu {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

std::vector<std::string> environment(const Launch& launch, int rank) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  for (const std::string& variable : launch.environment(rank))
    if (std::getenv(variable.substr(0, variable.find('=')).c_str()) == nullptr)
      variables.push_back(variable);
  return variables;
}

// One rank's process, as far as it has told.
class Process {
 public:
  Process(const Launch& launch, int rank) : rank_(rank) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("there are no pipes left");
    reports_ = ends[0];
    std::vector<std::string> command = launch.command(rank), variables = environment(launch, rank);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], kReports);
    const int error = posix_spawnp(&process_, command[0].c_str(), &actions, nullptr,
                                   pointers(command).data(), pointers(variables).data());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (error != 0)
      throw std::runtime_error("cannot start " + command[0] + ": " + std::strerror(error));
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      wait();
    }
    close(reports_);
  }

  int reports() const { return reports_; }
  bool over() const { return process_ <= 0; }
  // What its end was if that was none of success.
  const std::string& death() const { return death_; }
  Clock::duration silence() const { return Clock::now() - heard_; }
  std::string where() const {
    const std::string who = "rank " + std::to_string(rank_);
    if (over()) return death_.empty() ? who + " is done" : death_;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(silence()).count();
    return who + " has said nothing for " + std::to_string(seconds) + " s, since: " + step_;
  }

  // Reads what there is; `line` is called with each. Notices the end.
  template <typename Line>
  void read(const Line& line) {
    char buffer[4096];
    const ssize_t bytes = ::read(reports_, buffer, sizeof buffer);
    if (bytes <= 0) return wait();
    heard_ = Clock::now();
    text_.append(buffer, static_cast<std::size_t>(bytes));
    for (std::size_t end; (end = text_.find('\n')) != text_.npos; text_.erase(0, end + 1)) {
      const std::string one = text_.substr(0, end);
      if (one.starts_with("step ")) step_ = one.substr(5);
      line(one);
    }
  }

 private:
  void wait() {
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = 0;
    if (WIFSIGNALED(status))
      death_ = "rank " + std::to_string(rank_) + " ended by signal " +
               std::to_string(WTERMSIG(status)) + " in: " + step_;
    else if (WEXITSTATUS(status) != 0)
      death_ = "rank " + std::to_string(rank_) + " ended with " +
               std::to_string(WEXITSTATUS(status)) + " in: " + step_;
  }

  const int rank_;
  pid_t process_ = 0;
  int reports_ = -1;
  std::string text_, step_ = "starting", death_;
  Clock::time_point heard_ = Clock::now();
};

// Counts the ranks that are through with each test.
class Tally {
 public:
  explicit Tally(const Launch& launch)
      : launch_(launch),
        at_(static_cast<std::size_t>(launch.ranks), 0),
        tests_(launch.tests.size()) {}

  void hear(int rank, const std::string& line) {
    std::size_t& at = at_[static_cast<std::size_t>(rank)];
    if (line.starts_with("begin ")) {
      at = std::strtoul(line.c_str() + 6, nullptr, 10);
      begun_ = true;
    }
    if (line.starts_with("fail ") && at < tests_.size())
      tests_[at].failures.push_back("rank " + std::to_string(rank) + ": " + line.substr(5));
    if (!line.starts_with("end ") || at >= tests_.size()) return;
    tests_[at].steps = std::atoi(line.c_str() + line.rfind(' '));
    if (++tests_[at].ranks == launch_.ranks) finish();
  }
  // The ranks are gone. `why`: a line for each where they did not go by themselves.
  Counts end(const std::vector<std::string>& why) {
    if (counts_.done == tests_.size()) {
      if (!why.empty()) {
        print("FAILED the end", why);
        ++counts_.failed;
      }
      return counts_;
    }
    std::vector<std::string>& failures = tests_[counts_.done].failures;
    failures.insert(failures.end(), why.begin(), why.end());
    if (why.empty()) failures.emplace_back("not all ranks have come to it");
    finish();
    // Whoever has not come to the first will not come to the others.
    for (; !begun_ && counts_.done < tests_.size(); ++counts_.done) ++counts_.failed;
    return counts_;
  }

 private:
  struct Test {
    int ranks = 0, steps = 0;
    std::vector<std::string> failures;
  };

  void print(const std::string& head, const std::vector<std::string>& failures) {
    constexpr std::size_t kPrinted = 12;
    std::printf("%s %s\n", head.c_str(), launch_.context.c_str());
    for (std::size_t i = 0; i < std::min(failures.size(), kPrinted); ++i)
      std::printf("  %s\n", failures[i].c_str());
    if (failures.size() > kPrinted) std::printf("  and %zu more\n", failures.size() - kPrinted);
    std::fflush(stdout);
  }
  void finish() {
    const Test& test = tests_[counts_.done];
    const std::string& name = launch_.tests[counts_.done++];
    if (!test.failures.empty()) {
      ++counts_.failed;
      return print("FAILED " + name, test.failures);
    }
    if (test.steps == 0) return;
    ++counts_.passed;
    print("ok     " + name + ", " + std::to_string(test.steps) + " steps", {});
  }

  const Launch& launch_;
  std::vector<std::size_t> at_;  // by rank
  std::vector<Test> tests_;
  bool begun_ = false;
  Counts counts_;
};

}  // namespace

Counts launch(const Launch& launch) {
  // How long ranks may outlive one that has died: they may have something to say too.
  constexpr auto kLast = std::chrono::seconds(2);
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < launch.ranks; ++rank)
    ranks.push_back(std::make_unique<Process>(launch, rank));
  Tally tally(launch);
  Clock::time_point end = Clock::time_point::max();
  bool broken = false;
  while (Clock::now() < end) {
    std::vector<pollfd> waiting;
    std::vector<int> who;
    for (int rank = 0; rank < launch.ranks; ++rank)
      if (!ranks[rank]->over()) {
        waiting.push_back({ranks[rank]->reports(), POLLIN, 0});
        who.push_back(rank);
      }
    if (waiting.empty()) break;
    poll(waiting.data(), waiting.size(), 200);
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      Process& process = *ranks[who[i]];
      if (waiting[i].revents != 0)
        process.read([&](const std::string& line) { tally.hear(who[i], line); });
      if (!broken && (!process.death().empty() || process.silence() > launch.limit)) {
        broken = true;
        end = Clock::now() + kLast;
      }
    }
  }
  std::vector<std::string> why;
  for (const auto& process : ranks)
    if (broken) why.push_back(process->where());
  return tally.end(why);
}

}  // namespace moeccl::gpu
