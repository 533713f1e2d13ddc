#pragma once

// Private to rpc: this process as a worker.

#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gradwire/rpc/handler_threads.h"
#include "gradwire/rpc/lease_keeper.h"
#include "gradwire/rpc/rendezvous.h"
#include "gradwire/rpc/rpc.h"

namespace gradwire::rpc {

// There is at most one in a process: Torch's agent, autograd container and
// engine are singletons. Thread safe but for shutdown.
class Agent {
 public:
  // Collective over the group.
  Agent(const std::string& name, const Group& group, const Options& options);
  ~Agent();
  Agent(const Agent&) = delete;

  // Returns when all workers serve calls: nobody calls one that does not yet.
  // Collective.
  void meet();

  const WorkerInfo& self() const {
    return workers_[static_cast<std::size_t>(rank_)];
  }
  const std::vector<WorkerInfo>& workers() const {
    return workers_;
  }
  const Options& options() const {
    return options_;
  }
  // Throws Error for a name no worker has.
  const WorkerInfo& find(const std::string& name) const;

  // A call in the current autograd context, if there is one.
  detail::RawReply call(
      const To& to,
      const std::string& function,
      std::vector<c10::IValue> arguments);
  // A call of gradwire's own: part of no context, and shutdown does not wait
  // for it. `function` without the prefix of own functions.
  template <class R, class... Args>
  Reply<R> call_own(
      int worker,
      std::chrono::milliseconds timeout,
      const std::string& function,
      const Args&... arguments) {
    return Reply<R>(send_own(
        worker,
        timeout,
        function,
        {signature<R, Args...>(), Wire<Args>::pack(arguments)...}));
  }

  // Collective: see rpc.h.
  void leave(std::optional<std::chrono::milliseconds> patience);
  // At once, whoever else is still there; once is enough. Never throws.
  void force() noexcept;
  HandlerThreads& threads() {
    return *threads_;
  }

 private:
  using TorchAgent = torch::distributed::rpc::TensorPipeAgent;
  using Clock = std::chrono::steady_clock;

  void exchange_names(const std::string& name);
  void start(const std::string& name, const StorePtr& store);
  void wait_for_all(const std::string& topic);
  void wait_until_idle(Clock::time_point deadline);
  void wait_for_leavers(const std::string& topic, Clock::time_point deadline);
  void leave_gracefully(Clock::time_point deadline);
  void check_alive(Clock::time_point deadline);
  [[noreturn]] void send_failed(
      const std::string& function, const std::string& worker);
  detail::RawReply send_own(
      int worker,
      std::chrono::milliseconds timeout,
      const std::string& function,
      std::vector<c10::IValue> arguments);
  c10::intrusive_ptr<torch::distributed::rpc::Message> make_message(
      const std::string& function, std::vector<c10::IValue> arguments) const;

  // Keeps the store's host alive.
  Group group_;
  int rank_;
  int world_;
  Options options_;
  std::vector<WorkerInfo> workers_;
  Rendezvous rendezvous_;
  std::shared_ptr<HandlerThreads> threads_ = std::make_shared<HandlerThreads>();
  // Stays after force(), for calls that come too late.
  std::shared_ptr<TorchAgent> agent_;
  StorePtr agent_store_;
  std::unique_ptr<LeaseKeeper> keeper_;
  std::mutex force_mutex_;
  bool forced_ = false;
  // Calls made by this worker: under way, and ever. Shared with callbacks.
  struct Calls {
    std::atomic<std::size_t> pending = 0;
    std::atomic<std::size_t> made = 0;
  };
  std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
};

// The worker this process is. Throws Error when it is none.
std::shared_ptr<Agent> running_agent();
// Null when it is none.
std::shared_ptr<Agent> find_running_agent();

// Lets go of something whose end may take its time, on a handler thread: not on
// one of Torch's.
void end_elsewhere(std::shared_ptr<const void> object);

}  // namespace gradwire::rpc
