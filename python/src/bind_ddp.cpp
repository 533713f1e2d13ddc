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

// Others of this name would hide it where the files are compiled as one.
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

template <class T>
py::list to_list(const std::vector<T>& rows);

// A dictionary of what has fields, a list of a vector.
template <class T>
py::object to_python(const T& value) {
  if constexpr (HasFields<T>) {
    py::dict dict;
    visit_fields(value, [&](const char* name, const auto& field) {
      dict[name] = to_python(field);
    });
    return dict;
  } else if constexpr (requires { to_list(value); }) {
    return to_list(value);
  } else {
    return py::cast(value);
  }
}

template <class T>
py::list to_list(const std::vector<T>& rows) {
  py::list list;
  for (const auto& row : rows) {
    list.append(to_python(row));
  }
  return list;
}

// A hook and the group it communicates in, None for the DDP's own.
using Choice = std::pair<std::string, std::optional<ProcessGroupPtr>>;

// Runs install(find_hook, hook_group) with the choice that `choose` returns. If
// `choose` raises, all ranks are told why, and this one raises the same.
template <class Install>
auto install_chosen(const py::function& choose, const Install& install) {
  ProcessGroupPtr hook_group;
  std::optional<py::error_already_set> raised;
  const Attachment::FindHook find_hook = to_find([&] {
    try {
      auto [hook, group] = choose().cast<Choice>();
      hook_group = std::move(group).value_or(nullptr);
      return HookChoice(hook);
    } catch (const py::error_already_set& e) {
      raised = e;
      throw Refusal(py::str(e.value()));
    }
  });
  try {
    return interruptibly([=] { return install(find_hook, hook_group); });
  } catch (const CommError&) {
    throw;
  } catch (const Error&) {
    if (raised) {
      throw *raised;
    }
    throw;
  }
}

void bind_attachment(py::module_& m) {
  py::class_<Attachment, AttachmentPtr>(m, "Attachment")
      .def(
          py::init([](std::shared_ptr<c10d::Reducer> reducer,
                      c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                      const std::vector<std::pair<std::string, at::Tensor>>&
                          parameters,
                      const py::function& choose) {
            auto ddp = foreign_ddp(
                std::move(reducer), std::move(process_group), parameters);
            return install_chosen(
                choose, [ddp](const auto& find_hook, const auto& hook_group) {
                  return make_native<Attachment>(ddp, find_hook, hook_group);
                });
          }),
          py::arg("reducer"),
          py::arg("process_group"),
          py::arg("parameters"),
          py::arg("choose"))
      .def(
          "set_hook",
          [](const AttachmentPtr& self, const py::function& choose) {
            install_chosen(
                choose, [self](const auto& find_hook, const auto& hook_group) {
                  self->set_hook(find_hook, hook_group);
                });
          },
          py::arg("choose"))
      .def("is_registered", &Attachment::is_registered)
      .def(
          "stats",
          [](const Attachment& self) {
            return to_python(without_gil([&] { return self.stats(); }));
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
