#include <set>

#include "gradwire/base/error.h"
#include "gradwire/comm/adopt_impl.h"
#include "gradwire/compat/reducer.h"
#include "gradwire/ddp/attachment_impl.h"
#include "gradwire/ddp/hook_slot.h"
#include "gradwire/ddp/model.h"
#include "gradwire/ddp/step_meter.h"

namespace gradwire {
namespace {

using Parameters = std::vector<std::shared_ptr<const Parameter>>;

// Takes the place of a hook that was stopped.
class StoppedHook : public Hook {
 public:
  Future reduce(Bucket&) override {
    fail("hook", "the hook was stopped, or the DDP it belongs to is gone");
  }
};

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
    const HookChoice& hook, const Parameters& parameters) {
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

void check(const std::string& refusal) {
  if (!refusal.empty()) {
    fail("ddp", refusal);
  }
}

}  // namespace

struct Attachment::Impl : std::enable_shared_from_this<Attachment::Impl> {
  std::shared_ptr<c10d::Reducer> reducer;
  Group group;
  std::unique_ptr<HookSlot> slot;
  std::unique_ptr<StepMeter> meter;
  // The Reducer has not put its buckets into the order of gradients yet.
  bool to_rebuild = false;
  bool rebuilt = false;
  // The last backward is not in the meter yet.
  bool counts = false;
  // Steps that the Reducer averaged by itself, and its count when it began to.
  std::int64_t plain_steps = 0;
  std::int64_t counted = 0;

  void install(const HookChoice& hook, const Group& hook_group) {
    end_step();
    count_plain_steps();
    try {
      slot->install(hook, hook_group ? hook_group : group);
    } catch (const c10::Error& error) {
      fail("ddp", error.what_without_backtrace());
    }
    meter->follow(hook_group);
    if (auto* adapter = slot->adapter()) {
      adapter->begin_by_itself([weak = weak_from_this()] {
        if (const auto alive = weak.lock()) {
          alive->begin_backward();
        }
      });
    }
  }

  void count_plain_steps() {
    const auto now = compat::synced_forwards(*reducer);
    if (slot->adapter() == nullptr) {
      plain_steps += now - counted;
    }
    counted = now;
  }

  // Runs inside of the Reducer.
  void begin_backward() {
    if (slot->failed()) {
      slot->settle();
    }
    end_step();
    if (to_rebuild && !reducer->should_rebuild_buckets()) {
      to_rebuild = false;
      rebuilt = true;
      slot->layout_changed();
    }
    counts = true;
  }

  void end_step() {
    const auto* adapter = slot->adapter();
    if (!counts || adapter == nullptr) {
      return;
    }
    if (const auto times = adapter->times()) {
      meter->end_step(
          {times->first_bucket, times->last_bucket, times->reduced},
          slot->text());
      counts = false;
    }
  }

  void check_between_iterations(const char* call) const {
    const auto* adapter = slot->adapter();
    if (adapter != nullptr && adapter->in_backward()) {
      fail(
          "ddp",
          call,
          " was called in the middle of a backward, expected it between two "
          "iterations (rank ",
          group.rank(),
          ")");
    }
  }

  std::function<void()> between_iterations(const char* call) {
    return [this, call] { check_between_iterations(call); };
  }
};

Attachment::Attachment(
    ForeignDdp ddp,
    const HookChoice& hook,
    const ProcessGroupPtr& hook_group,
    const std::string& refusal)
    : impl_(std::make_shared<Impl>()) {
  Parameters parameters;
  impl_->reducer = ddp.reducer;
  impl_->group = adopt(ddp.process_group, "attach", [&] {
    check(refusal);
    parameters = reduced_parameters(ddp);
    auto facts = facts_of(hook, parameters);
    facts.push_back(group_fact(hook_group));
    return facts;
  });
  const Group& group = impl_->group;
  impl_->to_rebuild = ddp.reducer->should_rebuild_buckets();
  impl_->counted = compat::synced_forwards(*ddp.reducer);
  impl_->slot =
      std::make_unique<HookSlot>(ddp.reducer, parameters, group, group);
  impl_->meter = std::make_unique<StepMeter>(group);
  impl_->install(hook, connect(hook_group));
}

Attachment::~Attachment() {
  stop();
}

void Attachment::set_hook(
    const HookChoice& hook,
    const ProcessGroupPtr& hook_group,
    const std::string& refusal) {
  Impl& impl = *impl_;
  impl.slot->check_group();
  agree_checked(impl.group, "attach", [&] {
    check(refusal);
    impl.check_between_iterations("attach");
    return std::vector<Fact>{{"hook", hook.text()}, group_fact(hook_group)};
  });
  if (impl.slot->failed()) {
    impl.slot->settle();
  }
  impl.install(hook, connect(hook_group));
}

bool Attachment::is_registered() const {
  return impl_->slot->adapter() != nullptr;
}

Stats Attachment::stats() const {
  Impl& impl = *impl_;
  impl.end_step();
  Stats stats;
  impl.count_plain_steps();
  const bool plain = impl.plain_steps > 0;
  impl.slot->report(stats, plain);
  impl.meter->report(stats);
  if (plain) {
    // On Torch's own connections, which nobody meters.
    const Bytes sent{.payload = impl.plain_steps * stats.plain_bytes};
    stats.sent_by_hook.insert(
        stats.sent_by_hook.begin(), {"none", impl.plain_steps, sent});
    stats.steps += impl.plain_steps;
    stats.sent = stats.sent + sent;
  }
  if (plain && impl.slot->adapter() == nullptr) {
    stats.sent_last_step = {.payload = stats.plain_bytes};
  }
  stats.rebuilt = impl.rebuilt ||
                  (impl.to_rebuild && !impl.reducer->should_rebuild_buckets());
  return stats;
}

void Attachment::save_hook_state(const std::string& folder) {
  impl_->slot->save(folder, impl_->between_iterations("save_hook_state"));
}

void Attachment::load_hook_state(
    const std::string& folder, const LoadHookState& options) {
  impl_->slot->load(
      folder, options, impl_->between_iterations("load_hook_state"));
}

HookRecord Attachment::take_hook_state() {
  return impl_->slot->take(impl_->between_iterations("hook_state_dict"));
}

void Attachment::give_hook_state(
    const HookRecord& record, const std::string& refusal) {
  impl_->slot->give(record, [&] {
    check(refusal);
    impl_->check_between_iterations("load_hook_state_dict");
  });
}

void Attachment::stop() {
  if (impl_->slot && impl_->slot->adapter() != nullptr) {
    impl_->slot->adapter()->set_hook(
        std::make_shared<StoppedHook>(), impl_->slot->text());
  }
}

}  // namespace gradwire
