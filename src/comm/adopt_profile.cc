// Holds a profile against the cluster, and against the profiles of all other ranks.
#include "src/comm/adopt_profile.h"

#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/log.h"
#include "src/base/text.h"
#include "src/bootstrap/digest.h"
#include "src/bootstrap/hardware.h"
#include "src/bootstrap/network.h"
#include "src/comm/agreement.h"
#include "src/exec/gpu.h"

namespace moeccl {
namespace {

// What each rank says of its profile.
struct Record {
  Digest digest;
  char problem[1024];  // empty: none
};

Record recordOf(const Fingerprint& mine, const ProfileSource& source,
                std::shared_ptr<const Profile>& profile) {
  Record record{};
  std::string problem;
  try {
    profile = source();
    if (profile != nullptr) {
      problem = differences(mine, profile->fingerprint);
      const std::string text = printProfile(*profile);
      record.digest = sha256({std::as_bytes(std::span(text))});
    }
  } catch (const std::exception& e) {
    problem = e.what();
  }
  problem.copy(record.problem, sizeof record.problem - 1);
  return record;
}

}  // namespace

Fingerprint fingerprintOf(Communicator& communicator) {
  const Topology& topology = communicator.topology();
  Fingerprint mine;
  for (int node = 0; node < topology.nodes(); ++node)
    mine.ranksPerNode.push_back(topology.nodeSize(node));
  // Rank 0's, so that all ranks say the same where nodes differ.
  CommunicatorOob oob(communicator);
  const Hardware hardware = describeHardware();
  std::string processor = hardware.processor;
  if (const auto device = communicator.device())
    processor += (processor.empty() ? "" : ", ") + device->gpu->model(device->number);
  const std::string network =
      topology.nodes() > 1 ? describeNetwork(communicator.settings().interfaces) : std::string();
  mine.processor = exchangeText(oob, processor)[0];
  mine.processorsPerNode = exchangeValue(oob, hardware.processors)[0];
  mine.transport = exchangeText(oob, communicator.transportName())[0];
  mine.network = exchangeText(oob, network)[0];
  mine.library = stringf("%d.%d.%d", MOECCL_MAJOR, MOECCL_MINOR, MOECCL_PATCH);
  return mine;
}

void adoptProfile(Communicator& communicator, const ProfileSource& source) {
  std::shared_ptr<const Profile> profile;
  const Record mine = recordOf(fingerprintOf(communicator), source, profile);
  std::vector<Record> all(static_cast<std::size_t>(communicator.ranks()));
  communicator.allgather(&mine, all.data(), sizeof mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].problem[0] != '\0')
      throw Error(moecclInvalidUsage,
                  stringf("the profile cannot be used on rank %zu: %s", rank, all[rank].problem));
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank].digest != all[0].digest)
      throw Error(
          moecclInvalidUsage,
          stringf("ranks came with different profiles: rank %zu with another than rank 0", rank));
  if (communicator.rank() == 0 && profile != nullptr && !profile->doubts.empty())
    log(LogLevel::warn, {communicator.rank(), communicator.ranks()},
        "the profile may be wrong, as moeccl-fit wrote it with --force: %s (1 of %zu doubts)",
        profile->doubts[0].c_str(), profile->doubts.size());
  communicator.setProfile(std::move(profile), communicator.model().ranksOnNode());
}

}  // namespace moeccl
