#include "src/base/internal.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/choice.h"
#include "src/api/profile_handle.h"
#include "src/comm/agreement.h"

using moeccl::boundary;
using moeccl::require;

moecclResult_t moecclInternalExchange(moecclGrid_t grid, const void* mine, void* all,
                                      size_t bytes) {
  return boundary(nullptr, nullptr, [&] {
    moeccl::gridOf(grid);
    moeccl::communicatorOf(moeccl::holdWorld(grid)).allgather(mine, all, bytes);
  });
}

moecclResult_t moecclInternalAgree(moecclGrid_t grid, moecclResult_t mine, const char* text) {
  return boundary(nullptr, nullptr, [&] {
    moeccl::gridOf(grid);
    const auto world = moeccl::holdWorld(grid);
    moeccl::CommunicatorOob oob(moeccl::communicatorOf(world));
    std::optional<moeccl::Error> error;
    if (mine != moecclSuccess) error.emplace(mine, text);
    moeccl::agree(oob, error);
  });
}

moecclResult_t moecclInternalDescribe(moecclGrid_t grid, moecclInternalGrid_t* it) {
  return boundary(nullptr, nullptr, [&] {
    const moecclGrid& theirs = moeccl::gridOf(grid);
    const auto world = moeccl::holdWorld(grid);
    const moeccl::Communicator& comm = moeccl::communicatorOf(world);
    const auto device = comm.device();
    *it = {device ? device->number : -1, world->model->ranksOnNode(),
           moeccl::typicalOf(comm).kind, device || comm.settings().progressThread,
           world->model->number(),       theirs.attached.get()};
  });
}

moecclResult_t moecclInternalAttach(moecclGrid_t grid, void* object, void (*destroy)(void*)) {
  return boundary(nullptr, nullptr, [&] { moeccl::gridOf(grid).attached = {object, destroy}; });
}

moecclResult_t moecclInternalModel(moecclGrid_t grid, moecclProfile_t profile,
                                   void (*take)(void* context, const moecclInternalModel_t* model),
                                   void* context) {
  return boundary(nullptr, nullptr, [&] {
    std::vector<std::string> algorithms;
    std::shared_ptr<const moeccl::Profile> from;
    if (grid == nullptr) {
      from = moeccl::profileOf(profile).profile;
    } else {
      moeccl::gridOf(grid);
      const auto world = moeccl::holdWorld(grid);
      for (const auto& choice : moeccl::communicatorOf(world).settings().algorithms)
        algorithms.push_back(textOf(choice));
      from = world->model->profile();
    }
    std::vector<const char*> texts;
    for (const std::string& text : algorithms) texts.push_back(text.c_str());
    const std::string printed = from == nullptr ? std::string() : moeccl::printProfile(*from);
    const moecclInternalModel_t model = {texts.data(), static_cast<int>(texts.size()),
                                         from == nullptr ? nullptr : printed.c_str()};
    take(context, &model);
  });
}

moecclResult_t moecclInternalAddSample(moecclProfile_t profile,
                                       const moecclInternalSample_t* sample) {
  return boundary(nullptr, nullptr, [&] {
    moecclProfile& it = moeccl::profileOf(profile);
    moeccl::requireTimes(sample->seconds, sample->spread);
    const double* const n = sample->numbers;
    it.local[sample->backward != 0 ? 1 : 0].push_back(
        {{n[0], n[1], n[2], n[3], n[4], n[5], n[6]}, sample->seconds, sample->spread});
  });
}
