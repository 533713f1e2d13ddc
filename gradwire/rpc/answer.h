#pragma once

// Private to rpc: what a worker answers, which is a result or an error text.
// Errors of handlers travel as answers, so that any other failure is one of the
// transport.

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace gradwire::rpc {

// Runs the function that is called. Never throws.
c10::IValue answer(
    const std::string& function, const std::vector<c10::IValue>& arguments);

// An answer with an error text.
c10::IValue failed_answer(const std::string& text);

// Whether Torch's error text means that a message did not arrive. Otherwise
// something went wrong on a worker that is alive.
bool is_transport_failure(const std::string& text);

// The result in an answer. Throws RemoteError for an error text, which it puts
// behind `what`, and Error for bytes that are not an answer.
c10::IValue result_of(const c10::IValue& answer, const std::string& what);

}  // namespace gradwire::rpc
