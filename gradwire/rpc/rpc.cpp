#include "gradwire/rpc/rpc.h"

#include <cstdlib>
#include <mutex>

#include "gradwire/base/process.h"
#include "gradwire/comm/init.h"
#include "gradwire/rpc/agent_impl.h"
#include "gradwire/rpc/local_optimizer.h"
#include "gradwire/rpc/objects_impl.h"
#include "gradwire/rpc/remote.h"

namespace gradwire::rpc {
namespace {

struct Current {
  std::mutex mutex;
  std::shared_ptr<Agent> agent;
  // Of the agent. A forked child is no worker.
  HomeProcess home;
};

Current& current() {
  // Never destroyed: see end_at_exit().
  static auto* instance = new Current;
  return *instance;
}

void set_agent(std::shared_ptr<Agent> agent) {
  const std::lock_guard lock(current().mutex);
  current().agent = std::move(agent);
  current().home = HomeProcess();
}

std::shared_ptr<Agent> take_agent() {
  if (!current().home.is_here()) {
    return nullptr;
  }
  const std::lock_guard lock(current().mutex);
  return std::exchange(current().agent, nullptr);
}

// A program that ends without shutdown() must not destroy Torch's objects while
// messages still arrive.
void end_at_exit() {
  if (const auto agent = take_agent()) {
    agent->force();
  }
}

void leave(
    const char* call, std::optional<std::chrono::milliseconds> patience) {
  if (HandlerThreads::is_handler_thread()) {
    fail(
        "rpc",
        call,
        " was called by a handler and would wait for its end: call it from a "
        "thread of the program");
  }
  // Other calls continue while this one waits; afterwards there is no worker.
  struct Taken {
    ~Taken() {
      take_agent();
      forget_objects();
    }
  } taken;
  running_agent()->leave(patience);
}

}  // namespace

std::shared_ptr<Agent> find_running_agent() {
  if (!current().home.is_here()) {
    return nullptr;
  }
  const std::lock_guard lock(current().mutex);
  return current().agent;
}

std::shared_ptr<Agent> running_agent() {
  auto agent = find_running_agent();
  if (!agent) {
    fail("rpc", "this process is no worker: call gradwire::rpc::init() first");
  }
  return agent;
}

void end_elsewhere(std::shared_ptr<const void> object) {
  if (const auto agent = find_running_agent()) {
    try {
      agent->threads().run(
          HandlerThreads::Kind::kUpkeep,
          [kept = std::move(object)]() mutable { kept = nullptr; });
    } catch (const Error&) {
      // It ended here, as no thread can be started.
    }
  }
}

void init(const std::string& name, const Group& group, const Options& options) {
  static const bool once = [] {
    register_own_functions();
    register_class<at::Tensor>("Tensor");
    register_local_optimizer();
    return std::atexit(end_at_exit) == 0;
  }();
  static_cast<void>(once);
  if (find_running_agent()) {
    fail("rpc", "this process is a worker already, expected shutdown() first");
  }
  if (!group) {
    fail("rpc", "got an empty group");
  }
  const auto agent = std::make_shared<Agent>(name, group, options);
  set_agent(agent);
  try {
    agent->meet();
  } catch (...) {
    take_agent();
    agent->force();
    throw;
  }
}

void init(const std::string& name, const Options& options) {
  init(name, gradwire::init(), options);
}

void shutdown() {
  leave("shutdown", running_agent()->options().shutdown_timeout);
}

void serve() {
  leave("serve", std::nullopt);
}

bool is_running() {
  return find_running_agent() != nullptr;
}

WorkerInfo self() {
  return running_agent()->self();
}

std::vector<WorkerInfo> workers() {
  return running_agent()->workers();
}

namespace detail {

RawReply send(
    const To& to,
    const std::string& function,
    const std::string& signature,
    std::vector<c10::IValue> arguments) {
  arguments.insert(arguments.begin(), signature);
  return running_agent()->call(to, function, std::move(arguments));
}

}  // namespace detail

}  // namespace gradwire::rpc
