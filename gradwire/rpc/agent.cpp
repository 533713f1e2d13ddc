// This process as a worker: how it joins the others and calls them. How it
// leaves is in leave.cpp.

#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <map>

#include "gradwire/base/error.h"
#include "gradwire/base/sigpipe.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/compat/dist_autograd.h"
#include "gradwire/rpc/agent_impl.h"
#include "gradwire/rpc/answer.h"
#include "gradwire/rpc/callback.h"
#include "gradwire/rpc/functions_impl.h"
#include "gradwire/rpc/network.h"

namespace gradwire::rpc {
namespace {

namespace torch_rpc = torch::distributed::rpc;
namespace torch_autograd = torch::distributed::autograd;
using std::chrono::milliseconds;

// Torch counts milliseconds in an int.
constexpr milliseconds kLongest = std::chrono::hours(24 * 20);
// A loaded machine may keep a worker that lives from answering.
constexpr milliseconds kShortestLiveness{100};
// What the store may take beyond that.
constexpr milliseconds kStoreGrace{1000};

void check_duration(const char* option, milliseconds value) {
  if (value <= milliseconds(0) || value > kLongest) {
    fail(
        "rpc",
        option,
        " is ",
        value.count(),
        " ms, expected more than 0 and at most ",
        kLongest.count());
  }
}

void check_liveness(milliseconds value) {
  if (value < kShortestLiveness || value > kLongest) {
    fail(
        "rpc",
        "liveness is ",
        value.count(),
        " ms, expected at least ",
        kShortestLiveness.count(),
        " and at most ",
        kLongest.count());
  }
}

// Threads of handlers and backwards that are still running after a forced end
// refer to the agent.
void keep_for_good(std::shared_ptr<torch_rpc::TensorPipeAgent> agent) {
  static std::mutex mutex;
  static auto* all =
      new std::vector<std::shared_ptr<torch_rpc::TensorPipeAgent>>;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(agent));
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
  check_duration("timeout", options.timeout);
  check_duration("shutdown_timeout", options.shutdown_timeout);
  check_duration("lease", options.lease);
  check_liveness(options.liveness);
  if (options.agent_threads < 1) {
    fail(
        "rpc",
        "agent_threads is ",
        options.agent_threads,
        ", expected 1 or more");
  }
}

float to_seconds(milliseconds time) {
  return static_cast<float>(time.count()) / 1000;
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
      to_seconds(options.timeout),
      "env://"};
}

}  // namespace

Agent::Agent(
    const std::string& name, const Group& group, const Options& options)
    : group_(group),
      rank_(group.rank()),
      world_(group.size()),
      options_(options),
      rendezvous_(nullptr, 0, 0) {
  auto& impl = group.impl();
  agree_checked(group, "rpc::init", [&] {
    check(name, options);
    choose_interface(options.interface, impl.options.address);
    return std::vector<Fact>{{"lease in ms", concat(options.lease.count())}};
  });
  // Workers that this rank becomes one after another use different keys.
  const auto turn = impl.store->add(concat("rpc/turn/", rank_), 1);
  const StorePtr store =
      c10::make_intrusive<c10d::PrefixStore>(concat("rpc/", turn), impl.store);
  rendezvous_ = Rendezvous(store->clone(), rank_, world_);
  exchange_names(name);
  try {
    start(name, store);
  } catch (const std::exception& e) {
    force();
    throw CommError(concat(
        "[gradwire.rpc] rank ",
        rank_,
        " cannot become worker '",
        name,
        "', a rank is lost or the store is: ",
        e.what()));
  }
}

