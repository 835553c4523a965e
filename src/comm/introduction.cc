// Ranks exchange where they run, and make the job's secret and its watch.
#include "src/comm/introduction.h"

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "src/bootstrap/cores.h"
#include "src/bootstrap/digest.h"
#include "src/bootstrap/rendezvous_wire.h"
#include "src/watch/local_watch.h"
#include "src/watch/mesh_watch.h"

namespace moeccl {
namespace {

// What each rank hands out. The job's secret is made of rank 0's nonce.
struct Card {
  HostIdentity host;
  Cores cores;
  Nonce nonce{};
};

// Others may read the nonce alone on its way. If the ranks hold no key, who carries the all-gather
// is trusted, and the nonce is the secret.
Secret secretOf(const Oob& oob, const Nonce& nonce) {
  constexpr std::string_view kLabel = "moeccl job";
  if (oob.key().empty()) return nonce;
  return hmacSha256(oob.key(), {std::as_bytes(std::span(kLabel)), nonce});
}

std::unique_ptr<Watch> makeWatch(Oob& oob, const Introduction& of, const Settings& settings) {
  std::vector<std::string> names;
  for (const HostIdentity& host : of.hosts)
    names.emplace_back(host.name, strnlen(host.name, sizeof host.name));
  if (!shareProcess(of.hosts))
    return makeMeshWatch(oob, of.topology,
                         {of.secret, std::move(names), settings.failureDetectionMs,
                          settings.timeoutMs, settings.interfaces});
  std::unique_ptr<Watch> watch;
  agreeAfter(oob, [&] { watch = makeLocalWatch(of.secret, oob.rank(), std::move(names)); });
  return watch;
}

}  // namespace

Introduction introduce(Oob& oob, const Settings& settings) {
  Card mine{hostIdentity(settings.nodeId), availableCores()};
  if (oob.rank() == 0) fillRandom(mine.nonce);
  const std::vector<Card> all = exchangeValue(oob, mine);
  std::vector<HostIdentity> hosts;
  std::vector<Cores> cores;
  for (const Card& each : all) {
    hosts.push_back(each.host);
    cores.push_back(each.cores);
  }
  Topology topology = buildTopology(hosts);
  Introduction made{std::move(hosts),
                    std::move(topology),
                    secretOf(oob, all[0].nonce),
                    nullptr,
                    ranksThatShare(cores, oob.rank()),
                    crowdedAcrossGroups(cores, oob.rank())};
  made.watch = makeWatch(oob, made, settings);
  return made;
}

}  // namespace moeccl
