// What was found, handed out.
#include "src/api/choices.h"

#include "src/base/boundary.h"
#include "src/base/structs.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclAlgorithmChoice_t> kAlgorithmChoice = {
    "choice", "MOECCL_ALGORITHM_CHOICE_INITIALIZER", MOECCL_ALGORITHM_CHOICE_MAGIC,
    MOECCL_END_OF(moecclAlgorithmChoice_t, digest), MOECCL_END_OF(moecclAlgorithmChoice_t, digest)};

const std::vector<AlgorithmAnswer>& allOf(moecclAlgorithmChoices_t choices) {
  require(choices != nullptr, "choices is NULL; pass what moecclSelectAlgorithm made");
  return choices->all;
}

}  // namespace
}  // namespace moeccl

using moeccl::boundary;

moecclResult_t moecclAlgorithmChoicesCount(moecclAlgorithmChoices_t choices, int* nChoices) {
  return boundary("moecclAlgorithmChoicesCount", nullptr, [&] {
    const auto& all = moeccl::allOf(choices);
    moeccl::require(nChoices != nullptr,
                    "nChoices is NULL; pass where to store the number of choices");
    *nChoices = static_cast<int>(all.size());
  });
}

moecclResult_t moecclAlgorithmChoicesGet(moecclAlgorithmChoices_t choices, int index,
                                         moecclAlgorithmChoice_t* choice) {
  return boundary("moecclAlgorithmChoicesGet", nullptr, [&] {
    const auto& answer = moeccl::elementAt(moeccl::allOf(choices), index, "index", "choices");
    moecclAlgorithmChoice_t ours = answer.choice;
    ours.algorithm = answer.algorithm.c_str();
    writeStruct(moeccl::kAlgorithmChoice, ours, choice);
  });
}

moecclResult_t moecclAlgorithmChoicesDestroy(moecclAlgorithmChoices_t choices) {
  delete choices;
  return moecclSuccess;
}
