#pragma once

// Private to rpc: what a worker answers, a result or what went wrong. Failures
// of handlers travel as answers, so that what fails below them is the
// transport.

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace gradwire::rpc {

// Runs the function that is called. Never throws.
c10::IValue answer(
    const std::string& function, const std::vector<c10::IValue>& arguments);

// An answer that says what went wrong.
c10::IValue failed_answer(const std::string& text);

// Whether Torch's text of a failure means that a message did not get through,
// and not that something went wrong on a worker that lives.
bool is_transport_failure(const std::string& text);

// The result in an answer. Throws Error for something else than one and
// RemoteError, with `what` before it, for one that says what went wrong.
c10::IValue result_of(const c10::IValue& answer, const std::string& what);

}  // namespace gradwire::rpc
