// Where probed links are kept: a file per cluster in the user's cache folder, a profile without
// samples. It counts for a week. One of another week, earlier or later, is old.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "src/comm/settings.h"
#include "src/model/profile.h"

namespace moeccl {

inline constexpr std::chrono::hours kProbeExpires{7 * 24};

// $XDG_CACHE_HOME/moeccl or $HOME/.cache/moeccl; "" where neither is set.
std::string cacheFolder(const Environment& environment = processEnvironment());

// `cluster`: what tells one cluster from another. Never throws: a file that is missing, old, of
// another cluster or no profile is nothing; `why` says so of one that is there.
std::optional<Profile> loadProbed(const std::string& folder, std::string_view cluster,
                                  const Fingerprint& mine, std::string* why = nullptr);
// Whether links serve other jobs: of as many samples as they have costs, which come out near them.
bool isWorthKeeping(const LinkFit& fit, std::size_t samples);
// Makes the folder if need be. Throws Error.
void saveProbed(const std::string& folder, std::string_view cluster, const Profile& profile);
// The file's path.
std::string probedFile(const std::string& folder, std::string_view cluster);

}  // namespace moeccl
