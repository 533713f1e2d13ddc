// A DDP under a Join: what ranks with input tell the others, and what those do.

#include <ATen/ATen.h>

#include "gradwire/base/error.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/ddp/engine_impl.h"

namespace gradwire {

void DdpEngine::set_join(std::shared_ptr<JoinedDdp> join) {
  impl_->joined = std::move(join);
  if (!impl_->joined) {
    impl_->divide_by(impl_->group.size());
  }
}

const Group& DdpEngine::parent() const {
  return impl_->parent;
}

// Returns the rank whose buffers count.
int DdpEngine::Impl::join_forward(bool grad_enabled) {
  if (missed_first_graph && syncing) {
    fail(
        "ddp",
        "with static_graph every rank must have input in the first iteration; "
        "rank ",
        group.rank(),
        " had none");
  }
  if (!joined || !grad_enabled) {
    return 0;
  }
  const auto roster = joined->announce(
      syncing ? JoinedDdp::Event::kForward : JoinedDdp::Event::kLocalForward);
  if (joined->divides_by_active()) {
    divide_by(roster.active);
  }
  return roster.lead;
}

void DdpEngine::Impl::join_backward() {
  if (joined) {
    joined->announce(JoinedDdp::Event::kBackward);
  }
}

// Hooks average over all ranks, the Reducer by itself over as many as it is
// told.
void DdpEngine::Impl::divide_by(int ranks) {
  const int all = group.size();
  if (adapter) {
    adapter->set_scale(static_cast<double>(all) / ranks);
  } else {
    compat::set_divisor(reducer(), ranks == all ? 0 : ranks);
  }
}

void DdpEngine::Impl::shadow_forward(bool syncs, int root) {
  if (syncs) {
    reducer().prepare_for_forward();
  }
  rebuild_buckets();
  if (options.broadcast_buffers && syncs) {
    broadcast(model.buffers, root);
  }
}

// Says that this rank used no parameter.
Future DdpEngine::Impl::send_empty_map() const {
  const auto count = static_cast<std::int64_t>(model.trainable.size());
  return group.all_reduce(at::zeros({count}, at::kInt));
}

void DdpEngine::Impl::shadow_backward() {
  const at::NoGradGuard no_grad;
  if (adapter) {
    adapter->begin_backward();
  }
  // The map of used parameters goes last, but first in the first iteration of
  // a static graph, and never again there.
  const bool first_graph = options.static_graph && !delayed_reduction_queued;
  std::vector<Future> maps;
  if (first_graph) {
    delayed_reduction_queued = true;
    missed_first_graph = true;
    maps.push_back(send_empty_map());
  }
  std::vector<Future::Raw> results;
  auto buckets = compat::zero_buckets(reducer());
  for (auto& bucket : buckets) {
    results.push_back(reducer().run_comm_hook(bucket));
  }
  if (options.find_unused_parameters && !options.static_graph) {
    maps.push_back(send_empty_map());
  }
  for (const auto& map : maps) {
    map.wait();
  }
  for (const auto& result : results) {
    result->waitAndThrow();
  }
  // Others note the order of gradients for the next buckets from now on, but
  // not in the first iteration of a static graph.
  if (!first_graph) {
    reducer().push_rebuilt_params_for_all_indices();
  }
}

}  // namespace gradwire