void Agent::start(const std::string& name, const StorePtr& store) {
  // Torch's threads inherit the blocked signal. Without it, writing to a worker
  // that died would end this process.
  const SigpipeBlocked no_sigpipe;
  compat::start_dist_autograd(rank_);
  agent_store_ =
      c10::make_intrusive<c10d::PrefixStore>("agent", store->clone());
  agent_store_->setTimeout(group_.timeout());
  agent_ = std::make_shared<TorchAgent>(
      agent_store_,
      name,
      static_cast<torch_rpc::worker_id_t>(rank_),
      world_,
      backend_options(options_),
      std::unordered_map<std::string, torch_rpc::DeviceMap>{},
      std::vector<c10::Device>{},
      make_callback(threads_));
  torch_rpc::RpcAgent::setCurrentRpcAgent(agent_);
  agent_->start();
  keeper_ = std::make_unique<LeaseKeeper>(options_.lease);
}

void Agent::meet() {
  rendezvous_.leave("started", "");
  wait_for_all("started");
  // From here on the store's timeout limits how long the agent waits for others
  // when it leaves. A store that is silent for longer than a worker may be is
  // lost, as rank 0 is, which serves it.
  agent_store_->setTimeout(options_.shutdown_timeout);
  rendezvous_.expect_answers_within(options_.liveness + kStoreGrace);
  if (world_ > 1) {
    watch_ = std::make_unique<NeighbourWatch>(*this);
  }
}

Agent::~Agent() {
  force();
  if (agent_) {
    keep_for_good(std::move(agent_));
  }
}

void Agent::exchange_names(const std::string& name) {
  rendezvous_.leave("name", name);
  wait_for_all("name");
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

void Agent::wait_for_all(const std::string& topic) {
  const auto late = rendezvous_.wait(topic, Clock::now() + group_.timeout());
  if (!late.empty()) {
    throw CommError(
        concat(
            "[gradwire.rpc] rank ",
            join(late),
            " did not become a worker within ",
            static_cast<double>(group_.timeout().count()) / 1000.0,
            " s"),
        {.rank = rank_});
  }
}

const WorkerInfo& Agent::find(const std::string& name) const {
  const auto found = std::ranges::find(workers_, name, &WorkerInfo::name);
  if (found == workers_.end()) {
    std::vector<std::string> names;
    names.reserve(workers_.size());
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
  check_duration("the timeout of a call", timeout);
  if (!is_function_name(function)) {
    fail("rpc", "'", function, "' is not the name of a function");
  }
  ++calls_->made;
  ++calls_->pending;
  try {
    // Recorded even without a tensor among the arguments: there may be one in
    // the result.
    auto future = torch_autograd::sendMessageWithAutograd(
        *agent_,
        agent_->getWorkerInfo(static_cast<torch_rpc::worker_id_t>(worker.id)),
        make_message(function, std::move(arguments)),
        /*forceGradRecording=*/true,
        to_seconds(timeout));
    future->addCallback([calls = calls_](auto&) { --calls->pending; });
    return {std::move(future), {function, worker.name, self().name, timeout}};
  } catch (const std::exception&) {
    --calls_->pending;
    send_failed(function, worker.name);
  }
}

// To be called while Torch's exception is handled: throws ours for it.
void Agent::send_failed(
    const std::string& function, const std::string& worker) {
  std::string text;
  try {
    throw;
  } catch (const c10::Error& e) {
    text = e.what_without_backtrace();
  } catch (const std::exception& e) {
    text = e.what();
  }
  const auto what = concat(
      "[gradwire.rpc] '",
      function,
      "' on worker '",
      worker,
      "' cannot be called: ",
      first_line(text),
      " (worker '",
      self().name,
      "')");
  if (is_transport_failure(text)) {
    throw CommError(what);
  }
  throw Error(what);
}

detail::RawReply Agent::send_own(
    int worker,
    milliseconds timeout,
    const std::string& function,
    std::vector<c10::IValue> arguments) {
  const auto& name = workers_[static_cast<std::size_t>(worker)].name;
  try {
    auto future = agent_->send(
        agent_->getWorkerInfo(static_cast<torch_rpc::worker_id_t>(worker)),
        make_message(kOwnNames + function, std::move(arguments)),
        to_seconds(timeout));
    return {
        std::move(future), {kOwnNames + function, name, self().name, timeout}};
  } catch (const std::exception&) {
    send_failed(function, name);
  }
}

}  // namespace gradwire::rpc
