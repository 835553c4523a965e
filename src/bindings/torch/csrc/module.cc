// What Python sees.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "backend.h"
#include "moe.h"
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

void bindLayer(py::module& module) {
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
  py::class_<LayerOptions>(module, "LayerOptions")
      .def(
          py::init([](int64_t tokens, int64_t embedding, int64_t hidden, int64_t experts,
                      int64_t topK, double capacityFactor, int64_t capacityGroups,
                      at::ScalarType type, bool training, bool learn, const std::string& schedule) {
            return LayerOptions{tokens,   embedding,      hidden,         experts,
                                topK,     capacityFactor, capacityGroups, type,
                                training, learn,          schedule};
          }),
          py::kw_only(), py::arg("tokens"), py::arg("embedding"), py::arg("hidden"),
          py::arg("experts"), py::arg("top_k"), py::arg("capacity_factor"),
          py::arg("capacity_groups"), py::arg("dtype"), py::arg("training"), py::arg("learn"),
          py::arg("schedule"));
  py::class_<MoeLayer, std::shared_ptr<MoeLayer>>(module, "Layer")
      .def(py::init<std::shared_ptr<MoeGrid>, const LayerOptions&>(), NoGil())
      .def("begin",
           [](MoeLayer& layer, const at::Tensor& tokens, const at::Tensor& experts,
              const at::Tensor& weights, int64_t note) {
             MoeLayer::Begun begun;
             {
               const py::gil_scoped_release release;
               begun = layer.begin(tokens, experts, weights, note);
             }
             return py::make_tuple(begun.ticket, begun.rows, begun.begins);
           })
      .def("schedule", &MoeLayer::schedule, NoGil())
      .def("explain", &MoeLayer::explain, NoGil());
  module.def("end", &MoeLayer::end, NoGil());
  module.def("end_backward", &MoeLayer::endBackward, NoGil());
  module.def("begin_backward", &MoeLayer::beginBackward, NoGil());
  module.def("open_passes", &KeptPass::count);
  module.def("check_indices", &checkIndices, NoGil());
  module.def("schedule_names", &scheduleNames);
}

py::object orNone(const at::Tensor& tensor) {
  return tensor.defined() ? py::cast(tensor) : py::none();
}

// A pair of tensors, of which the second may be none.
auto gradientsBy(std::pair<at::Tensor, at::Tensor> (RoutePass::*call)(const at::Tensor&,
                                                                      const at::Tensor&, bool)) {
  return [call](RoutePass& pass, const at::Tensor& gradient, const at::Tensor& other, bool beside) {
    std::pair<at::Tensor, at::Tensor> made;
    {
      const py::gil_scoped_release release;
      made = (pass.*call)(gradient, other, beside);
    }
    return py::make_tuple(made.first, orNone(made.second));
  };
}

void bindRoute(py::module& module) {
  py::enum_<moecclRouteWeights_t>(module, "RouteWeights")
      .value("combine", moecclRouteWeightsCombine)
      .value("rows", moecclRouteWeightsRows)
      .value("none", moecclRouteWeightsNone);
  py::class_<Route, std::shared_ptr<Route>>(module, "Route")
      .def(py::init([](std::shared_ptr<MoeGrid> grid, int experts, int topK, int64_t hidden,
                       at::ScalarType type, moecclRouteWeights_t weights,
                       const std::string& algorithm) {
             return std::make_shared<Route>(
                 std::move(grid), RouteOptions{experts, topK, hidden, type, weights, algorithm});
           }),
           NoGil())
      .def("begin",
           [](Route& route, const at::Tensor& indices, const std::optional<at::Tensor>& weights) {
             const py::gil_scoped_release release;
             return route.begin(indices, weights.value_or(at::Tensor()));
           })
      .def("tell_error", &Route::tellError, NoGil())
      .def("await_all", &Route::await, NoGil());
  module.def("route_pass", &KeptPass::of<RoutePass>);
  py::class_<RoutePass, std::shared_ptr<RoutePass>>(module, "RoutePass")
      .def("ticket", &RoutePass::ticket)
      .def("rows", &RoutePass::rows)
      .def("algorithm", &RoutePass::algorithm)
      .def("begins", &RoutePass::begins)
      .def("counts", &RoutePass::counts)
      .def("row_weights", &RoutePass::rowWeights)
      .def("dispatch", &RoutePass::dispatch, py::arg("tokens"), py::arg("beside") = false, NoGil())
      .def("combine", &RoutePass::combine, py::arg("results"), py::arg("beside") = false, NoGil())
      .def("combine_backward", gradientsBy(&RoutePass::combineBackward), py::arg("gradient"),
           py::arg("results"), py::arg("beside") = false)
      .def("dispatch_backward", gradientsBy(&RoutePass::dispatchBackward), py::arg("gradient"),
           py::arg("of_weights"), py::arg("beside") = false);
}

void bindPrediction(py::module& module) {
  py::class_<Choice>(module, "Choice", "A schedule as predicted for a layer.")
      .def_readonly("schedule", &Choice::schedule)
      .def_readonly("seconds", &Choice::seconds, "of the pass or passes")
      .def_readonly("communication", &Choice::communication, "of these seconds")
      .def_readonly("bytes_between", &Choice::bytesBetween, "that a rank sends to other nodes")
      .def_readonly("measured", &Choice::measured, "by fits alone, nothing by prices of links")
      .def("__repr__", [](const Choice& choice) {
        return "<" + choice.schedule + ": " + std::to_string(choice.seconds * 1e3) + " ms>";
      });
  module.def(
      "predict",
      [](const LayerOptions& options, int mp, int ep, int esp, bool epConsecutive,
         const std::vector<int>& ranksPerNode, const std::string& profile) {
        Prediction made =
            predict(options, shapeOf(mp, ep, esp, epConsecutive), ranksPerNode, profile);
        return std::make_pair(std::move(made.choices), std::move(made.text));
      },
      NoGil());
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.doc() = "torch.distributed and Mixture-of-Experts layers over moeccl; see the package";
  bindBackend(module);
  bindLayer(module);
  bindRoute(module);
  bindPrediction(module);
}
