// Keeps up to a million ops, and writes them as JSON: slices on tracks, and arrows between the ends
// of messages.
#include "src/exec/trace.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

namespace moeccl {
namespace {

// Some 80 MB; a trace that nobody can open helps nobody.
constexpr std::size_t kMostEvents = 1'000'000;
// What overlaps on one track is drawn in rows below each other.
constexpr int kRowsPerTrack = 1000;

const char* nameOf(OpKind kind) {
  switch (kind) {
    case OpKind::send:
      return "send";
    case OpKind::recv:
      return "receive";
    case OpKind::copy:
      return "copy";
    case OpKind::reduce:
      return "reduce";
  }
  return "?";
}

bool isMessage(OpKind kind) { return kind == OpKind::send || kind == OpKind::recv; }

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

// Tracks of slices, in which each has a row where nothing else is under way.
class Trace::File {
 public:
  File(std::FILE* out, int rank) : out_(out), rank_(rank) {}

  void name(int track, const std::string& name) { names_[track] = name; }
  // Slices come in the order of their beginnings. `args`: members of a JSON object. Returns the
  // row.
  int slice(int track, const std::string& name, const char* category, Clock::time_point begin,
            Clock::time_point end, const std::string& args) {
    std::vector<Clock::time_point>& rows = busyUntil_[track];
    auto row = std::ranges::find_if(rows, [&](auto until) { return until <= begin; });
    const int at = track * kRowsPerTrack + static_cast<int>(row - rows.begin());
    if (row == rows.end()) {
      std::fprintf(out_,
                   ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,"
                   "\"args\":{\"name\":\"%s\"}}",
                   rank_, at, names_[track].c_str());
      row = rows.insert(rows.end(), end);
    }
    *row = end;
    const double from = microseconds(begin);
    std::fprintf(out_,
                 ",\n{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,"
                 "\"pid\":%d,\"tid\":%d,\"args\":{%s}}",
                 name.c_str(), category, from, microseconds(end) - from, rank_, at, args.c_str());
    return at;
  }
  // One end of an arrow, in a slice.
  void end(bool begins, const std::string& id, int row, Clock::time_point at) {
    std::fprintf(out_,
                 ",\n{\"ph\":\"%s\",\"name\":\"message\",\"cat\":\"message\",\"id\":\"%s\","
                 "\"bp\":\"e\",\"ts\":%.3f,\"pid\":%d,\"tid\":%d}",
                 begins ? "s" : "f", id.c_str(), microseconds(at), rank_, row);
  }

 private:
  std::FILE* const out_;
  const int rank_;
  std::map<int, std::string> names_;
  std::map<int, std::vector<Clock::time_point>> busyUntil_;  // by track, then by row
};

Trace::Trace(std::string path, int rank) : path_(std::move(path)), rank_(rank) {}

std::uint32_t Trace::label(const std::string& name) {
  const auto known = std::ranges::find(labels_, name);
  if (known == labels_.end()) labels_.push_back(name);
  return static_cast<std::uint32_t>(std::ranges::find(labels_, name) - labels_.begin());
}

void Trace::add(std::uint32_t label, const TagFields& tag, const Plan& plan, const Done& done) {
  if (events_.size() == kMostEvents) {
    ++left_;
    return;
  }
  const Op& what = plan.ops[static_cast<std::size_t>(done.op)];
  events_.push_back({done, label, tag.comm, tag.call, tag.part, what.step, what.lane, what.kind});
}

std::vector<std::size_t> Trace::inOrder() const {
  std::vector<std::size_t> order(events_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return events_[i].done.begin; });
  return order;
}

// Track 0: each call from its first op to its last.
void Trace::writeCalls(File& file) const {
  struct Span {
    Clock::time_point begin, end;
    std::uint32_t label;
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, Span> calls;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> order;
  for (const std::size_t i : inOrder()) {
    const Event& event = events_[i];
    const auto [at, isNew] = calls.try_emplace({event.comm, event.call},
                                               Span{event.done.begin, event.done.end, event.label});
    if (isNew) order.push_back(at->first);
    at->second.end = std::max(at->second.end, event.done.end);
  }
  file.name(0, "calls");
  for (const auto& call : order) {
    const Span& span = calls[call];
    file.slice(0, labels_[span.label], "call", span.begin, span.end,
               "\"communicator\":" + std::to_string(call.first) +
                   ",\"call\":" + std::to_string(call.second));
  }
}

// A track for each lane, named after what its ops do.
void Trace::writeOps(File& file) const {
  std::map<int, std::set<OpKind>> kinds;
  for (const Event& event : events_) kinds[event.lane].insert(event.kind);
  for (const auto& [lane, its] : kinds) {
    std::string name = "lane " + std::to_string(lane);
    for (const OpKind kind : its)
      name += std::string(kind == *its.begin() ? ": " : ", ") + nameOf(kind);
    file.name(1 + lane, name);
  }
  for (const std::size_t i : inOrder()) {
    const Event& event = events_[i];
    const Done& done = event.done;
    const auto number = [](auto value) { return std::to_string(value); };
    std::string name = nameOf(event.kind);
    if (event.kind == OpKind::send) name += " to " + number(done.peer);
    if (event.kind == OpKind::recv) name += " from " + number(done.peer);
    const int row = file.slice(
        1 + event.lane, name, labels_[event.label].c_str(), done.begin, done.end,
        "\"collective\":\"" + labels_[event.label] + "\",\"communicator\":" + number(event.comm) +
            ",\"call\":" + number(event.call) + ",\"op\":" + number(done.op) +
            ",\"step\":" + number(event.step) + ",\"bytes\":" + number(done.bytes));
    if (!isMessage(event.kind)) continue;
    const bool sends = event.kind == OpKind::send;
    std::string id;
    for (const auto part : {static_cast<int>(event.comm), static_cast<int>(event.call),
                            static_cast<int>(event.part), static_cast<int>(event.lane),
                            sends ? rank_ : done.peer, sends ? done.peer : rank_, done.message})
      id += (id.empty() ? "" : ".") + number(part);
    // What is in the middle of a slice is certainly in it.
    file.end(sends, id, row, done.begin + (done.end - done.begin) / 2);
  }
}

bool Trace::write() const {
  const std::unique_ptr<std::FILE, CloseFile> out(std::fopen(path_.c_str(), "w"));
  if (!out) return false;
  std::fprintf(
      out.get(),
      "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d%s\"}}",
      rank_, rank_, left_ > 0 ? (", " + std::to_string(left_) + " ops left out").c_str() : "");
  File file(out.get(), rank_);
  writeCalls(file);
  writeOps(file);
  std::fputs("\n]\n", out.get());
  return std::fflush(out.get()) == 0 && std::ferror(out.get()) == 0;
}

}  // namespace moeccl
