// Layers that compute with this library's gates and experts.
#include "src/moe/compute_cpu.h"
#include "src/moe/compute_cuda.h"
#include "src/route/compute_makers.h"

moecclResult_t moecclMoeLayerCreate(moecclGrid_t grid, const moecclMoeConfig_t* config,
                                    moecclMoeLayer_t* layer) {
  static constexpr moeccl::ComputeMakers kMakers = {moeccl::cpuCompute, moeccl::cudaCompute,
                                                    moeccl::exchangeCudaDevice};
  return moecclInternalMakeLayer(&kMakers, grid, config, layer);
}
