#include "gradwire/rpc/answer.h"

#include <algorithm>

#include "gradwire/rpc/functions_impl.h"
#include "gradwire/rpc/rpc.h"

namespace gradwire::rpc {
namespace {

// The first argument of every call is the signature that the caller expects.
c10::IValue dispatch(
    const std::string& name, const std::vector<c10::IValue>& arguments) {
  const Function* function = find_function(name);
  if (function == nullptr) {
    fail("rpc", "there is no function '", name, "'; ", known_functions());
  }
  if (arguments.empty() || !arguments.front().isString()) {
    fail("rpc", "a call of '", name, "' came without its signature");
  }
  const std::string& called = arguments.front().toStringRef();
  if (called != function->signature) {
    fail(
        "rpc",
        "'",
        name,
        "' is ",
        function->signature,
        ", but was called as ",
        called);
  }
  if (arguments.size() != function->arity + 1) {
    fail(
        "rpc",
        "'",
        name,
        "' got ",
        arguments.size() - 1,
        " arguments, expected ",
        function->arity);
  }
  return function->invoke(
      std::vector<c10::IValue>(arguments.begin() + 1, arguments.end()));
}

}  // namespace

c10::IValue failed_answer(const std::string& text) {
  return pack_tuple({false, text});
}

bool is_transport_failure(const std::string& text) {
  const std::vector<std::string> signs{
      "originated at tensorpipe",
      "RPC ran for more than",
      "RPC is no longer running",
      "RPCErr:1:"};
  return std::ranges::any_of(signs, [&](const std::string& sign) {
    return text.find(sign) != std::string::npos;
  });
}

c10::IValue answer(
    const std::string& function, const std::vector<c10::IValue>& arguments) {
  try {
    return pack_tuple({true, dispatch(function, arguments)});
  } catch (const c10::Error& e) {
    return failed_answer(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return failed_answer(e.what());
  } catch (...) {
    return failed_answer(
        "the handler threw something that is not a std::exception");
  }
}

c10::IValue result_of(const c10::IValue& answer, const std::string& what) {
  const auto parts = elements_of(answer, "an answer", 2);
  if (Wire<bool>::unpack(parts[0])) {
    return parts[1];
  }
  throw RemoteError(concat(
      "[gradwire.rpc] ", what, ": ", Wire<std::string>::unpack(parts[1])));
}

}  // namespace gradwire::rpc
