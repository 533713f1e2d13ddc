// A DDP's hook: exchanged, saved, loaded, and what follows when it fails.

#include "gradwire/base/error.h"
#include "gradwire/ddp/engine_impl.h"

namespace gradwire {

void DdpEngine::set_hook(
    const HookChoice& choice, const std::optional<Group>& group) {
  Impl& impl = *impl_;
  impl.check_no_join("set_hook");
  impl.hooked->check_group();
  std::optional<CheckedHook> checked;
  agree_checked(impl.parent, "set_hook", [&] {
    checked = hook_in_type(choice, impl.options.precision.reduction);
    checked->check_free(impl.hooked.get());
    impl.check_between_iterations("set_hook");
    return std::vector<Fact>{{"hook", checked->text()}};
  });
  if (impl.hooked->failed()) {
    impl.recover();
  }
  impl.hooked->install(*checked, group.value_or(Group()));
}

void DdpEngine::register_hook_once(
    const HookChoice& choice, const std::optional<Group>& group) {
  impl_->check_no_join("register_ddp_comm_hook");
  agree_checked(impl_->parent, "register_ddp_comm_hook", [&] {
    const auto none = hook_in_type("none", impl_->options.precision.reduction);
    if (hook() != none.text()) {
      fail(
          "ddp",
          "register_ddp_comm_hook can only be called once, hook '",
          hook(),
          "' is registered; set_hook replaces it");
    }
    return std::vector<Fact>{};
  });
  set_hook(choice, group);
}

const std::string& DdpEngine::hook() const {
  return impl_->hooked->spec();
}

void DdpEngine::save_hook_state(const std::string& folder) {
  impl_->check_no_join("save_hook_state");
  impl_->hooked->save(
      folder, [this] { impl_->check_between_iterations("save_hook_state"); });
}

void DdpEngine::load_hook_state(
    const std::string& folder, const LoadHookState& options) {
  impl_->check_no_join("load_hook_state");
  impl_->hooked->load(folder, options, [this] {
    impl_->check_between_iterations("load_hook_state");
  });
}

// Ranks without input could not take part.
void DdpEngine::Impl::check_no_join(const char* call) {
  if (current_join()) {
    fail(
        "ddp",
        call,
        " was called inside of a Join, expected it before or after (rank ",
        group.rank(),
        ")");
  }
}

// A backward that failed is over, though not all gradients are there.
void DdpEngine::Impl::check_between_iterations(const char* call) const {
  if (watch->armed() && !hooked->failed()) {
    fail(
        "ddp",
        call,
        " was called between forward and backward, expected it before "
        "forward; a forward without a backward belongs under "
        "torch::NoGradGuard (rank ",
        group.rank(),
        ")");
  }
}

void DdpEngine::Impl::recover() {
  hooked->recover();
  watch->disarm();
}

}  // namespace gradwire
