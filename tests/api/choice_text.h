// What layers and routes that learn save of their choice, and how to make them change it: what they
// would measure is in no test's hands, so texts tell them that a schedule takes no time at all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "moeccl/moe.h"
#include "moeccl/route.h"
#include "tests/api/results.h"

namespace moeccl::test {

constexpr int kPeriod = 16;  // steps
constexpr int kChange =
    4 * kPeriod;  // at whose beginning one changes that believes so from the first
constexpr int kSteps = kChange + kPeriod / 2;

inline auto saveOf(moecclMoeLayer_t) { return moecclMoeLayerSaveChoice; }
inline auto saveOf(moecclRoute_t) { return moecclRouteSave; }
inline auto restoreOf(moecclMoeLayer_t) { return moecclMoeLayerRestoreChoice; }
inline auto restoreOf(moecclRoute_t) { return moecclRouteRestore; }

template <typename Function, typename Handle>
std::string textOf(Function function, Handle handle) {
  std::size_t bytes = 0;
  check(function(handle, nullptr, &bytes));
  std::string text(bytes, 'x');
  check(function(handle, text.data(), &bytes));
  checkThat(bytes == text.size() && text.back() == '\0', "size of the text");
  text.pop_back();
  return text;
}
template <typename Handle>
std::string saved(Handle handle) {
  return textOf(saveOf(handle), handle);
}

inline std::string currentOf(const std::string& text) {
  const std::string before = "current ";
  const std::size_t begin = text.find(before) + before.size();
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}
// The choice, but under that schedule.
inline std::string under(std::string text, const std::string& schedule) {
  const std::string current = "current " + currentOf(text);
  return text.replace(text.find(current), current.size(), "current " + schedule);
}
// All schedules that there may be, but the one that there is.
inline std::vector<std::string> othersOf(const std::string& text) {
  std::istringstream words(text.substr(text.find("alternatives ")));
  std::string word;
  words >> word;
  std::vector<std::string> all;
  while (words >> word && word != "current") all.push_back(word);
  std::erase(all, currentOf(text));
  return all;
}

// What has been learned, and that this schedule takes no time: a number for each phase of its
// passes, however many these are.
template <typename Handle>
void makeBelieve(Handle handle, const std::string& schedule) {
  const std::string learned = saved(handle);
  std::string numbers;
  for (int count = 1; count < 100; ++count) {
    numbers += " 1e-09";
    std::string text = learned;
    text.replace(text.rfind("end"), 3,
                 "evidence " + schedule + " sure " + std::to_string(count) + numbers + "\nend");
    if (restoreOf(handle)(handle, text.c_str()) == moecclSuccess) return;
  }
  checkThat(false, moecclGetLastError(nullptr));
}

// Every rank sees what the others ran under.
inline void checkSame(moecclComm_t comm, std::vector<std::int32_t> mine) {
  int ranks = 0;
  check(moecclCommCount(comm, &ranks), comm);
  std::vector<std::int32_t> all(mine.size() * static_cast<std::size_t>(ranks));
  check(moecclAllGather(mine.data(), all.data(), mine.size(), moecclInt32, comm, nullptr));
  for (std::size_t i = 0; i < all.size(); ++i)
    checkThat(all[i] == mine[i % mine.size()], "ranks ran under different schedules");
}

}  // namespace moeccl::test
