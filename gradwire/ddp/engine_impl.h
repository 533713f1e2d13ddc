#pragma once

// Private to gradwire: what a DdpEngine is made of. engine.cpp has what happens
// around a forward and a backward, engine_hook.cpp what concerns the hook.

#include <torch/nn/module.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/comm/agreement.h"
#include "gradwire/compat/reducer.h"
#include "gradwire/ddp/engine.h"
#include "gradwire/ddp/hooked_reducer.h"
#include "gradwire/ddp/joined_ddp.h"
#include "gradwire/ddp/masters.h"
#include "gradwire/ddp/model.h"
#include "gradwire/ddp/precision.h"
#include "gradwire/ddp/watch.h"

namespace gradwire {

struct DdpEngine::Impl {
  std::shared_ptr<torch::nn::Module> module;
  DistributedDataParallelOptions options;
  std::optional<CheckedHook> first_hook;
  Group parent;
  Model model;
  Group group;
  // Null where parameters compute as they are.
  std::shared_ptr<Masters> masters;
  // The watch's hooks must run before the Reducer's: it is made first.
  std::unique_ptr<GradientWatch> watch;
  compat::ReducerPair reduction;
  std::shared_ptr<HookedReducer> hooked;

  // Set while a Join lives. Gradients may arrive on other threads when it
  // ends.
  std::mutex joined_mutex;
  std::shared_ptr<JoinedDdp> joined;

  bool sync = true;
  // The forward under way will be followed by an averaging backward.
  bool syncing = false;
  bool delayed_reduction_queued = false;
  // The first iteration of a static graph was reduced without input on some
  // rank, whose Reducer does not know the graph; and whether that is this one.
  bool someone_missed_first_graph = false;
  bool missed_first_graph = false;
  Step::Time forward_began;

  c10d::Reducer& reducer() {
    return *reduction.reducer;
  }
  std::vector<Fact> inspect();
  void construct();
  void broadcast(const std::vector<at::Tensor>& tensors, int root = 0);
  void check_finished();
  void rebuild_buckets();
  void recover();
  [[noreturn]] void explain_unfinished(const c10::Error& error) const;
  void check_between_iterations(const char* call) const;
  void check_no_join(const char* call);
  bool needs_sink() const;
  void on_sink_backward();
  void end_step(const Step& watched);
  void make_gradients_plain();
  // For a Join, in engine_join.cpp.
  std::shared_ptr<JoinedDdp> current_join();
  void check_first_graph();
  int join_forward(bool grad_enabled);
  void join_backward();
  void shadow_forward(bool syncing, int root);
  Future send_empty_map() const;
  void shadow_backward();
};

}  // namespace gradwire
