// This process as a worker: joining the others and calling them. leave.cpp has
// how it leaves.

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <map>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/sigpipe.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/rpc/agent_impl.h"
#include "gradwire/rpc/callback.h"
#include "gradwire/rpc/functions_impl.h"
#include "gradwire/rpc/network.h"

namespace gradwire::rpc {
namespace {

namespace torch_rpc = torch::distributed::rpc;
namespace torch_autograd = torch::distributed::autograd;
using std::chrono::milliseconds;

void check_positive(const char* option, milliseconds value) {
  if (value <= milliseconds(0)) {
    fail("rpc", option, " is ", value.count(), " ms, expected more than 0");
  }
}

void check(const std::string& name, const Options& options) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == ':';
  };
  const std::size_t longest = torch_rpc::WorkerInfo::MAX_NAME_LEN - 1;
  if (name.empty() || name.size() > longest || name.starts_with("rank:") ||
      !std::ranges::all_of(name, fits)) {
    fail(
        "rpc",
        "a worker cannot be called '",
        name,
        "', expected 1 to ",
        longest,
        " letters, digits, '_', '-' and ':', not beginning with 'rank:'");
  }
  check_positive("timeout", options.timeout);
  check_positive("shutdown_timeout", options.shutdown_timeout);
  check_positive("lease", options.lease);
  if (options.agent_threads < 1) {
    fail(
        "rpc",
        "agent_threads is ",
        options.agent_threads,
        ", expected 1 or more");
  }
}

// The only type name that messages need: distributed autograd sends a map of
// devices along. Ours carry none.
std::shared_ptr<torch_rpc::TypeResolver> make_type_resolver() {
  return std::make_shared<torch_rpc::TypeResolver>(
      [](const c10::QualifiedName& name) {
        if (name.qualifiedName() != "Dict[str, str]") {
          refuse(concat("a message with the type ", name.qualifiedName()));
        }
        return c10::StrongTypePtr(
            nullptr,
            c10::DictType::create(
                c10::StringType::get(), c10::StringType::get()));
      });
}

torch_rpc::TensorPipeRpcBackendOptions backend_options(const Options& options) {
  using Names = std::vector<std::string>;
  const bool shm = options.transport == Transport::kSharedMemory;
  return {
      options.agent_threads,
      shm ? Names{"shm", "uv"} : Names{"uv"},
      // Not several connections for one tensor (mpt_uv): small calls would take
      // twice as long.
      Names{"cma", "basic"},
      static_cast<float>(options.timeout.count()) / 1000,
      "env://"};
}

float to_seconds(milliseconds time) {
  return static_cast<float>(time.count()) / 1000;
}

}  // namespace

Agent::Agent(
    const std::string& name, const Group& group, const Options& options)
    : group_(group),
      rank_(group.rank()),
      world_(group.size()),
      options_(options),
      rendezvous_(nullptr, 0, 0) {
  check(name, options);
  auto& impl = group.impl();
  choose_interface(options.interface, impl.options.address);
  // Several workers one after another must not read each other's keys.
  const auto turn = impl.store->add(concat("rpc/turn/", rank_), 1);
  const StorePtr store =
      c10::make_intrusive<c10d::PrefixStore>(concat("rpc/", turn), impl.store);
  rendezvous_ = Rendezvous(store, rank_, world_);
  exchange_names(name);
  // Torch's threads inherit it: a worker that dies must not take those along
  // that write to it.
  const SigpipeBlocked no_sigpipe;
  torch_autograd::DistAutogradContainer::init(rank_);
  // Its own timeout is how long the agent waits for others when it leaves.
  const StorePtr agent_store =
      c10::make_intrusive<c10d::PrefixStore>("agent", store->clone());
  agent_store->setTimeout(options.shutdown_timeout);
  agent_ = std::make_shared<TorchAgent>(
      agent_store,
      name,
      static_cast<torch_rpc::worker_id_t>(rank_),
      world_,
      backend_options(options),
      std::unordered_map<std::string, torch_rpc::DeviceMap>{},
      std::vector<c10::Device>{},
      make_callback(threads_));
  torch_rpc::RpcAgent::setCurrentRpcAgent(agent_);
  agent_->setTypeResolver(make_type_resolver());
  agent_->start();
  keeper_ = std::make_unique<LeaseKeeper>(options_.lease);
}

