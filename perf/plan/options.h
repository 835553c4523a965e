// What moeccl-plan is asked to do.
#pragma once

#include <moeccl/model.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "perf/common/tool.h"

namespace moeccl::perf::plan {

inline constexpr int kMostRanks = 1 << 12;

struct Options {
  std::string collective;         // as in MOECCL_ALGO
  std::string algorithm;          // "bruck:radix=4"; empty: the one that is listed first
  std::vector<int> ranksPerNode;  // either this
  std::vector<int> nodeOfRank;    // or this
  moecclGridShape_t grid = {0, 0, 0, moecclOrderEspEp};  // zeros: none
  int experts = 1;                                       // of each rank
  int rank = -1;                                         // below 0: all
  bool list = false;                                     // of collectives and algorithms
  bool verify = false;
  bool quiet = false;            // no ops
  std::string dotFile, svgFile;  // empty: none
  std::string schedule;          // "S1": both of its passes instead of a collective's plans
  bool dropless = false, residual = false, tokenRouting = false;
  int chunks = 1;
};

Parsed<Options> parseOptions(int argc, const char* const* argv);

struct NamedLinks {
  std::string_view name;
  moecclLinks_t links;
};
inline constexpr std::array kLinks = {NamedLinks{"host", moecclLinksHost},
                                      NamedLinks{"nvlink", moecclLinksNvlink},
                                      NamedLinks{"pcie", moecclLinksPcie}};

// What moeccl-plan predict is asked to do.
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

}  // namespace moeccl::perf::plan
