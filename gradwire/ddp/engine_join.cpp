// A DDP under a Join: what ranks with input tell the others, and what those do.

#include <ATen/ATen.h>

#include <unordered_map>

#include "gradwire/base/error.h"
#include "gradwire/comm/group_impl.h"
#include "gradwire/ddp/engine_impl.h"

namespace gradwire {

void DdpEngine::set_join(std::shared_ptr<JoinedDdp> join) {
  const bool ends = !join;
  {
    const std::lock_guard lock(impl_->joined_mutex);
    impl_->joined = std::move(join);
  }
  if (ends) {
    impl_->hooked->average_over(impl_->group.size());
  }
}

bool DdpEngine::is_joined() const {
  return impl_->current_join() != nullptr;
}

const Group& DdpEngine::parent() const {
  return impl_->parent;
}

const Group& DdpEngine::group() const {
  return impl_->group;
}

std::shared_ptr<JoinedDdp> DdpEngine::Impl::current_join() {
  const std::lock_guard lock(joined_mutex);
  return joined;
}

// Inside of a Join a rank that throws is noticed at once, so only those that
// cannot go on do; outside all of them must.
void DdpEngine::Impl::check_first_graph() {
  const bool stops =
      current_join() ? missed_first_graph : someone_missed_first_graph;
  if (stops && syncing) {
    fail(
        "ddp",
        "with static_graph every rank must have input in the first iteration; ",
        missed_first_graph ? "this one" : "another one",
        " had none (rank ",
        group.rank(),
        ")");
  }
}

// Returns the rank whose buffers count.
int DdpEngine::Impl::join_forward(bool grad_enabled) {
  check_first_graph();
  const auto join = current_join();
  if (!join || !grad_enabled) {
    return 0;
  }
  check_finished();
  const auto roster = join->announce(
      syncing ? JoinedDdp::Event::kForward : JoinedDdp::Event::kLocalForward);
  if (join->divides_by_active()) {
    hooked->average_over(roster.active);
  }
  return roster.lead;
}

void DdpEngine::Impl::join_backward() {
  if (const auto join = current_join()) {
    const auto roster = join->announce(JoinedDdp::Event::kBackward);
    if (options.static_graph && hooked->steps() == 0 &&
        roster.active < group.size()) {
      someone_missed_first_graph = true;
    }
  }
}

void DdpEngine::Impl::shadow_forward(bool syncs, int root) {
  if (syncs) {
    if (hooked->failed()) {
      recover();
    }
    reducer().prepare_for_forward();
  }
  rebuild_buckets();
  if (options.broadcast_buffers && syncs) {
    broadcast(model.buffers, root);
  }
}

// As the Reducers of ranks with input do. `used`: on how many ranks each
// parameter was; undefined: the Reducer knows.
void DdpEngine::Impl::write_shadow_gradients(
    const std::vector<c10d::GradBucket>& buckets,
    const std::vector<Future::Raw>& results,
    const at::Tensor& used) {
  std::unordered_map<const void*, std::size_t> index_of;
  for (const auto& parameter : model.trainable) {
    index_of.emplace(parameter->tensor.unsafeGetTensorImpl(), index_of.size());
  }
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    if (results[b]->hasError()) {
      continue;
    }
    Parameters members;
    std::vector<bool> is_used;
    for (const auto& tensor : buckets[b].getParameters()) {
      const std::size_t index = index_of.at(tensor.unsafeGetTensorImpl());
      members.push_back(model.trainable[index]);
      is_used.push_back(
          used.defined() ? used.const_data_ptr<int>()[index] > 0
                         : compat::has_gradient(reducer(), index));
    }
    const Bucket average(
        b, false, results[b]->value().toTensor(), std::move(members), is_used);
    for (std::size_t i = 0; i < average.size(); ++i) {
      average.parameter(i).tensor.mutable_grad() =
          is_used[i] ? average.gradient(i).clone() : at::Tensor();
    }
  }
}

// Says that this rank used no parameter.
Future DdpEngine::Impl::send_empty_map() const {
  const auto count = static_cast<std::int64_t>(model.trainable.size());
  return group.all_reduce(at::zeros({count}, at::kInt));
}

void DdpEngine::Impl::shadow_backward() {
  const at::NoGradGuard no_grad;
  hooked->begin_step({});
  // The map of used parameters goes last, but first in the first iteration of
  // a static graph, and never again there.
  const bool first_graph = options.static_graph && !delayed_reduction_queued;
  std::vector<Future> maps;
  at::Tensor used = used_in_first_graph;
  if (first_graph) {
    delayed_reduction_queued = true;
    missed_first_graph = true;
    someone_missed_first_graph = true;
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
    used = map.wait();
  }
  if (first_graph) {
    used_in_first_graph = used;
  }
  for (const auto& result : results) {
    result->wait();
    // What failed on all ranks alike costs them a step, and this one too.
    if (result->hasError() &&
        (!hooked->is_registered() || hooked->lost_group())) {
      result->waitAndThrow();
    }
  }
  if (hooked->needs_gradients()) {
    write_shadow_gradients(buckets, results, used);
  }
  hooked->end_step_of_others();
  // Others note the order of gradients for the next buckets from now on, but
  // not in the first iteration of a static graph.
  if (!first_graph) {
    reducer().push_rebuilt_params_for_all_indices();
  }
}

}  // namespace gradwire
