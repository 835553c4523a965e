// For libFuzzer: any text is either refused as an InvalidArgument, or a profile that can be written
// and read again without change, asked, and fitted anew.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "src/base/error.h"
#include "src/model/profile.h"
#include "tests/model/profile_sample.h"

namespace moeccl {
namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::abort();
}

void checkText(const Profile& profile) {
  const std::string text = printProfile(profile);
  const Profile again = parseProfile(text);
  require(again == profile, "a profile that was written and read is the same");
  require(printProfile(again) == text, "it is written the same again");
}

void checkFit(const Curve& curve) {
  std::vector<double> sizes{0, kMaxSize};
  for (const Point& point : curve.samples) sizes.push_back(point.x);
  std::ranges::sort(sizes);
  double before = 0;
  for (const double size : sizes) {
    const double seconds = curve.fit.at(size);
    require(std::isfinite(seconds), "predictions are finite");
    // Within rounding, as parseProfile allows.
    require(seconds >= before * (1 - 1e-8), "predictions never fall");
    before = seconds;
    const double corrected = curve.seconds(size);
    require(std::isfinite(corrected), "corrected predictions are finite");
    const auto after = std::ranges::upper_bound(curve.samples, size, {}, &Point::x);
    if (after == curve.samples.begin() || after == curve.samples.end() || after[-1].x == size) {
      require(corrected >= seconds / kMostCorrected * 0.999999, "corrections have bounds");
      // Beyond its samples a curve without slope grows with the bytes.
      require(corrected <= seconds * kMostCorrected * 1.000001 || size > curve.samples.back().x,
              "corrections have bounds");
      continue;
    }
    const auto [least, most] = std::minmax({curve.seconds(after[-1].x), curve.seconds(after->x)});
    require(corrected >= least * (1 - 1e-8) && corrected <= most * (1 + 1e-8),
            "predictions between two samples lie between theirs");
  }
}

void checkProfile(const Profile& profile) {
  for (const Curve& curve : profile.curves()) {
    checkFit(curve);
    const CurveKey& key = curve.key;
    require(profile.find(key.collective, key.algorithm, key.where) == &curve, "curves are found");
    const auto some = profile.curves(key.collective, key.where);
    require(&curve >= some.data() && &curve < some.data() + some.size(),
            "curves are found with those of other algorithms");
  }
  for (const Pass pass : {Pass::forward, Pass::backward})
    if (const Local* local = profile.local(pass))
      for (const LocalSample& sample : local->samples)
        require(local->fit.at(featuresOf(sample.work)) >= 0,
                "predictions of local work are not negative");
}

void check(const Profile& profile) {
  checkText(profile);
  checkProfile(profile);
  Profile fitted = profile;
  fitted.refit();
  checkProfile(fitted);
  checkText(fitted);
}

}  // namespace
}  // namespace moeccl

// What the fuzzer begins with, into the folder that it was given.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  const std::filesystem::path folder = (*arguments)[*count - 1];
  if (!std::filesystem::is_directory(folder)) return 0;
  using namespace moeccl;
  const Profile sample = sampleProfile();
  Profile empty;
  empty.fingerprint = sample.fingerprint;
  Profile one = empty;
  one.add({"a", "b", "c"}, {{1, 2e-6, 0}});
  std::ofstream(folder / "seed-sample") << printProfile(sample);
  std::ofstream(folder / "seed-empty") << printProfile(empty);
  std::ofstream(folder / "seed-one") << printProfile(one);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace moeccl;
  Profile profile;
  try {
    profile = parseProfile({reinterpret_cast<const char*>(data), size});
  } catch (const Error& error) {
    require(error.result() == moecclInvalidArgument, "what is wrong is an invalid argument");
    return 0;
  }
  check(profile);
  return 0;
}
