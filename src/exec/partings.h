// The peers to whom something may be left of what was sent to them (Transport::handedOver).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/exec/transport.h"

namespace moeccl {

class Partings {
 public:
  void reserve(std::size_t peers) { all_.reserve(peers); }
  void clear() { all_.clear(); }
  // Something has been sent to that rank of the transport, of which nothing was known.
  void addNew(int peer) { all_.push_back({peer, 0}); }
  // The same, where something may have been known.
  void add(int peer) {
    const auto known = std::ranges::find(all_, peer, &Parting::peer);
    if (known == all_.end())
      addNew(peer);
    else
      known->mark = 0;
  }
  void add(const Partings& others) {
    for (const Parting& each : others.all_) add(each.peer);
  }
  // Whether nothing is left. What is sent meanwhile does not count.
  bool over(Transport& transport) {
    std::erase_if(all_, [&](Parting& each) { return transport.handedOver(each.peer, &each.mark); });
    return all_.empty();
  }

 private:
  struct Parting {
    int peer;
    std::uint64_t mark;
  };
  std::vector<Parting> all_;
};

}  // namespace moeccl
