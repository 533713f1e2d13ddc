// No communication at all: what a step costs without it, which is the most
// that any compression could win. Replicas drift apart; for measuring only.

#include "gradwire/hook/hook.h"

namespace gradwire {
namespace {

class Noop : public Hook {
 public:
  Future reduce(Bucket& bucket) override {
    return Future::ready(bucket.buffer());
  }
};

}  // namespace

HookInfo noop_hook() {
  return {
      .name = "noop",
      .summary =
          "no communication, gradients stay local: the fastest that a hook "
          "could be",
      .make = [](const HookContext&) -> std::unique_ptr<Hook> {
        return std::make_unique<Noop>();
      },
      .result = HookInfo::Result::kLocal};
}

}  // namespace gradwire
