// What a layer has chosen and learned: told, saved and restored.
#include <functional>

#include "src/moe/moe_handle.h"
#include "src/moe/same_config.h"

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
    const moeccl::DeviceGuard guard(layer->device);
    const moecclGrid_t grid = it.groups().grid;
    std::function<void()> restore;
    moeccl::agreeAfter(grid, [&] {
      moeccl::require(text != nullptr, "text is NULL; pass what moecclMoeLayerSaveChoice gave");
      restore = it.restoreChoice(text);
    });
    moeccl::requireSameText(grid, text);
    restore();
  });
}
