// Makes, fills, fits and stores profiles, and gives them to communicators.
#include <algorithm>
#include <utility>

#include "algorithms/choice.h"
#include "src/api/arguments.h"
#include "src/api/moe_handle.h"
#include "src/api/profile_handle.h"
#include "src/base/structs.h"
#include "src/base/text.h"
#include "src/bootstrap/origin.h"
#include "src/comm/adopt_profile.h"
#include "src/comm/agreement.h"
#include "src/comm/settings.h"
#include "src/model/group_text.h"
#include "src/model/link_fit.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclCollectiveSample_t> kCollectiveSample = {
    "sample", "MOECCL_COLLECTIVE_SAMPLE_INITIALIZER", MOECCL_COLLECTIVE_SAMPLE_MAGIC,
    MOECCL_END_OF(moecclCollectiveSample_t, spread),
    MOECCL_END_OF(moecclCollectiveSample_t, spread)};

constexpr StructKind<moecclLayerSample_t> kLayerSample = {
    "sample", "MOECCL_LAYER_SAMPLE_INITIALIZER", MOECCL_LAYER_SAMPLE_MAGIC,
    MOECCL_END_OF(moecclLayerSample_t, spread), MOECCL_END_OF(moecclLayerSample_t, spread)};

// A layer on one rank: its local work.
LocalWork workOf(const LayerShape& shape) {
  return {static_cast<double>(shape.tokens),
          static_cast<double>(shape.embedding),
          static_cast<double>(shape.localHidden),
          static_cast<double>(gates::logitsPerToken(shape.gate)),
          static_cast<double>(shape.gate.choices),
          static_cast<double>(shape.experts * shape.capacity()),
          static_cast<double>(shape.localExperts)};
}

moecclProfile_t handleOf(Profile profile) {
  auto handle = std::make_unique<moecclProfile>();
  handle->profile = std::make_shared<const Profile>(profile);
  handle->open = std::move(profile);
  addHandle(HandleKind::profile, handle.get());
  return handle.release();
}

// The name that profiles have for an algorithm, which is given as MOECCL_ALGO takes it.
std::string usualName(Collective collective, const std::string& algorithm) {
  FixedAlgorithms choices;
  if (algorithm.find(';') == algorithm.npos)
    parseAlgorithms(std::string(nameOf(collective)) + "=" + algorithm, "sample.algorithm",
                    &choices);
  const AlgorithmChoice& choice = choices[static_cast<std::size_t>(collective)];
  if (choice.algorithm == nullptr)
    throw Error(moecclInvalidArgument,
                stringf("sample.algorithm is \"%s\"; it must be one algorithm of %s",
                        algorithm.c_str(), std::string(nameOf(collective)).c_str()));
  return textOf(choice);
}

}  // namespace

void requireTimes(double seconds, double spread) {
  if (!(seconds >= kMinSeconds && seconds <= kMaxSeconds))
    throw Error(moecclInvalidArgument, stringf("sample.seconds is %g; it must be from %g to %g",
                                               seconds, kMinSeconds, kMaxSeconds));
  if (!(spread >= 0 && spread <= kMaxSpread))
    throw Error(moecclInvalidArgument,
                stringf("sample.spread is %g; it must be from 0 to %g", spread, kMaxSpread));
}

moecclProfile& profileOf(moecclProfile_t profile) {
  require(profile != nullptr,
          "profile is NULL; pass one made by moecclProfileCreate or moecclProfileLoad");
  requireLive(HandleKind::profile, profile);
  return *profile;
}

}  // namespace moeccl

using moeccl::boundary;
using moeccl::Error;
using moeccl::profileOf;
using moeccl::require;
using moeccl::stringf;

moecclResult_t moecclProfileCreate(moecclComm_t comm, moecclProfile_t* profile) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclProfileCreate", moeccl::lastErrorOf(state), [&] {
    moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    require(profile != nullptr, "profile is NULL; pass where to store the profile");
    moeccl::Profile empty;
    empty.fingerprint = moeccl::fingerprintOf(communicator);
    // Rank 0's: all ranks must come to the same profile.
    moeccl::CommunicatorOob oob(communicator);
    const moeccl::Origin mine = moeccl::origin();
    empty.date = moeccl::exchangeText(oob, mine.date)[0];
    empty.command = moeccl::exchangeText(oob, oob.rank() == 0 ? mine.command : "")[0];
    *profile = moeccl::handleOf(std::move(empty));
  });
}

moecclResult_t moecclProfileLoad(const char* path, moecclProfile_t* profile) {
  return boundary("moecclProfileLoad", nullptr, [&] {
    require(path != nullptr, "path is NULL; pass the name of a file");
    require(profile != nullptr, "profile is NULL; pass where to store the profile");
    *profile = moeccl::handleOf(moeccl::loadProfile(path));
  });
}

