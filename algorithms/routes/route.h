// Token routing: every choice of a token by a gate brings the token's row to the ranks that hold
// the chosen expert, and brings a row back. What a rank knows of a routing are values, and so are
// the plans that move the rows (routes/plans.h). Nothing here communicates.
//
// The rows that a rank, their source, has for experts on one node go to one rank, their relay,
// which may be the source itself. The relay hands them on to the ranks of that node. On the way
// back it adds up what came from the node for each row. So an algorithm is two answers: who is the
// relay, and whether a rank gets a row for each choice or one for all.
//
// Sums. What comes back for a token is added node by node: by expert and, of one expert, by shard.
// Each node's sum is rounded to the datatype of the rows. Then the sums of nodes are added by
// number, and rounded. No algorithm changes that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "algorithms/grid.h"
#include "algorithms/topology.h"

namespace moeccl::routes {

struct Way {
  // The relay of the rows that `source` has for experts on `node`: the source itself, or a rank of
  // that node. On the source's own node the relay is always the source, and this function is not
  // called.
  int (*relay)(const Topology&, int source, int node);
  // Whether a rank gets a token once for each of its choices there, instead of once.
  bool rowPerChoice = false;
};

struct RouteAlgorithm {
  std::string_view name;         // "node"
  std::string_view description;  // one line
  Way (*way)();
};

// Generated from algorithms/meson.build, like the registry of algorithms of collectives.
std::span<const RouteAlgorithm> routeAlgorithms();
// nullptr where there is none of that name.
const RouteAlgorithm* findRouteAlgorithm(std::string_view name);

// Rows name their experts in 15 bits.
inline constexpr int kMostExperts = 1 << 15;
// Of a token.
inline constexpr int kMostChoices = 128;

// Which EP position holds which experts: consecutive ones, and the first `count` % N_EP positions
// one more than others.
struct Experts {
  Grid grid;
  int count = 1;

  int begin(int position) const {
    const int share = count / grid.ep, longer = count % grid.ep;
    return position * share + (position < longer ? position : longer);
  }
  int positionOf(int expert) const {
    const int share = count / grid.ep, longer = count % grid.ep;
    const int inLonger = longer * (share + 1);
    return expert < inLonger ? expert / (share + 1) : longer + (expert - inLonger) / share;
  }
};

// Which rows take which way, of one rank.
struct Paths {
  // By node: the sources whose rows for it this rank is the relay of, ascending.
  std::vector<std::vector<int>> relayed;
  // The relays of this rank's node, ascending, and their sources.
  std::vector<std::pair<int, std::vector<int>>> relays;
};
// A relay that is not as Way says throws std::invalid_argument.
int relayOf(const Topology& topology, const Way& way, int source, int node);
Paths pathsOf(const Topology& topology, const Way& way, int rank);
// Whether rows go by other ranks than their source: the same of all ranks.
bool hasRelays(const Topology& topology, const Way& way);

// Rows that one rank gets from another, and the experts of each. Rows come chunk by chunk, in a
// chunk source by source, of a source in the order of its tokens. Chunk i are the tokens [i *
// tokens / chunks, ...) of each source.
struct RowList {
  static constexpr std::uint16_t kFirst = 1 << 15;  // marks the first expert of a row

  int chunks = 1, sources = 1;
  std::vector<std::int32_t> counts;    // [chunks][sources] rows
  std::vector<std::uint16_t> experts;  // row after row, ascending in each
  std::vector<float> weights;          // of these; or none

  std::int32_t entries() const { return static_cast<std::int32_t>(experts.size()); }
  int expert(std::int32_t entry) const { return experts[entry] & (kFirst - 1); }

  // Leaves a list without entries.
  void clear(int chunksNow, int sourcesNow);
};
// As bytes; a list without entries takes none.
std::size_t packedBytes(int chunks, int sources, std::int64_t entries, bool weighted);
// With the weights, where it has any and they are wanted.
void pack(const RowList& list, bool weighted, std::byte* to);
// Sets a list, whose memory is used again. Throws std::invalid_argument where `from` is no list of
// rows of experts below `experts`.
void unpack(std::span<const std::byte> from, int chunks, int sources, std::int64_t entries,
            bool weighted, int experts, RowList* list);

// A RowList, and where its rows and chunks begin.
struct IndexedRows {
  RowList list;
  // The beginning of each row among the entries, and the end of the last; the same for chunks,
  // among rows.
  std::vector<std::int32_t> rowBegins, chunkBegins;

  IndexedRows() = default;
  explicit IndexedRows(RowList rows);
  // Makes them as the list is now.
  void index();
  void reserve(std::size_t entries);
  std::int32_t rows() const { return static_cast<std::int32_t>(rowBegins.size()) - 1; }
};

// The ranks that hold shards of the experts at a position, by node, in the order of shards.
class Holders {
 public:
  Holders(const Topology& topology, const Grid& grid);
  const std::vector<int>& nodesOf(int position) const { return nodesOf_[position]; }
  const std::vector<int>& ranks(int position, int node) const {
    return byNode_[static_cast<std::size_t>(position) * nodes_ + node];
  }

