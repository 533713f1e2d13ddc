#pragma once

// Values of gradwire as Python dictionaries, and back.

#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "gradwire/base/bytes.h"
#include "gradwire/base/error.h"
#include "gradwire/hook/hook_record.h"
#include "python/src/support.h"

namespace gradwire::python {

py::dict to_dict(const Bytes& bytes);
py::dict to_dict(const HookState& state);
py::dict to_dict(const HookRecord& record);

// What is wrong with an argument on this rank. All ranks will be told.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What `read` returns, for a call that runs without the GIL: it is read here,
// with the GIL. If `read` refuses, the call tells all ranks.
template <class Read>
auto to_find(const Read& read)
    -> std::function<std::invoke_result_t<const Read&>()> {
  try {
    return [found = read()] { return found; };
  } catch (const Refusal& e) {
    return
        [why = std::string(e.what())]() -> std::invoke_result_t<const Read&> {
          fail("ddp", why);
        };
  }
}

// Both throw Refusal for a dictionary that is none of to_dict's.
HookState to_state(const py::dict& dict);
HookRecord to_record(const py::dict& dict);

}  // namespace gradwire::python
