#include "gradwire/ddp/attachment.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <optional>
#include <set>

#include "gradwire/base/error.h"
#include "gradwire/comm/adopt_impl.h"
#include "gradwire/compat/reducer.h"
#include "gradwire/ddp/hooked_reducer.h"
#include "gradwire/ddp/model.h"

namespace gradwire {
namespace {

// Those of the module that the Reducer has.
Parameters reduced_parameters(const ForeignDdp& ddp) {
  std::set<const void*> reduced;
  for (const auto& bucket : ddp.reducer->get_grad_buckets(false)) {
    for (const auto& tensor : bucket.getParameters()) {
      reduced.insert(tensor.unsafeGetTensorImpl());
    }
  }
  Parameters result;
  for (const auto& parameter : ddp.parameters) {
    if (reduced.contains(parameter.tensor.unsafeGetTensorImpl())) {
      check_device(parameter.name, parameter.tensor);
      result.push_back(std::make_shared<const Parameter>(parameter));
    }
  }
  if (result.size() != reduced.size()) {
    fail(
        "ddp",
        "the module has ",
        result.size(),
        " of the ",
        reduced.size(),
        " parameters that its DDP was made with, expected all: attach before "
        "parameters are replaced");
  }
  return result;
}

std::vector<Fact> facts_of(
    const CheckedHook& hook, const Parameters& parameters) {
  std::vector<Fact> facts{{"hook", hook.text()}};
  for (const auto& parameter : parameters) {
    facts.push_back(
        {concat("parameter ", facts.size() - 1),
         describe(parameter->name, parameter->tensor)});
  }
  return facts;
}

Fact group_fact(const Attachment::ProcessGroupPtr& hook_group) {
  return {"process group", hook_group ? "one of its own" : "the DDP's"};
}

// With connections that no other hook shares.
Group connect(const Attachment::ProcessGroupPtr& hook_group) {
  if (!hook_group) {
    return {};
  }
  return adopt(hook_group, "attach", [] { return std::vector<Fact>{}; });
}

}  // namespace

struct Attachment::Impl {
  std::shared_ptr<c10d::Reducer> reducer;
  Group group;
  std::shared_ptr<HookedReducer> hooked;
  // Steps that the Reducer averaged by itself, and its count when it began to.
  std::int64_t plain_steps = 0;
  std::int64_t counted = 0;

  void count_plain_steps() {
    const auto now = compat::synced_forwards(*reducer);
    if (!hooked->is_registered()) {
      plain_steps += now - counted;
    }
    counted = now;
  }

  void check_between_iterations(const char* call) const {
    if (hooked->in_backward()) {
      fail(
          "ddp",
          call,
          " was called in the middle of a backward, expected it between two "
          "iterations (rank ",
          group.rank(),
          ")");
    }
  }

  std::function<void()> between_iterations(const char* call) const {
    return [this, call] { check_between_iterations(call); };
  }
};

Attachment::Attachment(
    const ForeignDdp& ddp,
    const FindHook& find_hook,
    const ProcessGroupPtr& hook_group)
    : impl_(std::make_unique<Impl>()) {
  Parameters parameters;
  std::optional<CheckedHook> hook;
  impl_->reducer = ddp.reducer;
  impl_->group = adopt(ddp.process_group, "attach", [&] {
    hook = find_hook().check();
    hook->check_free(nullptr);
    parameters = reduced_parameters(ddp);
    hook->check_parameters(parameters);
    auto facts = facts_of(*hook, parameters);
    facts.push_back(group_fact(hook_group));
    return facts;
  });
  const Group& group = impl_->group;
  impl_->counted = compat::synced_forwards(*ddp.reducer);
  impl_->hooked =
      HookedReducer::make(ddp.reducer, std::move(parameters), group, group);
  impl_->hooked->install(*hook, connect(hook_group));
}

Attachment::~Attachment() = default;

void Attachment::set_hook(
    const FindHook& find_hook, const ProcessGroupPtr& hook_group) {
  Impl& impl = *impl_;
  impl.hooked->check_group();
  std::optional<CheckedHook> hook;
  agree_checked(impl.group, "attach", [&] {
    hook = find_hook().check();
    hook->check_free(impl.hooked.get());
    hook->check_parameters(impl.hooked->parameters());
    impl.check_between_iterations("attach");
    return std::vector<Fact>{{"hook", hook->text()}, group_fact(hook_group)};
  });
  if (impl.hooked->failed()) {
    impl.hooked->settle();
  }
  impl.count_plain_steps();
  impl.hooked->install(*hook, connect(hook_group));
}

bool Attachment::is_registered() const {
  return impl_->hooked->is_registered();
}

Stats Attachment::stats() const {
  Impl& impl = *impl_;
  impl.count_plain_steps();
  Stats stats = impl.hooked->stats();
  if (impl.plain_steps == 0) {
    return stats;
  }
  // On Torch's own connections, which nobody meters.
  const Bytes sent{.payload = impl.plain_steps * stats.plain_bytes};
  stats.sent_by_hook.insert(
      stats.sent_by_hook.begin(), {"none", impl.plain_steps, sent});
  stats.steps += impl.plain_steps;
  stats.sent = stats.sent + sent;
  if (!is_registered()) {
    stats.last.sent = {.payload = stats.plain_bytes};
  }
  return stats;
}

void Attachment::save_hook_state(const std::string& folder) {
  impl_->hooked->save(folder, impl_->between_iterations("save_hook_state"));
}

void Attachment::load_hook_state(
    const std::string& folder, const LoadHookState& options) {
  impl_->hooked->load(
      folder, options, impl_->between_iterations("load_hook_state"));
}

HookRecord Attachment::take_hook_state() {
  return impl_->hooked->take(impl_->between_iterations("hook_state_dict"));
}

void Attachment::give_hook_state(
    const std::function<HookRecord()>& find_record) {
  impl_->hooked->give([&] {
    impl_->check_between_iterations("load_hook_state_dict");
    return find_record();
  });
}

void Attachment::stop() {
  impl_->hooked->stop();
}

}  // namespace gradwire
