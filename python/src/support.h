#pragma once

// What all bindings of gradwire share.

#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include "gradwire/comm/future.h"
#include "gradwire/comm/group.h"

namespace gradwire::python {

// Each adds one room to the module.
void bind_comm(py::module_& m);
void bind_ddp(py::module_& m);
void bind_optim(py::module_& m);

// Runs `work` without the GIL on a thread of its own, so that Ctrl-C can
// interrupt the wait for it. The work then goes on until it is done or times
// out, and its result is dropped. So it must own what it uses.
template <class Work>
auto interruptibly(Work work) {
  using Result = std::invoke_result_t<Work>;
  std::packaged_task<Result()> task(std::move(work));
  std::future<Result> result = task.get_future();
  {
    const py::gil_scoped_release release;
    std::thread(std::move(task)).detach();
  }
  while (true) {
    {
      const py::gil_scoped_release release;
      if (result.wait_for(std::chrono::milliseconds(50)) ==
          std::future_status::ready) {
        break;
      }
    }
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  }
  return result.get();
}

// For what waits no longer than a step takes.
template <class Work>
auto without_gil(const Work& work) {
  const py::gil_scoped_release release;
  return work();
}

// Deletes without the GIL, as a destructor may wait for threads that need it.
struct DeleteWithoutGil {
  template <class T>
  void operator()(T* object) const {
    if (PyGILState_Check() != 0) {
      const py::gil_scoped_release release;
      delete object;
    } else {
      delete object;
    }
  }
};

template <class T, class... Args>
std::shared_ptr<T> make_native(Args&&... args) {
  return std::shared_ptr<T>(
      new T(std::forward<Args>(args)...), DeleteWithoutGil());
}

// Calls done(tensor, None) or done(None, text) when the future is complete, on
// the thread that completes it.
void call_when_done(const Future& future, py::function done);

}  // namespace gradwire::python
