// How the JSON files of several tools have what they have in common.
#pragma once

#include <nlohmann/json.hpp>

#include "perf/common/choices.h"

namespace moeccl::perf {

inline nlohmann::ordered_json toJson(const moecclGridShape_t& grid) {
  return {{"nMp", grid.nMp},
          {"nEp", grid.nEp},
          {"nEsp", grid.nEsp},
          {"order", grid.order == moecclOrderEspEp ? "EspEp" : "EpEsp"}};
}

// Of a layer.
inline nlohmann::ordered_json toJson(const Prediction& it) {
  return {{"schedule", it.name},
          {"seconds", it.seconds},
          {"communication", it.communication},
          {"bytesBetween", it.bytesBetween},
          {"measured", it.measured},
          {"exchanges", it.exchanges}};
}

}  // namespace moeccl::perf
