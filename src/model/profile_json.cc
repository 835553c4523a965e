// The file of a profile. Objects may have members that are not named here: they are ignored, and
// are not kept when the profile is written again.
//
//   {"schema": "moeccl-profile", "schemaVersion": 2,
//    "fingerprint": {"ranksPerNode": [4, 4], "processor": "...", "processorsPerNode": 8,
//                    "transport": "ucx 1.13.1", "library": "0.1.0",
//                    "network": "1000 Mb/s MTU 1500"},
//    "date": "...", "command": "...", "duration": 120.5, "doubts": ["..."],
//    "curves": [{"collective": "alltoall", "algorithm": "...", "where": "2x4",
//                "fit": {"alpha": 1e-05, "beta": 8e-10,
//                        "r2": 0.99, "medianError": 0.01, "worstError": 0.04},
//                "beyond": 9e-10,
//                "samples": [{"bytes": 1024, "seconds": 1.1e-05, "spread": 0.02}]}],
//    "local": {"forward": {"fit": {"seconds": {"layer": 0, "gate": 1e-10, ..., "moves": 0},
//                                  "r2": 0.99, "medianError": 0.01, "worstError": 0.04},
//                          "samples": [{"tokens": 512, "embedding": 64, "hidden": 128,
//                                       "experts": 8, "choices": 2, "rows": 256,
//                                       "ownExperts": 8, "seconds": 0.01, "spread": 0}]},
//              "backward": {...}},
//    "links": {"costs": {"overheadInNode": 3e-07, ...}, "medianError": 0.2, "worstError": 0.9}}
//
// Seconds, bytes, and seconds per byte (beta) and per product or element (local). Fits are taken as
// they are; those who change samples by hand call for new ones (Profile::refit). "duration",
// "doubts", "beyond", "local", its passes, "links" (src/model/links.h) and "network" may be
// missing.
#include <cmath>
#include <limits>
#include <utility>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/model/json_reader.h"
#include "src/model/json_tree.h"
#include "src/model/profile.h"

