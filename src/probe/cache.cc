#include "src/probe/cache.h"

#include <array>
#include <filesystem>
#include <span>
#include <system_error>

#include "src/bootstrap/digest.h"
#include "src/error.h"
#include "src/text.h"

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
                                  const Fingerprint& mine) {
  if (folder.empty()) return std::nullopt;
  try {
    const std::string file = probedFile(folder, cluster);
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(file);
    if (age > kProbeExpires) return std::nullopt;
    Profile profile = loadProfile(file);
    if (!profile.links || !differences(mine, profile.fingerprint).empty()) return std::nullopt;
    return profile;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void saveProbed(const std::string& folder, std::string_view cluster, const Profile& profile) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw Error(moecclSystemError, stringf("%s: %s", folder.c_str(), error.message().c_str()));
  saveProfile(profile, probedFile(folder, cluster));
}

}  // namespace moeccl
