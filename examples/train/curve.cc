// Writes the file and the terminal's lines.
#include "curve.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <iomanip>
#include <limits>

#include "checkpoint.h"

namespace train {
namespace {

constexpr const char* kHeader = "step,loss,divergence,auxiliary_loss,dropped,imbalance";

// The lines of an earlier run that a run which begins after step `done` leaves as they are.
std::string keptOf(const std::string& path, std::int64_t done) {
  std::string kept = std::string(kHeader) + "\n", line;
  std::ifstream old(path);
  if (done == 0 || !std::getline(old, line) || line != kHeader) return kept;
  while (std::getline(old, line)) {
    std::int64_t step = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
    // A line without an end is what a kill has left of it.
    if (error == std::errc() && *end == ',' && step <= done && !old.eof()) kept += line + "\n";
  }
  return kept;
}

}  // namespace

std::string Log::open(const std::string& path, std::int64_t done) {
  path_ = path;
  if (path.empty()) return "";
  const std::string wrong = replaceFile(path, keptOf(path, done));
  if (!wrong.empty()) return wrong;
  file_.open(path, std::ios::app);
  return file_ ? "" : "cannot write --log " + path + ": " + std::strerror(errno);
}

std::string Log::add(const Point& point) {
  if (path_.empty()) return "";
  file_ << point.step << std::setprecision(std::numeric_limits<double>::max_digits10) << ','
        << point.loss << ',' << point.divergence << ',' << point.auxiliaryLoss << ','
        << point.dropped << ',' << point.imbalance << std::endl;
  return file_ ? "" : "cannot write --log " + path_ + ": " + std::strerror(errno);
}

void Progress::print(const Point& point) {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begun_;
  const double perStep = passed.count() / static_cast<double>(point.step - done_);
  std::printf(
      "step %lld of %lld: loss %.4f, %.0f tokens/s, %.0f s left; %.1f %% of choices dropped, "
      "busiest expert %.2f times the mean\n",
      static_cast<long long>(point.step), static_cast<long long>(steps_), point.loss,
      static_cast<double>(tokensPerStep_) / perStep,
      perStep * static_cast<double>(steps_ - point.step), 100 * point.dropped, point.imbalance);
  std::fflush(stdout);
}

}  // namespace train
