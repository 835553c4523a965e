// Reads processors, memory and NUMA nodes from the topology of hwloc.
#include "src/bootstrap/hardware.h"

#include <hwloc.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, TopologyDeleter>;

struct BitmapDeleter {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using HwlocBitmap = std::unique_ptr<std::remove_pointer_t<hwloc_bitmap_t>, BitmapDeleter>;

HwlocTopology loadTopology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0)
    throw Error(moecclSystemError, stringf("hwloc_topology_init: %s", std::strerror(errno)));
  HwlocTopology topology(raw);
  if (hwloc_topology_load(topology.get()) != 0)
    throw Error(moecclSystemError, stringf("hwloc_topology_load: %s", std::strerror(errno)));
  return topology;
}

std::string counted(hwloc_topology_t topology, hwloc_obj_type_t type, const char* name) {
  const int count = hwloc_get_nbobjs_by_type(topology, type);
  return stringf("%d %s%s", count, name, count == 1 ? "" : "s");
}

}  // namespace

Hardware describeHardware() {
  const HwlocTopology topology = loadTopology();
  Hardware hardware;
  const double bytes = static_cast<double>(hwloc_get_root_obj(topology.get())->total_memory);
  hardware.summary = counted(topology.get(), HWLOC_OBJ_PACKAGE, "package") + ", " +
                     counted(topology.get(), HWLOC_OBJ_CORE, "core") + ", " +
                     counted(topology.get(), HWLOC_OBJ_PU, "PU") + ", " +
                     counted(topology.get(), HWLOC_OBJ_NUMANODE, "NUMA node") +
                     stringf(", %.0f GiB", bytes / (1 << 30));

  hardware.processors = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_PU);
  if (const hwloc_obj_t package = hwloc_get_obj_by_type(topology.get(), HWLOC_OBJ_PACKAGE, 0))
    if (const char* model = hwloc_obj_get_info_by_name(package, "CPUModel"))
      hardware.processor = model;

  const HwlocBitmap cores(hwloc_bitmap_alloc()), memories(hwloc_bitmap_alloc());
  // A thread without a binding may run anywhere.
  if (hwloc_get_cpubind(topology.get(), cores.get(), HWLOC_CPUBIND_THREAD) != 0)
    hwloc_bitmap_copy(cores.get(), hwloc_topology_get_allowed_cpuset(topology.get()));
  hwloc_cpuset_to_nodeset(topology.get(), cores.get(), memories.get());
  for (int node = hwloc_bitmap_first(memories.get()); node >= 0;
       node = hwloc_bitmap_next(memories.get(), node))
    hardware.numaNodes.push_back(node);
  return hardware;
}

}  // namespace moeccl
