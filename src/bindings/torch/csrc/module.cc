// What Python sees.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "backend.h"
#include "grid.h"
#include "route.h"

namespace {

namespace py = pybind11;
using namespace moeccl::torch;
using NoGil = py::call_guard<py::gil_scoped_release>;

moecclGridShape_t shapeOf(int mp, int ep, int esp, bool epConsecutive) {
  return {mp, ep, esp, epConsecutive ? moecclOrderEpEsp : moecclOrderEspEp};
}

void bindBackend(py::module& module) {
  module.def(
      "create",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
         std::chrono::milliseconds timeout, const std::vector<int64_t>& globalRanks,
         const std::string& group) -> Backend {
        return c10::make_intrusive<MoecclBackend>(store, rank, size, timeout, globalRanks, group);
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
      py::arg("global_ranks"), py::arg("group"), NoGil());
}

void bindGrid(py::module& module) {
  py::class_<RankSet, std::shared_ptr<RankSet>>(module, "RankSet")
      .def(py::init<const Backend&, const std::vector<int>&>(), NoGil())
      .def("gather", &RankSet::gather, NoGil())
      .def("average", &RankSet::average, NoGil())
      .def("broadcast", &RankSet::broadcast, NoGil())
      .def("revoke", &RankSet::revoke, NoGil());
  py::class_<MoeGrid, std::shared_ptr<MoeGrid>>(module, "Grid")
      .def(
          py::init([](std::shared_ptr<RankSet> ranks, int mp, int ep, int esp, bool epConsecutive) {
            return std::make_shared<MoeGrid>(std::move(ranks), shapeOf(mp, ep, esp, epConsecutive));
          }),
          NoGil())
      .def("fail", &MoeGrid::fail);
  module.def("check_indices", &checkIndices, py::arg("indices"), py::arg("experts"),
             py::arg("repeated") = false, NoGil());
  module.def("schedule_names", &scheduleNames);
}

void bindRoute(py::module& module) {
  py::enum_<moecclRouteWeights_t>(module, "RouteWeights")
      .value("combine", moecclRouteWeightsCombine)
      .value("rows", moecclRouteWeightsRows)
      .value("none", moecclRouteWeightsNone);
  py::class_<Route, std::shared_ptr<Route>>(module, "Route")
      .def(py::init([](std::shared_ptr<MoeGrid> grid, at::ScalarType type, int experts, int topK,
                       int64_t hidden, moecclRouteWeights_t weights, const std::string& algorithm,
                       int64_t maxTokens, double capacityFactor, int64_t capacityGroups,
                       bool sharedTokens, const std::string& schedule, int64_t expertElements,
                       bool training, bool learn, bool rowsByToken, int64_t maxRows,
                       int64_t alignment, std::optional<at::ScalarType> wire) {
             moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
             config.experts = experts;
             config.topK = topK;
             config.hidden = hidden;
             config.weights = weights;
             config.algorithm = algorithm.c_str();
             config.maxTokens = maxTokens;
             config.capacityFactor = capacityFactor;
             config.capacityGroups = capacityGroups;
             config.sharedTokens = sharedTokens ? 1 : 0;
             config.schedule = schedule.c_str();
             config.expertElements = expertElements;
             config.training = training ? 1 : 0;
             config.learn = learn ? 1 : 0;
             config.rowsByToken = rowsByToken ? 1 : 0;
             config.maxRows = maxRows;
             config.alignment = alignment;
             if (wire) config.wire = wireOf(*wire);
             return std::make_shared<Route>(std::move(grid), config, type);
           }),
           NoGil(), py::arg("grid"), py::arg("dtype"), py::arg("experts"), py::arg("top_k"),
           py::arg("hidden"), py::arg("weights") = moecclRouteWeightsCombine,
           py::arg("algorithm") = "", py::arg("max_tokens") = 0, py::arg("capacity_factor") = 0.0,
           py::arg("capacity_groups") = 0, py::arg("shared_tokens") = false,
           py::arg("schedule") = "", py::arg("expert_elements") = 0, py::arg("training") = true,
           py::arg("learn") = false, py::arg("rows_by_token") = false, py::arg("max_rows") = 0,
           py::arg("alignment") = 1, py::arg("wire") = py::none())
      .def("begin", &Route::begin, py::arg("indices"), py::arg("weights"), py::arg("note") = 0,
           NoGil())
      .def("explain", &Route::explain, NoGil())
      .def("tell_error", &Route::tellError, NoGil())
      .def("await_all", &Route::await, NoGil());
  module.def("open_passes", &RoutePass::count);
  module.def("route_pass", &RoutePass::of);
  py::class_<RoutePass, std::shared_ptr<RoutePass>>(module, "RoutePass")
      .def("ticket", &RoutePass::ticket)
      .def("rows", &RoutePass::rows)
      .def("dropped", &RoutePass::dropped)
      .def("algorithm", &RoutePass::algorithm)
      .def("begins", &RoutePass::begins)
      .def("counts", &RoutePass::counts)
      .def("row_weights", &RoutePass::rowWeights)
      .def("row_experts", &RoutePass::rowExperts)
      .def("dispatch", &RoutePass::dispatch, py::arg("tokens"), py::arg("beside") = false, NoGil())
      .def("combine", &RoutePass::combine, py::arg("results"), py::arg("beside") = false, NoGil())
      .def("combine_backward", &RoutePass::combineBackward, py::arg("gradient"), py::arg("results"),
           py::arg("beside") = false, NoGil())
      .def("dispatch_backward", &RoutePass::dispatchBackward, py::arg("gradient"),
           py::arg("of_weights"), py::arg("beside") = false, NoGil());
}

void bindPrediction(py::module& module) {
  py::class_<Choice>(module, "Choice", "An algorithm or a schedule, as predicted.")
      .def_readonly("name", &Choice::name)
      .def_readonly("seconds", &Choice::seconds, "of the collective, or of the pass or passes")
      .def_readonly("communication", &Choice::communication, "of a schedule's seconds")
      .def_readonly("bytes_between", &Choice::bytesBetween, "that a rank sends to other nodes")
      .def_readonly("measured", &Choice::measured, "by fits alone, nothing by prices of links")
      .def("__repr__", [](const Choice& choice) {
        return "<" + choice.name + ": " + std::to_string(choice.seconds * 1e3) + " ms>";
      });
  module.def(
      "predict_schedules",
      [](int64_t tokens, int64_t embedding, int64_t hidden, int64_t experts, int64_t topK,
         double capacityFactor, int64_t capacityGroups, at::ScalarType type, bool training, int mp,
         int ep, int esp, bool epConsecutive, const std::vector<int>& ranksPerNode,
         const std::string& profile) {
        moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
        config.tokens = tokens;
        config.embedding = embedding;
        config.hidden = hidden;
        config.experts = experts;
        config.topK = topK;
        config.capacityFactor = capacityFactor;
        config.capacityGroups = capacityGroups;
        config.dropless = capacityFactor == 0 ? 1 : 0;
        config.training = training ? 1 : 0;
        config.chunks = 1;
        config.datatype = datatypeOf(type);
        moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
        query.layer = &config;
        query.pass = training ? moecclPassBoth : moecclPassForward;
        Prediction made =
            predict(query, shapeOf(mp, ep, esp, epConsecutive), ranksPerNode, profile);
        return std::make_pair(std::move(made.choices), std::move(made.text));
      },
      NoGil());
  module.def(
      "predict_algorithms",
      [](const std::string& collective, size_t bytes, int expertsPerRank, int mp, int ep, int esp,
         bool epConsecutive, const std::vector<int>& ranksPerNode, const std::string& profile) {
        moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
        query.collective = collective.c_str();
        query.bytes = bytes;
        query.nExpertsPerRank = expertsPerRank;
        Prediction made =
            predict(query, shapeOf(mp, ep, esp, epConsecutive), ranksPerNode, profile);
        return std::make_pair(std::move(made.choices), std::move(made.text));
      },
      NoGil());
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.doc() = "torch.distributed and Mixture-of-Experts layers over moeccl; see the package";
  bindBackend(module);
  bindGrid(module);
  bindRoute(module);
  bindPrediction(module);
}