 private:
  int nodes_;
  std::vector<std::vector<int>> byNode_;
  std::vector<std::vector<int>> nodesOf_;
};

// Home, Relay and Here are what is known of one routing. Each can be filled again, and allocates
// nothing then but what its memory must grow by.

// The choices of a rank's own tokens, by node of the experts.
class Home {
 public:
  // Makes one without tokens, with room for `room`.
  Home(const Topology& topology, const Experts& experts, int choices, std::int32_t room);
  // `experts` and `weights`: [tokens][choices]; expert -1: none. No weights: nullptr.
  Home(const Topology& topology, const Experts& experts, const std::int32_t* chosen,
       const float* weights, std::int32_t tokens, int choices);
  void fill(const std::int32_t* chosen, const float* weights, std::int32_t tokens);

  struct Share {
    IndexedRows rows;
    std::vector<std::int32_t> tokens;   // by row
    std::vector<std::int32_t> choices;  // by entry: token * choices + choice
    std::int64_t legs = 0;              // rows where each choice, and each shard, gets its own
    std::int64_t ranks = 0;             // where each rank gets one for a token
  };
  // Cuts the tokens into chunks.
  void cut(int chunks);

  std::int32_t tokens() const { return tokens_; }
  int choices() const { return choices_; }
  const Share& of(int node) const { return shares_[node]; }
  // How many nodes hold experts of a token.
  int nodesOf(std::int32_t token) const { return nodes_[token]; }
  // The choices that a rank gets: token * choices + choice; token by token, by expert.
  const std::vector<std::int32_t>& choicesFor(int rank) const { return choicesFor_[rank]; }

 private:
  Experts experts_;
  Holders holders_;
  std::int32_t tokens_ = 0;
  int choices_;
  std::vector<Share> shares_;         // by node
  std::vector<std::uint16_t> nodes_;  // by token
  std::vector<std::vector<std::int32_t>> choicesFor_;
  std::vector<std::int32_t> kept_;       // choices of a token, by expert
  std::vector<std::int32_t> lastToken_;  // that each rank gets
};

// What a rank hands on as the relay of its own rows and of others'.
class Relay {
 public:
  struct Source {
    int rank, node;
    IndexedRows rows;
    // What comes back for a row, in the order of the sum: entries [termBegins[row], termBegins[row
    // + 1]) of terms.
    std::vector<std::int32_t> termBegins;
    struct Term {
      std::int32_t destination, entry;  // of `destinations`, and of its rows
    };
    std::vector<Term> terms;
  };
  struct Destination {
    int rank, node;
    IndexedRows rows;
    struct Origin {
      std::int32_t source, row;  // of `sources`, and of its rows
    };
    std::vector<Origin> origins;  // by row
  };

  // Lists of others: lists[i] is of the i-th of Paths::relayed of the rank's own node; its own is
  // not looked at.
  Relay(const Topology& topology, const Experts& experts, const Way& way, const Paths& paths,
        int rank, const Home& home, std::vector<RowList> lists);
  // Makes one without rows, with room for `room` tokens of `choices` each from every source.
  Relay(const Topology& topology, const Experts& experts, const Way& way, const Paths& paths,
        int rank, std::int32_t room, int choices);
  // Whether the experts of a source's rows are on its node.
  bool canHandOn(const Source& source) const;
  // When the rows of other sources have been set.
  void fill(const Home& home);

  std::vector<Source> sources;
  std::vector<Destination>
      destinations;  // ranks ascending; those of all nodes that it is a relay for
  const Destination* to(int rank) const;

 private:
  void add(Source& source, std::size_t index, std::int32_t row, std::size_t cell);

  Experts experts_;
  Holders holders_;
  bool rowPerChoice_;
  int rank_, nodes_;
  std::vector<std::int32_t> destinationOf_;  // by rank; -1: none
  std::vector<std::size_t> firstSource_;     // by node
};

// What comes to a rank's own experts. A place is a row of its own for each choice, by expert, then
// by source, then in the order of tokens. The places of each expert begin at a multiple of an
// alignment; those that this leaves between them are padding.
class Here {
 public:
  struct From {
    int rank;
    IndexedRows rows;
    std::vector<std::int32_t> places;  // by entry
  };
  // lists[i] is of the i-th of Paths::relays.
  Here(const Experts& experts, const Paths& paths, int rank, int ranks, std::vector<RowList> lists,
       std::int64_t alignment = 1);
  // Makes one without rows, with room for `room` tokens of `choices` each from every source.
  Here(const Experts& experts, const Paths& paths, int rank, int ranks, std::int32_t room,
       int choices);
  // Whether all of its experts are here.
  bool holds(const RowList& list) const;
  // When the rows of `from` have been set.
  void fill();

  std::vector<From> from;
  std::vector<std::int64_t> expertBegins;  // [local experts + 1] places
  std::vector<std::int32_t> padding;       // places that nothing comes to
  std::vector<float> weights;              // by place, or none
  // By source: the places of its choices, token by token.
  std::vector<std::vector<std::int32_t>> ofSource;

  std::int64_t rows() const { return expertBegins.back(); }
  // Rows of one of the rank's own experts that come from a rank.
  std::int64_t rowsOf(std::size_t localExpert, int source) const;
  // Sets counts [localExperts][ranks] to these.
  void rankCounts(int ranks, std::int64_t* counts) const;

 private:
  template <typename Visit>
  void each(const Visit& visit);

  int firstExpert_;
  std::size_t localExperts_;
  std::int64_t alignment_ = 1;
  std::vector<std::vector<int>> sources_;  // of each of `from`
  std::vector<std::int32_t> next_;         // places, by local expert and source
};

}  // namespace moeccl::routes
