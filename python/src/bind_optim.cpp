#include <ATen/core/Tensor.h>

#include "gradwire/optim/diloco.h"
#include "gradwire/optim/model_averager.h"
#include "python/src/dicts.h"
#include "python/src/support.h"

namespace gradwire::python {
namespace {

// Those declared here would hide it.
using python::to_dict;

using GroupPtr = std::shared_ptr<Group>;
using AveragerPtr = std::shared_ptr<ModelAverager>;
using DiLoCoPtr = std::shared_ptr<DiLoCo>;
using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

NamedTensorList to_named(const Tensors& tensors) {
  NamedTensorList named;
  for (const auto& [name, tensor] : tensors) {
    named.push_back({name, tensor});
  }
  return named;
}

py::dict to_dict(const AveragerStats& stats) {
  py::dict dict;
  dict["steps"] = stats.steps;
  dict["averages"] = stats.averages;
  dict["sent"] = to_dict(stats.sent);
  return dict;
}

py::dict to_dict(const DiLoCoStats& stats) {
  py::dict dict;
  dict["steps"] = stats.steps;
  dict["outer_steps"] = stats.outer_steps;
  dict["sent"] = to_dict(stats.sent);
  return dict;
}

// What a dictionary is wrong in on one rank, all ranks are told: by a record
// of nothing, which no state accepts.
template <class T>
void set_state(const std::shared_ptr<T>& self, const py::dict& dict) {
  std::string refusal;
  HookRecord record;
  try {
    record = to_record(dict);
  } catch (const Refusal& e) {
    refusal = e.what();
  }
  try {
    interruptibly([=] { self->set_state(record); });
  } catch (const CommError&) {
    throw;
  } catch (const Error&) {
    if (refusal.empty()) {
      throw;
    }
    fail("optim", refusal);
  }
}

template <class T>
void bind_state(py::class_<T, std::shared_ptr<T>>& bound) {
  using Ptr = std::shared_ptr<T>;
  bound
      .def(
          "stats",
          [](const Ptr& self) {
            return to_dict(without_gil([&] { return self->stats(); }));
          })
      .def(
          "state",
          [](const Ptr& self) {
            return to_dict(interruptibly([self] { return self->state(); }));
          })
      .def("set_state", &set_state<T>, py::arg("state"))
      .def(
          "save",
          [](const Ptr& self, const std::string& folder) {
            interruptibly([=] { self->save(folder); });
          },
          py::arg("folder"))
      .def(
          "load",
          [](const Ptr& self, const std::string& folder) {
            interruptibly([=] { self->load(folder); });
          },
          py::arg("folder"));
}

void bind_averagers(py::module_& m) {
  py::class_<ModelAverager, AveragerPtr> averager(m, "ModelAverager");
  averager
      .def_static(
          "periodic",
          [](const GroupPtr& group,
             const Tensors& tensors,
             std::int64_t period,
             std::int64_t warmup,
             const std::string& average) -> AveragerPtr {
            const PeriodicModelAveragerOptions options{period, warmup, average};
            return interruptibly([=, named = to_named(tensors)] {
              return make_native<PeriodicModelAverager>(*group, named, options);
            });
          },
          py::arg("group"),
          py::arg("tensors"),
          py::arg("period"),
          py::arg("warmup"),
          py::arg("average"))
      .def_static(
          "hierarchical",
          [](const GroupPtr& group,
             const Tensors& tensors,
             const HierarchicalModelAverager::Periods& periods,
             std::int64_t warmup,
             const std::string& average) -> AveragerPtr {
            const ModelAveragerOptions options{warmup, average};
            return interruptibly([=, named = to_named(tensors)] {
              return make_native<HierarchicalModelAverager>(
                  *group, named, periods, options);
            });
          },
          py::arg("group"),
          py::arg("tensors"),
          py::arg("periods"),
          py::arg("warmup"),
          py::arg("average"))
      .def(
          "average_parameters",
          &ModelAverager::average_parameters,
          py::call_guard<py::gil_scoped_release>())
      .def(
          "average_now",
          &ModelAverager::average_now,
          py::call_guard<py::gil_scoped_release>())
      .def("step", &ModelAverager::step)
      .def("set_step", &ModelAverager::set_step, py::arg("step"));
  bind_state(averager);
}

void bind_diloco(py::module_& m) {
  py::class_<DiLoCo, DiLoCoPtr> diloco(m, "DiLoCo");
  diloco
      .def(
          py::init([](const GroupPtr& group,
                      const Tensors& parameters,
                      std::int64_t period,
                      double outer_lr,
                      double outer_momentum,
                      const std::string& average,
                      std::int64_t fragments,
                      std::int64_t delay,
                      double mix) {
            const DiLoCoOptions options{
                .period = period,
                .outer_lr = outer_lr,
                .outer_momentum = outer_momentum,
                .average = average,
                .fragments = fragments,
                .delay = delay,
                .mix = mix};
            return interruptibly([=, named = to_named(parameters)] {
              return make_native<DiLoCo>(*group, named, options);
            });
          }),
          py::arg("group"),
          py::arg("parameters"),
          py::arg("period"),
          py::arg("outer_lr"),
          py::arg("outer_momentum"),
          py::arg("average"),
          py::arg("fragments"),
          py::arg("delay"),
          py::arg("mix"))
      .def("step", &DiLoCo::step, py::call_guard<py::gil_scoped_release>())
      .def("finish", &DiLoCo::finish, py::call_guard<py::gil_scoped_release>())
      .def("anchor", [](const DiLoCo& self) {
        std::map<std::string, at::Tensor> anchor;
        for (const NamedTensor& each : self.anchor()) {
          anchor[each.name] = each.tensor;
        }
        return anchor;
      });
  bind_state(diloco);
}

}  // namespace

void bind_optim(py::module_& m) {
  bind_averagers(m);
  bind_diloco(m);
}

}  // namespace gradwire::python
