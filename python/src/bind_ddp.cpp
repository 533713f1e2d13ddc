#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "gradwire/base/error.h"
#include "gradwire/ddp/attachment.h"
#include "gradwire/ddp/bucket_hook.h"
#include "gradwire/ddp/comm_hook_type.h"
#include "python/src/dicts.h"
#include "python/src/support.h"

namespace gradwire::python {
namespace {

// Those declared here would hide it.
using python::to_dict;

using AttachmentPtr = std::shared_ptr<Attachment>;
using GroupPtr = std::shared_ptr<Group>;
using ProcessGroupPtr = Attachment::ProcessGroupPtr;

ForeignDdp foreign_ddp(
    std::shared_ptr<c10d::Reducer> reducer,
    c10::intrusive_ptr<c10d::ProcessGroup> process_group,
    const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  ForeignDdp ddp{std::move(reducer), std::move(process_group), {}};
  for (const auto& [name, tensor] : parameters) {
    ddp.parameters.push_back({name, tensor});
  }
  return ddp;
}

py::dict to_dict(const StepTimes& times) {
  py::dict dict;
  dict["communication_ms"] = times.communication_ms;
  dict["exposed_ms"] = times.exposed_ms;
  return dict;
}

py::dict to_dict(const Step::Bucket& bucket) {
  py::dict dict;
  dict["sent"] = to_dict(bucket.sent);
  return dict;
}

py::dict to_dict(const ParameterReport& report) {
  py::dict dict;
  dict["name"] = report.name;
  dict["elems"] = report.elems;
  dict["sent_elems"] = report.sent_elems;
  dict["rank"] = report.rank;
  dict["residual_norm"] = report.residual_norm;
  return dict;
}

template <class Row>
py::list to_list(const std::vector<Row>& rows) {
  py::list list;
  for (const auto& row : rows) {
    list.append(to_dict(row));
  }
  return list;
}

py::dict to_dict(const Step& step) {
  py::dict dict = to_dict(times_of(step));
  dict["number"] = step.number;
  dict["outcome"] = to_string(step.outcome);
  dict["buckets"] = to_list(step.buckets);
  dict["sent"] = to_dict(step.sent);
  return dict;
}

py::dict to_dict(const Stats& stats) {
  py::dict dict;
  dict["hook"] = stats.hook;
  dict["rank"] = stats.rank;
  dict["world"] = stats.world;
  dict["parameters"] = stats.parameters;
  dict["bucket_bytes"] = stats.bucket_bytes;
  dict["rebuilt"] = stats.rebuilt;
  dict["steps"] = stats.steps;
  dict["not_finite_steps"] = stats.not_finite_steps;
  dict["failed_steps"] = stats.failed_steps;
  dict["sent"] = to_dict(stats.sent);
  dict["plain_bytes"] = stats.plain_bytes;
  const auto last = stats.last.sent.total();
  dict["ratio"] = last > 0 ? static_cast<double>(stats.plain_bytes) /
                                 static_cast<double>(last)
                           : 0.0;
  dict["by_parameter"] = to_list(stats.by_parameter);
  dict["mean"] = to_dict(stats.mean);
  dict["last"] = to_dict(stats.last);
  return dict;
}

// `refusal`: why this rank cannot have the hook, empty if it can.
Attachment::FindHook to_find_hook(
    const std::string& hook, const std::string& refusal) {
  return to_find([&] {
    if (!refusal.empty()) {
      throw Refusal(refusal);
    }
    return HookChoice(hook);
  });
}

void bind_attachment(py::module_& m) {
  py::class_<Attachment, AttachmentPtr>(m, "Attachment")
      .def(
          py::init([](std::shared_ptr<c10d::Reducer> reducer,
                      c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                      const std::vector<std::pair<std::string, at::Tensor>>&
                          parameters,
                      const std::string& hook,
                      const std::optional<ProcessGroupPtr>& hook_group,
                      const std::string& refusal) {
            auto ddp = foreign_ddp(
                std::move(reducer), std::move(process_group), parameters);
            return interruptibly([=] {
              return make_native<Attachment>(
                  ddp,
                  to_find_hook(hook, refusal),
                  hook_group.value_or(nullptr));
            });
          }),
          py::arg("reducer"),
          py::arg("process_group"),
          py::arg("parameters"),
          py::arg("hook"),
          py::arg("hook_group"),
          py::arg("refusal"))
      .def(
          "set_hook",
          [](const AttachmentPtr& self,
             const std::string& hook,
             const std::optional<ProcessGroupPtr>& hook_group,
             const std::string& refusal) {
            interruptibly([=] {
              self->set_hook(
                  to_find_hook(hook, refusal), hook_group.value_or(nullptr));
            });
          },
          py::arg("hook"),
          py::arg("hook_group"),
          py::arg("refusal"))
      .def("is_registered", &Attachment::is_registered)
      .def(
          "stats",
          [](const Attachment& self) {
            return to_dict(without_gil([&] { return self.stats(); }));
          })
      .def(
          "save_hook_state",
          [](const AttachmentPtr& self, const std::string& folder) {
            interruptibly([=] { self->save_hook_state(folder); });
          },
          py::arg("folder"))
      .def(
          "load_hook_state",
          [](const AttachmentPtr& self,
             const std::string& folder,
             bool strict) {
            interruptibly(
                [=] { self->load_hook_state(folder, {.strict = strict}); });
          },
          py::arg("folder"),
          py::arg("strict"))
      .def(
          "hook_state_dict",
          [](const AttachmentPtr& self) {
            return to_dict(
                interruptibly([=] { return self->take_hook_state(); }));
          })
      .def(
          "load_hook_state_dict",
          [](const AttachmentPtr& self, const py::dict& state) {
            interruptibly([self, find = to_find([&] {
                                   return to_record(state);
                                 })] { self->give_hook_state(find); });
          },
          py::arg("state"))
      .def("stop", &Attachment::stop, py::call_guard<py::gil_scoped_release>());
}

void bind_bucket_hook(py::module_& m) {
  py::class_<BucketHook, std::shared_ptr<BucketHook>>(m, "BucketHook")
      .def(
          py::init([](const GroupPtr& group,
                      const std::string& spec,
                      const std::optional<py::dict>& remembered) {
            const auto find_state = to_find([&] {
              return remembered ? std::optional(to_state(*remembered))
                                : std::nullopt;
            });
            return interruptibly([=] {
              return make_native<BucketHook>(*group, spec, find_state);
            });
          }),
          py::arg("group"),
          py::arg("spec"),
          py::arg("remembered"))
      .def(
          "reduce",
          [](BucketHook& self, c10d::GradBucket& bucket, py::function done) {
            const Future result(
                without_gil([&] { return self.reduce(bucket); }));
            call_when_done(result, std::move(done));
          },
          py::arg("bucket"),
          py::arg("done"))
      .def(
          "state",
          [](const BucketHook& self) {
            return to_dict(without_gil([&] { return self.state(); }));
          })
      .def(
          "set_state",
          [](const std::shared_ptr<BucketHook>& self, const py::dict& state) {
            interruptibly(
                [self, set = to_state(state)] { self->set_state(set); });
          },
          py::arg("state"))
      .def("report", [](const BucketHook& self) {
        return to_list(without_gil([&] { return self.report(); }));
      });
}

}  // namespace

void bind_ddp(py::module_& m) {
  bind_attachment(m);
  bind_bucket_hook(m);
  m.def("torch_hook_specs", [] {
    std::map<std::string, std::string> specs;
    for (const auto& row : comm_hook_names()) {
      specs[row.name] = row.spec;
    }
    return specs;
  });
}

}  // namespace gradwire::python
