#include <ATen/core/Tensor.h>

#include "gradwire/comm/adopt_impl.h"
#include "gradwire/comm/callback_scope.h"
#include "gradwire/comm/compressed.h"
#include "gradwire/comm/parts.h"
#include "gradwire/hook/registry.h"
#include "python/src/support.h"

namespace gradwire::python {
namespace {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// The value, or the word that a spec says for it.
py::object fallback_of(const Option& option) {
  const std::string word = describe_fallback(option);
  if (option.named.contains(word)) {
    return py::str(word);
  }
  return std::visit(
      [](const auto& value) { return py::object(py::cast(value)); },
      option.fallback);
}

py::dict to_dict(const Option& option) {
  py::dict row;
  row["name"] = option.name;
  row["default"] = fallback_of(option);
  row["help"] = option.help;
  row["range"] = describe_range(option);
  return row;
}

py::list list_hooks() {
  py::list rows;
  for (const auto& hook : hooks()) {
    py::dict row;
    row["name"] = hook.name;
    row["summary"] = hook.summary;
    row["averages"] = hook.result == HookInfo::Result::kAverage;
    row["tolerance"] = hook.tolerance;
    row["trial"] = hook.trial;
    py::list options;
    for (const auto& option : hook.options) {
      options.append(to_dict(option));
    }
    row["options"] = options;
    rows.append(row);
  }
  return rows;
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an unknown error";
  }
}

// In place, with the roundings of the hook "allreduce".
Future average(const Group& group, at::Tensor tensor) {
  if (group.size() == 1) {
    return Future::ready(tensor);
  }
  return group.all_reduce(tensor.mul_(1.0 / group.size()));
}

}  // namespace

void call_when_done(const Future& future, py::function done) {
  // The last owner frees it with the GIL, as Python objects must be. When
  // Python ends nothing is freed.
  const std::shared_ptr<py::function> call(
      new py::function(std::move(done)), [](py::function* function) {
        if (Py_IsFinalizing() == 0) {
          const py::gil_scoped_acquire acquire;
          delete function;
        }
      });
  future.on_done([call](const Future& result) {
    if (Py_IsFinalizing() != 0) {
      return;  // there is no Python to call
    }
    const auto error = result.error();
    const py::gil_scoped_acquire acquire;
    try {
      if (error) {
        (*call)(py::none(), text_of(error));
      } else {
        (*call)(result.wait(), py::none());
      }
    } catch (py::error_already_set& e) {
      e.discard_as_unraisable("a gradwire callback");
    }
  });
}

void bind_comm(py::module_& m) {
  py::class_<Group, std::shared_ptr<Group>>(m, "Group")
      .def_static(
          "adopt",
          [](ProcessGroupPtr process_group) {
            return interruptibly([process_group = std::move(process_group)] {
              return make_native<Group>(adopt(process_group, "gradwire", [] {
                return std::vector<Fact>{};
              }));
            });
          },
          py::arg("process_group"))
      .def(
          "machine",
          [](const std::shared_ptr<Group>& group) {
            return interruptibly([group] {
              return make_native<Group>(
                  part_of(*group, machines_of(*group, process_environment())));
            });
          })
      .def(
          "average",
          [](const Group& group, const at::Tensor& tensor, py::function done) {
            const Future result =
                without_gil([&] { return average(group, tensor); });
            call_when_done(result, std::move(done));
          },
          py::arg("tensor"),
          py::arg("done"))
      .def(
          "compressed_all_reduce",
          [](const std::shared_ptr<Group>& group,
             const at::Tensor& tensor,
             const std::string& codec,
             bool average,
             py::function done) {
            const auto reduction =
                average ? Reduction::kAverage : Reduction::kSum;
            const auto start = [=] {
              return compressed_all_reduce(*group, tensor, codec, reduction);
            };
            const Future result = is_connected_for_compressed(*group)
                                      ? without_gil(start)
                                      : interruptibly(start);
            call_when_done(result, std::move(done));
          },
          py::arg("tensor"),
          py::arg("codec"),
          py::arg("average"),
          py::arg("done"));
  m.def("check_wait", &CallbackScope::check_wait);
  m.def("hooks", &list_hooks);
  m.def("check_hook_spec", &check_hook_spec, py::arg("spec"));
}

}  // namespace gradwire::python
