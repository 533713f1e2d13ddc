#include "gradwire/comm/agreement.h"
#include "gradwire/ddp/bucket_hook_impl.h"
#include "gradwire/hook/registry.h"

namespace gradwire {

BucketHook::BucketHook(const Group& group, const std::string& spec)
    : adapter_(group.rank(), std::make_unique<RollCall>(group)),
      comm_hook_(adapter_.make_comm_hook()) {
  std::string text;
  agree_checked(group, "the hook", [&] {
    text = check_hook_spec(spec);
    return std::vector<Fact>{{"hook", text}};
  });
  adapter_.set_hook(make_hook(text, group), text);
}

Future::Raw BucketHook::reduce(c10d::GradBucket& bucket) {
  return comm_hook_->runHook(bucket);
}

}  // namespace gradwire