moecclResult_t moecclProfileSave(moecclProfile_t profile, const char* path) {
  return boundary("moecclProfileSave", nullptr, [&] {
    const moecclProfile& it = profileOf(profile);
    require(path != nullptr, "path is NULL; pass the name of a file");
    moeccl::saveProfile(*it.profile, path);
  });
}

moecclResult_t moecclProfileDestroy(moecclProfile_t profile) {
  return boundary("moecclProfileDestroy", nullptr, [&] {
    if (profile == nullptr) return;
    moeccl::requireLive(moeccl::HandleKind::profile,
                        moeccl::removeHandle(moeccl::HandleKind::profile, profile).state);
    delete profile;
  });
}

moecclResult_t moecclCommSetProfile(moecclComm_t comm, moecclProfile_t profile) {
  const auto state = moeccl::hold(comm);
  return boundary("moecclCommSetProfile", moeccl::lastErrorOf(state), [&] {
    moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    if (profile != nullptr) profileOf(profile);
    moeccl::adoptProfile(communicator, [&] {
      return profile == nullptr ? std::shared_ptr<const moeccl::Profile>() : profile->profile;
    });
  });
}

moecclResult_t moecclProfileAddCollective(moecclProfile_t profile,
                                          const moecclCollectiveSample_t* sample) {
  return boundary("moecclProfileAddCollective", nullptr, [&] {
    moecclProfile& it = profileOf(profile);
    const auto theirs = moeccl::readStruct(moeccl::kCollectiveSample, sample);
    require(theirs.collective != nullptr, "sample.collective is NULL; it must name a collective");
    require(theirs.algorithm != nullptr, "sample.algorithm is NULL; it must name an algorithm");
    moeccl::requireTimes(theirs.seconds, theirs.spread);
    const moeccl::Collective collective = moeccl::collectiveOf(theirs.collective);
    moeccl::CurveKey key{theirs.collective, moeccl::usualName(collective, theirs.algorithm), {}};
    if (moeccl::needsGrid(collective)) {
      require(theirs.grid != nullptr, "sample.grid is NULL; it must be the grid that was measured");
      const moecclGrid& grid = moeccl::gridOf(theirs.grid);
      key.where = textOf(moeccl::asGrid(grid.shape),
                         moeccl::communicatorOf(moeccl::holdWorld(theirs.grid)).topology());
    } else {
      require(theirs.comm != nullptr,
              "sample.comm is NULL; it must be the ranks that were measured");
      const auto group = moeccl::hold(theirs.comm);
      key.where = textOf(moeccl::communicatorOf(group).topology());
    }
    if (theirs.alone != 0) key.where += ", alone";
    it.open.addSample(key, {static_cast<double>(theirs.bytes), theirs.seconds, theirs.spread});
  });
}

moecclResult_t moecclProfileFit(moecclProfile_t profile) {
  return boundary("moecclProfileFit", nullptr, [&] {
    moecclProfile& it = profileOf(profile);
    it.open.refit();
    it.open.links = moeccl::fitLinks(it.open);
    moeccl::growBeyond(it.open);
    it.profile = std::make_shared<const moeccl::Profile>(it.open);
  });
}

moecclResult_t moecclProfileAddLayer(moecclProfile_t profile, const moecclLayerSample_t* sample) {
  return boundary("moecclProfileAddLayer", nullptr, [&] {
    const auto theirs = moeccl::readStruct(moeccl::kLayerSample, sample);
    require(theirs.layer != nullptr,
            "sample.layer is NULL; it must be the layer that was measured");
    require(theirs.pass == moecclPassForward || theirs.pass == moecclPassBackward,
            "sample.pass must be moecclPassForward or moecclPassBackward");
    moeccl::requireLive(moeccl::HandleKind::layer, theirs.layer);
    const moeccl::MoeLayer& layer = theirs.layer->layer;
    const moeccl::LayerShape& shape = layer.shape();
    require(shape.datatype == moecclFloat32,
            "sample.layer does not compute with moecclFloat32; profiles hold what that takes");
    require(!shape.dropless && shape.residual == 0,
            "sample.layer is dropless or has a residual branch; it must be one whose work follows "
            "from its capacity alone");
    const int ranks = layer.groups().world.ranks;
    if (ranks != 1)
      throw moeccl::Error(moecclInvalidArgument,
                          moeccl::stringf("sample.layer has %d ranks; it must have one, as its "
                                          "sample is of what a rank computes by itself",
                                          ranks));
    moecclProfile& it = moeccl::profileOf(profile);
    moeccl::requireTimes(theirs.seconds, theirs.spread);
    it.open.addSample(
        theirs.pass == moecclPassBackward ? moeccl::Pass::backward : moeccl::Pass::forward,
        {moeccl::workOf(shape), theirs.seconds, theirs.spread});
  });
}
