// What all ranks of a call must have alike, as a digest and as a text.
#include "src/comm/call.h"

#include <iterator>
#include <string_view>
#include <utility>

#include "algorithms/choice.h"
#include "kernels/reduce.h"
#include "src/base/hash.h"

namespace moeccl {
namespace {

constexpr std::string_view kTypes[] = {"int8",       "uint8",      "int32",   "uint32",  "int64",
                                       "uint64",     "float16",    "float32", "float64", "bfloat16",
                                       "float8e4m3", "float8e5m2", "int16",   "uint16"};
static_assert(std::size(kTypes) == moecclNumTypes);

std::string_view nameOf(moecclRedOp_t op) {
  constexpr std::string_view kNames[] = {"sum",     "product",     "max",        "min",
                                         "average", "bitwise and", "bitwise or", "bitwise xor"};
  static_assert(std::size(kNames) == moecclNumOps);
  return kNames[op];
}

bool isReduction(Collective collective) {
  return collective == Collective::reduceScatter || collective == Collective::reduceScatterv ||
         collective == Collective::allReduce || collective == Collective::reduce;
}

}  // namespace

std::string_view typeName(moecclDataType_t datatype) { return kTypes[datatype]; }

const PlannedCall* Call::planned() const {
  if (const CollectiveCall* const it = collective(); it != nullptr) return it;
  return rows();
}

bool isSized(const Call& call) {
  if (const CollectiveCall* const it = call.collective(); it != nullptr)
    return it->collective == Collective::allToAllv;
  return call.rows() != nullptr && !call.rows()->inputTable.empty();
}

std::span<std::byte> sumsToDivide(const Call& call, int rank) {
  const CollectiveCall* const it = call.collective();
  if (it == nullptr || it->op != moecclAvg || !isReduction(it->collective)) return {};
  if (it->collective == Collective::reduce && it->choice.parameters.root != rank) return {};
  auto* const output = static_cast<std::byte*>(it->output);
  if (it->collective != Collective::reduceScatterv) return {output, it->blockBytes};
  return {output, it->outputTable[0].bytes};
}

std::uint64_t digestOf(const AlgorithmChoice& choice) {
  std::uint64_t digest = mixed(1, static_cast<std::uint64_t>(choice.algorithm->collective));
  for (const char letter : choice.algorithm->name)
    digest = mixed(digest, static_cast<unsigned char>(letter));
  const Parameters& p = choice.parameters;
  for (const NamedParameter& parameter : namedParameters())
    digest = mixed(digest, static_cast<std::uint64_t>(p.*parameter.value));
  for (const int value :
       {p.grid.mp, p.grid.ep, p.grid.esp, int{p.grid.espConsecutive}, p.experts, p.root})
    digest = mixed(digest, static_cast<std::uint64_t>(value));
  return digest;
}

CallSignature::CallSignature(const CachedPlan& cached, const Call& call)
    : choice(cached.own ? nullptr : &cached.choice), own(cached.own), what(cached.digest) {
  const PlannedCall& it = *call.planned();
  blockBytes = it.blockBytes;
  datatype = it.datatype;
  inside = it.inside;
  if (const CollectiveCall* const collective = call.collective(); collective != nullptr)
    op = collective->op;
}

CallSignature::CallSignature(std::shared_ptr<const PlanName> name, std::size_t room)
    : own(std::move(name)), what(own->digest), tokens(room) {}

std::uint64_t CallSignature::digest() const {
  const auto type = static_cast<std::uint64_t>(datatype), sum = static_cast<std::uint64_t>(op);
  const std::uint64_t of = inside == nullptr ? 0 : inside->digest;
  return mixed(mixed(mixed(mixed(what, blockBytes), tokens), type << 8 | sum), of);
}

std::string CallSignature::text() const {
  return inside == nullptr ? ownText() : ownText() + " (inside " + inside->text + ")";
}

std::string CallSignature::ownText() const {
  if (tokens > 0)
    return own->text + " with room for " + std::to_string(tokens) + " tokens of a rank";
  if (own) {
    const std::string rows = own->text + " of rows of " + std::to_string(blockBytes) + " bytes";
    return datatype == moecclUint8 ? rows : rows + ", sums in " + std::string(typeName(datatype));
  }
  const Collective collective = choice->algorithm->collective;
  std::string text = std::string(nameOf(collective)) + " (" + textOf(*choice) + ") of ";
  if (collective == Collective::allGatherv || collective == Collective::reduceScatterv)
    text += "all in all ";
  if (collective == Collective::allToAllv && blockBytes > 0) text += "at most ";
  if (collective != Collective::allToAllv || blockBytes > 0)
    text += std::to_string(blockBytes / sizeOf(datatype)) + " x ";
  text += typeName(datatype);
  if (isReduction(collective)) text += ", " + std::string(nameOf(op));
  if (choice->parameters.experts != 1)
    text += ", " + std::to_string(choice->parameters.experts) + " experts a rank";
  if (hasRoot(collective)) text += ", root " + std::to_string(choice->parameters.root);
  return text;
}

}  // namespace moeccl
