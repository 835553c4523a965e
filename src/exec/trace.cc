#include "src/exec/trace.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

namespace moeccl {
namespace {

// Some 80 MB; a trace that nobody can open helps nobody.
constexpr std::size_t kMostEvents = 1'000'000;
// Ops of one lane that overlap are drawn in rows below each other.
constexpr int kRowsPerLane = 1000;

const char* nameOf(OpKind kind) {
  switch (kind) {
    case OpKind::send:
      return "send to ";
    case OpKind::recv:
      return "receive from ";
    case OpKind::copy:
      return "copy";
    case OpKind::reduce:
      return "reduce";
  }
  return "?";
}

// Microseconds since 1970, so that the files of several processes fit together.
double microseconds(Trace::Clock::time_point time) {
  static const auto offset =
      std::chrono::system_clock::now().time_since_epoch() - Trace::Clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(time.time_since_epoch() + offset).count();
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

Trace::Trace(std::string path, int rank) : path_(std::move(path)), rank_(rank) {}

std::uint32_t Trace::label(const std::string& name) {
  const auto known = std::ranges::find(labels_, name);
  if (known == labels_.end()) labels_.push_back(name);
  return static_cast<std::uint32_t>(std::ranges::find(labels_, name) - labels_.begin());
}

void Trace::add(std::uint32_t label, std::uint32_t comm, std::uint32_t call, const Plan& plan,
                int op, std::size_t bytes, Clock::time_point begin, Clock::time_point end) {
  if (events_.size() == kMostEvents) {
    ++left_;
    return;
  }
  const Op& what = plan.ops[static_cast<std::size_t>(op)];
  events_.push_back(
      {begin, end, bytes, label, comm, call, what.peer, op, what.step, what.lane, what.kind});
}

bool Trace::write() const {
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path_.c_str(), "w"));
  if (!file) return false;
  std::FILE* const out = file.get();
  std::fprintf(
      out,
      "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d%s\"}}",
      rank_, rank_, left_ > 0 ? (", " + std::to_string(left_) + " ops left out").c_str() : "");

  std::vector<std::size_t> order(events_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return events_[i].begin; });
  std::map<int, std::vector<Clock::time_point>> busyUntil;  // by lane, then by row
  for (const std::size_t i : order) {
    const Event& event = events_[i];
    std::vector<Clock::time_point>& rows = busyUntil[event.lane];
    auto row = std::ranges::find_if(rows, [&](auto until) { return until <= event.begin; });
    const int track = event.lane * kRowsPerLane + static_cast<int>(row - rows.begin());
    if (row == rows.end()) {
      std::fprintf(out,
                   ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,"
                   "\"args\":{\"name\":\"lane %d\"}}",
                   rank_, track, event.lane);
      row = rows.insert(rows.end(), event.end);
    }
    *row = event.end;
    const double begin = microseconds(event.begin), end = microseconds(event.end);
    const bool message = event.kind == OpKind::send || event.kind == OpKind::recv;
    std::fprintf(out,
                 ",\n{\"ph\":\"X\",\"name\":\"%s%s\",\"cat\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,"
                 "\"pid\":%d,\"tid\":%d,\"args\":{\"collective\":\"%s\",\"communicator\":%u,"
                 "\"call\":%u,\"op\":%d,\"step\":%d,\"bytes\":%zu}}",
                 nameOf(event.kind), message ? std::to_string(event.peer).c_str() : "",
                 labels_[event.label].c_str(), begin, end - begin, rank_, track,
                 labels_[event.label].c_str(), event.comm, event.call, event.op, event.step,
                 event.bytes);
  }
  std::fputs("\n]\n", out);
  return std::fflush(out) == 0 && std::ferror(out) == 0;
}

}  // namespace moeccl
