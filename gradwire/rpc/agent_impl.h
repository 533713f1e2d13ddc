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
#include "gradwire/rpc/leaving.h"
#include "gradwire/rpc/neighbour_watch.h"
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

  // Returns when all workers serve calls, so that no call comes too early.
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
  // Throws Error when no worker has this name.
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

  // Tells all workers, this one included, that a worker is lost and how that
  // showed, or with no failure that it is there again.
  void tell_all_of(int worker, const std::optional<std::string>& failure);
  // What others say about a worker. Throws Error for one that does not exist.
  void hear_of(int worker, const std::optional<std::string>& failure);
  // What wakes this worker while it waits to leave.
  Leaving& leaving() {
    return leaving_;
  }

  // Collective: see rpc.h.
  void leave(std::optional<std::chrono::milliseconds> patience);
  // Leaves at once, without waiting for other workers. Only the first call does
  // anything. Never throws.
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
  // Calls a function of gradwire's own on all other workers but `but`.
  template <class... Args>
  std::vector<Reply<void>> tell_others(
      int but,
      std::chrono::milliseconds timeout,
      const std::string& function,
      const Args&... arguments);
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
  // Kept after force(): calls that come later find it and fail.
  std::shared_ptr<TorchAgent> agent_;
  StorePtr agent_store_;
  std::unique_ptr<LeaseKeeper> keeper_;
  std::unique_ptr<NeighbourWatch> watch_;
  Leaving leaving_;
  std::mutex force_mutex_;
  bool forced_ = false;
  // How many calls this worker waits for, and how many it has ever made. Shared
  // with callbacks.
  struct Calls {
    std::atomic<std::size_t> pending = 0;
    std::atomic<std::size_t> made = 0;
  };
  std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
};

// The worker that this process is. Throws Error when it is not one.
std::shared_ptr<Agent> running_agent();
// The same; null when this process is not a worker.
std::shared_ptr<Agent> find_running_agent();

// Destroys an object on a handler thread. Destructors may take long, and must
// not keep one of Torch's threads.
void end_elsewhere(std::shared_ptr<const void> object);

}  // namespace gradwire::rpc
