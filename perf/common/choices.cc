// Asks the library which schedule or algorithm is the fastest, and reads its answers. A question
// that it refuses throws, unless the caller takes the reason.
#include "perf/common/choices.h"

#include <stdexcept>
#include <string_view>
#include <utility>

namespace moeccl::perf {

void requireDone(moecclResult_t result, const char* what) {
  if (result != moecclSuccess)
    throw std::runtime_error(std::string("cannot ") + what + ": " + moecclGetErrorString(result) +
                             ": " + moecclGetLastError(nullptr));
}

Choices::Choices(const moecclQuery_t& query) : Choices(query, nullptr) {}

Choices::Choices(const moecclQuery_t& query, std::string* refused) {
  moecclChoices_t made = nullptr;
  const moecclResult_t result = moecclSelect(&query, &made, &count_);
  if (result == moecclInvalidArgument && refused != nullptr) {
    *refused = moecclGetLastError(nullptr);
    return;
  }
  requireDone(result, "ask what is the fastest");
  handle_.reset(made);
}

moecclChoice_t Choices::choice(int index) const {
  moecclChoice_t choice = MOECCL_CHOICE_INITIALIZER;
  requireDone(moecclChoicesGet(handle_.get(), index, -1, &choice), "ask for a choice");
  return choice;
}

std::vector<moecclChoice_t> Choices::exchanges(int index) const {
  std::vector<moecclChoice_t> all;
  const int count = choice(index).nExchanges;
  for (int i = 0; i < count; ++i) {
    all.push_back(MOECCL_CHOICE_INITIALIZER);
    requireDone(moecclChoicesGet(handle_.get(), index, i, &all.back()), "ask for an exchange");
  }
  return all;
}

std::vector<Prediction> Choices::predictions() const {
  std::vector<Prediction> all;
  for (int i = 0; i < count_; ++i) {
    const moecclChoice_t it = choice(i);
    std::string text;
    const std::vector<moecclChoice_t> exchanges = this->exchanges(i);
    for (const moecclChoice_t& exchange : exchanges) {
      if (exchange.pass != exchanges.front().pass) break;
      if (!text.empty()) text += ", ";
      ((text += exchange.phase) += ": ") += exchange.name;
    }
    all.push_back({it.schedule, it.seconds, it.communication,
                   std::string_view(it.source) == "curves", std::move(text), it.name,
                   it.bytesBetween, it.alpha, it.beta});
  }
  return all;
}

std::vector<Prediction> algorithmChoices(const moecclCluster_t& cluster,
                                         const std::string& collective, std::size_t bytes,
                                         int expertsPerRank) {
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.collective = collective.c_str();
  query.bytes = bytes;
  query.nExpertsPerRank = expertsPerRank;
  return Choices(query).predictions();
}

}  // namespace moeccl::perf
