// What moeccl-predict is asked to do.
#pragma once

#include <moeccl/select.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "perf/common/tool.h"

namespace moeccl::perf {

struct NamedLinks {
  std::string_view name;
  moecclLinks_t links;
};
inline constexpr std::array kLinks = {NamedLinks{"host", moecclLinksHost},
                                      NamedLinks{"nvlink", moecclLinksNvlink},
                                      NamedLinks{"pcie", moecclLinksPcie}};

struct PredictOptions {
  std::vector<int> ranksPerNode;
  moecclMoeConfig_t layer = MOECCL_MOE_CONFIG_INITIALIZER;
  int nMp = 0;  // 0: all that divide the ranks
  moecclPass_t pass = moecclPassForward;
  std::string profileFile;                // empty: typical links
  moecclLinks_t links = moecclLinksHost;  // as in moecclCluster_t
  int networkGbits = 0;                   // without a profile, the same
  int nodesPerSwitch = 0;                 // as in moecclCluster_t
  double oversubscription = 1;
  int top = 20;  // lines; 0: all
  bool explain = false;
  std::string jsonFile;  // empty: none
};

Parsed<PredictOptions> parsePredictOptions(int argc, const char* const* argv);

}  // namespace moeccl::perf