namespace moeccl {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "moeccl-profile";
constexpr int kSchemaVersion = 2;
constexpr JsonLimits kLimits = {
    .bytes = kMaxProfileBytes, .depth = 16, .values = std::size_t{2} << 20, .textBytes = 65536};
constexpr std::size_t kMaxNodes = 1 << 20, kMaxCurves = 1 << 16, kMaxSamples = 1 << 16,
                      kMaxDoubts = 1 << 16;
constexpr int kMaxCount = std::numeric_limits<int>::max();
// Bounds coefficients, errors and what local work is made of, which keeps predictions finite. (Less
// than one byte or product would make coefficients of samples that are beyond it.)
constexpr double kMaxCoefficient = 1e30;

constexpr std::pair<const char*, double LocalWork::*> kWork[] = {
    {"tokens", &LocalWork::tokens},        {"embedding", &LocalWork::embedding},
    {"hidden", &LocalWork::hidden},        {"experts", &LocalWork::experts},
    {"choices", &LocalWork::choices},      {"rows", &LocalWork::rows},
    {"ownExperts", &LocalWork::ownExperts}};
constexpr std::pair<const char*, Pass> kPasses[] = {{"forward", Pass::forward},
                                                    {"backward", Pass::backward}};

// ---------------------------------------------------------------------------------------- reading

FitAgreement readAgreement(const JsonReader& fit) {
  return {fit["r2"].number(-kMaxCoefficient, 1), fit["medianError"].number(0, kMaxCoefficient),
          fit["worstError"].number(0, kMaxCoefficient)};
}

Fit readFit(const JsonReader& from) {
  return {{from["alpha"].number(0, kMaxCoefficient), from["beta"].number(0, kMaxCoefficient)},
          readAgreement(from)};
}

double readSeconds(const JsonReader& sample) {
  return sample["seconds"].number(kMinSeconds, kMaxSeconds);
}

double readSpread(const JsonReader& sample) { return sample["spread"].number(0, kMaxSpread); }

Curve readCurve(const JsonReader& from) {
  Curve curve;
  curve.key = {from["collective"].text(), from["algorithm"].text(), from["where"].text()};
  curve.fit = readFit(from["fit"]);
  curve.samples = from["samples"].list(1, kMaxSamples, [](const JsonReader& sample) {
    return Point{sample["bytes"].amount(kMaxSize), readSeconds(sample), readSpread(sample)};
  });
  if (from.has("beyond")) curve.beyond = from["beyond"].number(0, kMaxCoefficient);
  return curve;
}

Local readLocal(const JsonReader& from) {
  Local local;
  local.samples = from["samples"].list(1, kMaxSamples, [](const JsonReader& sample) {
    LocalSample read{{}, readSeconds(sample), readSpread(sample)};
    for (const auto& [name, field] : kWork) read.work.*field = sample[name].amount(kMaxCoefficient);
    return read;
  });
  const JsonReader fit = from["fit"];
  const JsonReader coefficients = fit["seconds"];
  for (const char* name : kLocalFeatureNames)
    local.fit.coefficients.push_back(coefficients[name].number(0, kMaxCoefficient));
  local.fit.agreement = readAgreement(fit);
  return local;
}

LinkFit readLinks(const JsonReader& from) {
  LinkFit fit;
  const JsonReader costs = from["costs"];
  for (const auto& [name, cost] : kLinkNames)
    fit.links.*cost = costs[name].number(0, kMaxCoefficient);
  fit.medianError = from["medianError"].number(0, kMaxCoefficient);
  fit.worstError = from["worstError"].number(0, kMaxCoefficient);
  return fit;
}

Fingerprint readFingerprint(const JsonReader& from) {
  Fingerprint fingerprint;
  fingerprint.ranksPerNode = from["ranksPerNode"].list(
      1, kMaxNodes, [](const JsonReader& ranks) { return ranks.integer(1, kMaxCount); });
  fingerprint.processor = from["processor"].text();
  fingerprint.processorsPerNode = from["processorsPerNode"].integer(1, kMaxCount);
  fingerprint.transport = from["transport"].text();
  fingerprint.library = from["library"].text();
  if (from.has("network")) fingerprint.network = from["network"].text();
  return fingerprint;
}

void checkSchema(const JsonReader& root) {
  if (root["schema"].text() != kSchema)
    root["schema"].fail("is \"" + root["schema"].text() + "\", not \"" + kSchema +
                        "\": this is another kind of file");
  const int version = root["schemaVersion"].integer(0, kMaxCount);
  if (version != kSchemaVersion)
    root["schemaVersion"].fail(stringf("is %d; this library reads %d", version, kSchemaVersion));
}

// ---------------------------------------------------------------------------------------- writing

// Digits that mean the same double; of whole numbers without ".0".
std::string shown(double value) {
  if (value > 0 && value < 1e15 && value == std::floor(value))
    return std::to_string(static_cast<long long>(value));
  return value == 0 && !std::signbit(value) ? "0" : json(value).dump();
}
std::string shown(const std::string& text) { return json(text).dump(); }

// "NAME": VALUE, "NAME": VALUE
template <typename Value>
std::string field(std::string_view name, const Value& value) {
  return '"' + std::string(name) + "\": " + shown(value);
}
template <typename Value, typename... More>
std::string field(std::string_view name, const Value& value, const More&... more) {
  return field(name, value) + ", " + field(more...);
}
std::string features(const std::vector<double>& values) {
  std::string text;
  for (std::size_t i = 0; i < kLocalFeatures; ++i)
    text += (i ? ", " : "") + field(kLocalFeatureNames[i], values.at(i));
  return text;
}

std::string printAgreement(const FitAgreement& agreement) {
  return field("r2", agreement.r2, "medianError", agreement.medianError, "worstError",
               agreement.worstError) +
         "}";
}

// [
//  ITEM,
//  ITEM]
template <typename Items, typename Print>
std::string printList(const Items& items, const std::string& indent, Print print) {
  std::string text = "[";
  for (const auto& item : items) text += (text.size() == 1 ? "\n" : ",\n") + indent + print(item);
  return text + "]";
}

std::string printTimes(double seconds, double spread) {
  return field("seconds", seconds, "spread", spread) + "}";
}

std::string printCurve(const Curve& curve) {
  const auto sample = [](const Point& point) {
    return '{' + field("bytes", point.x) + ", " + printTimes(point.seconds, point.spread);
  };
  const CurveKey& key = curve.key;
  const Line& line = curve.fit.line;
  return '{' + field("collective", key.collective, "algorithm", key.algorithm, "where", key.where) +
         ",\n   \"fit\": {" + field("alpha", line.alpha, "beta", line.beta) + ", " +
         printAgreement(curve.fit.agreement) +
         (curve.beyond > 0 ? ",\n   " + field("beyond", curve.beyond) : "") +
         ",\n   \"samples\": " + printList(curve.samples, "    ", sample) + "}";
}

std::string printLocal(const Local& local) {
  const auto sample = [](const LocalSample& s) {
    std::string text = "{";
    for (const auto& [name, part] : kWork) text += field(name, s.work.*part) + ", ";
    return text + printTimes(s.seconds, s.spread);
  };
  return "{\n   \"fit\": {\"seconds\": {" + features(local.fit.coefficients) + "}, " +
         printAgreement(local.fit.agreement) +
         ",\n   \"samples\": " + printList(local.samples, "    ", sample) + "}";
}

std::string printLinks(const LinkFit& fit) {
  std::string costs;
  for (const auto& [name, cost] : kLinkNames)
    costs += (costs.empty() ? "\n   " : ",\n   ") + field(name, fit.links.*cost);
  return "{\"costs\": {" + costs + "},\n  " +
         field("medianError", fit.medianError, "worstError", fit.worstError) + '}';
}

std::string printFingerprint(const Fingerprint& fingerprint) {
  return "{\"ranksPerNode\": " + json(fingerprint.ranksPerNode).dump() +
         ",\n  \"processor\": " + shown(fingerprint.processor) +
         ",\n  \"processorsPerNode\": " + std::to_string(fingerprint.processorsPerNode) +
         ",\n  \"transport\": " + shown(fingerprint.transport) +
         ",\n  \"library\": " + shown(fingerprint.library) +
         (fingerprint.network.empty() ? "" : ",\n  \"network\": " + shown(fingerprint.network)) +
         "}";
}

std::string print(const Profile& profile) {
  std::string locals;
  for (const auto& [name, pass] : kPasses)
    if (const Local* local = profile.local(pass))
      locals +=
          (locals.empty() ? "\n  \"" : ",\n  \"") + std::string(name) + "\": " + printLocal(*local);
  const auto doubt = [](const std::string& text) { return shown(text); };
  return "{\"schema\": " + shown(kSchema) +
         ",\n \"schemaVersion\": " + std::to_string(kSchemaVersion) +
         ",\n \"fingerprint\": " + printFingerprint(profile.fingerprint) +
         ",\n \"date\": " + shown(profile.date) + ",\n \"command\": " + shown(profile.command) +
         (profile.duration > 0 ? ",\n " + field("duration", profile.duration) : "") +
         (profile.doubts.empty() ? ""
                                 : ",\n \"doubts\": " + printList(profile.doubts, "  ", doubt)) +
         ",\n \"curves\": " + printList(profile.curves(), "  ", printCurve) + ",\n \"local\": {" +
         locals + "}" + (profile.links ? ",\n \"links\": " + printLinks(*profile.links) : "") +
         "}\n";
}

}  // namespace