void Agent::meet() {
  rendezvous_.leave("started", "");
  wait_for_all("started", Clock::now() + group_.timeout());
}

Agent::~Agent() {
  force();
}

void Agent::exchange_names(const std::string& name) {
  rendezvous_.leave("name", name);
  wait_for_all("name", Clock::now() + group_.timeout());
  std::map<std::string, int> seen;
  for (const auto& each : rendezvous_.read("name")) {
    const int rank = static_cast<int>(workers_.size());
    const auto [first, is_new] = seen.emplace(each, rank);
    if (!is_new) {
      fail(
          "rpc",
          "ranks ",
          first->second,
          " and ",
          rank,
          " both want to be worker '",
          each,
          "'");
    }
    workers_.push_back({each, rank});
  }
}

void Agent::wait_for_all(const std::string& topic, Clock::time_point deadline) {
  for (;;) {
    const auto missing = rendezvous_.missing(topic);
    if (missing.empty()) {
      return;
    }
    if (Clock::now() >= deadline) {
      throw CommError(concat(
          "[gradwire.rpc] rank ",
          join(missing),
          " did not become a worker within ",
          group_.timeout().count() / 1000.0,
          " s (rank ",
          rank_,
          " of ",
          world_,
          ")"));
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
}

const WorkerInfo& Agent::find(const std::string& name) const {
  const auto found = std::ranges::find(workers_, name, &WorkerInfo::name);
  if (found == workers_.end()) {
    std::vector<std::string> names;
    for (const auto& worker : workers_) {
      names.push_back(worker.name);
    }
    fail(
        "rpc",
        "there is no worker '",
        name,
        "', expected one of ",
        join(names));
  }
  return *found;
}

c10::intrusive_ptr<torch_rpc::Message> Agent::make_message(
    const std::string& function, std::vector<c10::IValue> arguments) const {
  return torch_rpc::ScriptCall(
             c10::QualifiedName(function), std::move(arguments))
      .toMessage();
}

detail::RawReply Agent::call(
    const To& to,
    const std::string& function,
    std::vector<c10::IValue> arguments) {
  const WorkerInfo& worker = find(to.worker);
  const milliseconds timeout = to.timeout.value_or(options_.timeout);
  check_positive("the timeout of a call", timeout);
  auto message = make_message(function, std::move(arguments));
  ++calls_->made;
  ++calls_->pending;
  // Recorded even without a tensor among the arguments: the result may have
  // some.
  auto future = torch_autograd::sendMessageWithAutograd(
      *agent_,
      agent_->getWorkerInfo(static_cast<torch_rpc::worker_id_t>(worker.id)),
      std::move(message),
      /*forceGradRecording=*/true,
      to_seconds(timeout));
  future->addCallback([calls = calls_](auto&) { --calls->pending; });
  return {std::move(future), {function, worker.name, self().name, timeout}};
}

detail::RawReply Agent::send_own(
    int worker,
    milliseconds timeout,
    const std::string& function,
    std::vector<c10::IValue> arguments) {
  auto future = agent_->send(
      agent_->getWorkerInfo(static_cast<torch_rpc::worker_id_t>(worker)),
      make_message(kOwnNames + function, std::move(arguments)),
      to_seconds(timeout));
  const auto& name = workers_[static_cast<std::size_t>(worker)].name;
  return {
      std::move(future), {kOwnNames + function, name, self().name, timeout}};
}

}  // namespace gradwire::rpc
