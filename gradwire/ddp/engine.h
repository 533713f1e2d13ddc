#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/comm/group.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/ddp/options.h"
#include "gradwire/ddp/stats.h"

namespace torch::nn {
class Module;
}

namespace gradwire {

class JoinedDdp;
class Masters;

// What DistributedDataParallel does, for a module of any type. Users see it
// through the handle in ddp.h. Not thread safe: one thread trains.
class DdpEngine {
 public:
  // Collective over `group`.
  DdpEngine(
      std::shared_ptr<torch::nn::Module> module,
      const Group& group,
      const DistributedDataParallelOptions& options);
  ~DdpEngine();
  DdpEngine(const DdpEngine&) = delete;

  void before_forward();
  // Around the module's own forward, between these two.
  class ForwardScope {
   public:
    explicit ForwardScope(DdpEngine& engine);
    ~ForwardScope();
    ForwardScope(const ForwardScope&) = delete;

   private:
    Masters* masters_;
  };
  // What tensors of floats among the arguments of forward are cast to.
  std::optional<at::ScalarType> input_type() const;
  // May exchange the tensors pointed at for ones that share their memory.
  void after_forward(const std::vector<at::Tensor*>& outputs);

  // Off: backward leaves gradients local, on top of what is there.
  bool sync() const;
  void set_sync(bool on);

  // Collective. `group`: where the hook communicates, instead of on the DDP's
  // own connections.
  void set_hook(const HookChoice& hook, const std::optional<Group>& group = {});
  // The same, refused when a hook is there already.
  void register_hook_once(
      const HookChoice& hook, const std::optional<Group>& group);
  const std::string& hook() const;

  // Collective: see hook_state.h.
  void save_hook_state(const std::string& folder);
  void load_hook_state(const std::string& folder, const LoadHookState& options);

  Stats stats() const;

  // Null: none. See join.h.
  void set_join(std::shared_ptr<JoinedDdp> join);
  bool is_joined() const;
  // The group it was made on, and the one of its own.
  const Group& parent() const;
  const Group& group() const;

 private:
  friend class JoinedDdp;
  struct Impl;
  // Shared with nodes of graphs that may outlive this object.
  std::shared_ptr<Impl> impl_;
};

}  // namespace gradwire
