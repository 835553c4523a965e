// A layer's weights, and where their gradients go: in the memory and the datatype that the layer
// computes with.
#pragma once

namespace moeccl {

// As in moecclMoeWeights_t.
struct GateWeights {
  const void* gate = nullptr;
  const void* noise = nullptr;
  const double* bias = nullptr;
};

// The weights of the residual branch.
struct MlpWeights {
  const void* w1 = nullptr;
  const void* b1 = nullptr;
  const void* w2 = nullptr;
  const void* b2 = nullptr;
};

struct LayerWeights {
  GateWeights gate;
  const void* w1 = nullptr;
  const void* b1 = nullptr;
  const void* w2 = nullptr;
  const void* b2 = nullptr;
  MlpWeights residual;
};

// As in moecclMoeGradients_t; null: not wanted.
struct GateGradients {
  void* gate = nullptr;
  void* noise = nullptr;
};

struct MlpGradients {
  void* w1 = nullptr;
  void* b1 = nullptr;
  void* w2 = nullptr;
  void* b2 = nullptr;
};

struct LayerGradients {
  GateGradients gate;
  void* w1 = nullptr;
  void* b1 = nullptr;
  void* w2 = nullptr;
  void* b2 = nullptr;
  MlpGradients residual;
};

}  // namespace moeccl