Profile parseProfile(std::string_view text) {
  const json tree = parseJson(text, kLimits);
  const JsonReader root(tree);
  checkSchema(root);
  Profile profile;
  profile.fingerprint = readFingerprint(root["fingerprint"]);
  profile.date = root["date"].text();
  profile.command = root["command"].text();
  if (root.has("duration")) profile.duration = root["duration"].number(0, kMaxSeconds);
  if (root.has("doubts"))
    profile.doubts =
        root["doubts"].list(1, kMaxDoubts, [](const JsonReader& doubt) { return doubt.text(); });
  profile.setCurves(root["curves"].list(0, kMaxCurves, readCurve));
  if (root.has("local")) {
    const JsonReader local = root["local"];
    for (const auto& [name, pass] : kPasses)
      if (local.has(name)) profile.setLocal(pass, readLocal(local[name]));
  }
  if (root.has("links")) profile.links = readLinks(root["links"]);
  return profile;
}

// What cannot be read must not be written: reading it again finds what is wrong, and names it.
std::string printProfile(const Profile& profile) {
  std::string text;
  try {
    text = print(profile);
  } catch (const json::type_error&) {
    throw Error(moecclInvalidArgument, "a text in the profile is no UTF-8");
  }
  if (parseProfile(text) != profile)
    throw Error(moecclInternalError, "a profile is not what it was after writing and reading it");
  return text;
}

}  // namespace moeccl
