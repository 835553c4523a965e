// Explains, saves and restores what a layer has chosen and learned.
#include <functional>

#include "src/api/arguments.h"
#include "src/api/handles.h"
#include "src/api/moe_handle.h"
#include "src/comm/agreement.h"

using moeccl::boundary;

moecclResult_t moecclMoeLayerExplainChoice(moecclMoeLayer_t layer, char* text, size_t* bytes) {
  return boundary("moecclMoeLayerExplainChoice", nullptr, [&] {
    const moeccl::MoeLayer& it = moeccl::layerOf(layer);
    moeccl::requireRoom(text, bytes);
    moeccl::handOut(it.explainChoice(), text, bytes);
  });
}

moecclResult_t moecclMoeLayerSaveChoice(moecclMoeLayer_t layer, char* text, size_t* bytes) {
  return boundary("moecclMoeLayerSaveChoice", nullptr, [&] {
    const moeccl::MoeLayer& it = moeccl::layerOf(layer);
    moeccl::requireRoom(text, bytes);
    moeccl::handOut(it.saveChoice(), text, bytes);
  });
}

moecclResult_t moecclMoeLayerRestoreChoice(moecclMoeLayer_t layer, const char* text) {
  return boundary("moecclMoeLayerRestoreChoice", nullptr, [&] {
    moeccl::MoeLayer& it = moeccl::layerOf(layer);
    const moeccl::DeviceGuard guard(*layer);
    moeccl::gridOf(it.groups().grid);
    const moeccl::HeldComm world = moeccl::holdWorld(it.groups().grid);
    moeccl::CommunicatorOob oob(moeccl::communicatorOf(world));
    std::function<void()> restore;
    moeccl::agreeAfter(oob, [&] {
      moeccl::require(text != nullptr, "text is NULL; pass what moecclMoeLayerSaveChoice gave");
      restore = it.restoreChoice(text);
    });
    moeccl::requireSameText(moeccl::communicatorOf(world), text);
    restore();
  });
}
