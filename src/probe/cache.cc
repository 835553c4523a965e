// Finds, loads and saves the file of probed links. Its name holds 8 bytes of a hash of the
// cluster's description; a file that is old, or of another fingerprint, is not used.
#include "src/probe/cache.h"

#include <array>
#include <filesystem>
#include <span>
#include <system_error>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/bootstrap/digest.h"

namespace moeccl {
namespace fs = std::filesystem;

std::string cacheFolder(const Environment& environment) {
  const auto folderIn = [&](const char* variable, const char* below) {
    const char* const folder = environment(variable);
    return folder == nullptr || *folder != '/' ? std::string() : std::string(folder) + below;
  };
  const std::string folder = folderIn("XDG_CACHE_HOME", "/moeccl");
  return folder.empty() ? folderIn("HOME", "/.cache/moeccl") : folder;
}

std::string probedFile(const std::string& folder, std::string_view cluster) {
  const Digest digest = sha256({std::as_bytes(std::span(cluster))});
  std::string name;
  for (std::size_t i = 0; i < 8; ++i) name += stringf("%02x", static_cast<unsigned>(digest[i]));
  return folder + "/links-" + name + ".json";
}

std::optional<Profile> loadProbed(const std::string& folder, std::string_view cluster,
                                  const Fingerprint& mine, std::string* why) {
  const auto no = [&](const std::string& reason) {
    if (why != nullptr) *why = reason;
    return std::nullopt;
  };
  if (folder.empty()) return std::nullopt;
  try {
    const std::string file = probedFile(folder, cluster);
    if (!fs::exists(file)) return std::nullopt;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(file);
    if (age > kProbeExpires || age < -kProbeExpires) return no("it is old");
    Profile profile = loadProfile(file);
    if (!profile.links) return no("it has no links");
    if (const std::string text = differences(mine, profile.fingerprint); !text.empty())
      return no(text);
    return profile;
  } catch (const std::exception& error) {
    return no(error.what());
  }
}

bool isWorthKeeping(const LinkFit& fit, std::size_t samples) {
  constexpr double kFarOff = 0.5;
  return samples >= kLinkCosts && fit.medianError <= kFarOff;
}

void saveProbed(const std::string& folder, std::string_view cluster, const Profile& profile) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw Error(moecclSystemError, stringf("%s: %s", folder.c_str(), error.message().c_str()));
  saveProfile(profile, probedFile(folder, cluster));
}

}  // namespace moeccl
