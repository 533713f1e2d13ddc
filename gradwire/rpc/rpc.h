#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/comm/group.h"
#include "gradwire/rpc/functions.h"
#include "gradwire/rpc/reply.h"
#include "gradwire/rpc/value.h"

// Calls between named workers, over Torch's TensorPipe. Neither authenticated
// nor encrypted: for trusted private networks only.
namespace gradwire::rpc {

// A call was refused, or its handler threw on the other worker; the text says
// what it threw.
class RemoteError : public Error {
 public:
  using Error::Error;
};

struct WorkerInfo {
  std::string name;
  // Its rank in the group.
  int id = 0;
};

enum class Transport {
  // TCP. Idle workers cost nothing.
  kTcp,
  // Shared memory between workers of one machine, TCP to others. Small calls
  // are faster, but every connected worker spins on a core.
  kSharedMemory,
};

struct Options {
  // The time for a call without a timeout of its own, and for every message of
  // a distributed backward.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  // How long shutdown() waits for the others.
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(60);
  // An object whose holder died is freed after this time.
  std::chrono::milliseconds lease = std::chrono::seconds(30);
  // How long a worker may take to say that it lives, from 100 ms on. Who serves
  // or shuts down takes one that is silent for longer for lost.
  std::chrono::milliseconds liveness = std::chrono::seconds(30);
  // Network interface to listen on. Default: the one of the group.
  std::string interface = {};
  Transport transport = Transport::kTcp;
  // Threads that move messages. Handlers have threads of their own.
  int agent_threads = 4;
};

// Makes this process the worker `name` and connects it to those of the group's
// other ranks; the name must differ from theirs. Collective over the group.
// A process is one worker at a time; after shutdown() it may become another
// one. Throws Error for a name or an option that is not possible, CommError
// when a rank does not come within the group's timeout.
void init(
    const std::string& name, const Group& group, const Options& options = {});
// The same in the group that gradwire::init() makes from the environment.
void init(const std::string& name, const Options& options = {});

// Waits until all workers have called shutdown() or serve() and no call is
// running any more, then leaves. When that takes longer than shutdown_timeout,
// or a worker is lost, this worker leaves anyway: running calls fail, and a
// CommError says why. Collective.
void shutdown();
// Serves calls until all workers have called shutdown() or serve(), without a
// time limit. Throws CommError soon after a worker is lost. Collective with
// shutdown().
void serve();

bool is_running();
WorkerInfo self();
// By id.
std::vector<WorkerInfo> workers();

// Where a call goes: a worker's name, and how long it may take.
struct To {
  To(const char* worker) : worker(worker) {}
  To(std::string worker) : worker(std::move(worker)) {}
  To(const WorkerInfo& info) : worker(info.name) {}
  To(std::string worker, std::chrono::milliseconds timeout)
      : worker(std::move(worker)), timeout(timeout) {}

  std::string worker;
  std::optional<std::chrono::milliseconds> timeout = {};
};

namespace detail {

// Sends a call to a function of this name and signature.
RawReply send(
    const To& to,
    const std::string& function,
    const std::string& signature,
    std::vector<c10::IValue> arguments);

}  // namespace detail

// Calls a function that `to` has registered, without waiting. Under an
// autograd::Context gradients flow back through tensors that require them, in
// arguments and result. Throws Error for a worker that does not exist and for
// arguments that cannot be sent. Reply::wait() throws everything else: a
// RemoteError if the call was refused or the handler threw, a CommError if the
// worker is lost or did not answer in time. Thread safe.
template <class R = void, class... Args>
Reply<R> call_async(
    const To& to, const std::string& function, const Args&... arguments) {
  static_assert(
      (Sendable<wire_t<Args>> && ...),
      "an argument's type cannot be sent: it has no gradwire::rpc::Wire");
  return Reply<R>(detail::send(
      to,
      function,
      signature<R, wire_t<Args>...>(),
      {Wire<wire_t<Args>>::pack(arguments)...}));
}

// The same, and waits for the result.
template <class R = void, class... Args>
R call(const To& to, const std::string& function, const Args&... arguments) {
  return call_async<R>(to, function, arguments...).wait();
}

// The same without a reply: the caller never learns how the call ended. The
// function's result must be void.
template <class... Args>
void notify(
    const To& to, const std::string& function, const Args&... arguments) {
  call_async<void>(to, function, arguments...);
}

}  // namespace gradwire::rpc
