// Hooks around others, which may keep buckets to themselves.

#include "gradwire/hook/wrapper.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "gradwire/hook/registry.h"
#include "tests/support/expect.h"
#include "tests/support/gradients.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

using test::GivenGradients;
using test::run_threads;

// The first bucket is averaged in full, the others by the hook inside.
class FullFirst : public HookWrapper {
 public:
  FullFirst(const std::string& inner, const Group& group)
      : HookWrapper(make_hook(inner, group)),
        full_(make_hook("allreduce", group)) {}

  Future reduce(Bucket& bucket) override {
    return bucket.index() == 0 ? full_->reduce(bucket) : inner().reduce(bucket);
  }

 private:
  std::unique_ptr<Hook> full_;
};

auto make_ddp(const Group& group, const HookChoice& hook) {
  return DistributedDataParallel(
      std::make_shared<GivenGradients>(
          std::vector<std::int64_t>{4000, 300, 2500}),
      group,
      {.hook = hook, .bucket_cap_mb = 0.01, .first_bucket_cap_mb = 0.001});
}

// Feedback goes on: what the averages of all steps lack is what is still owed.
TEST(HookWrapper, MayKeepTheFirstBucketToItself) {
  for (const std::string inner : {"int4", "powersgd:rank=1,start=0"}) {
    run_threads(2, [&](const Group& group) {
      auto ddp = make_ddp(group, std::make_shared<FullFirst>(inner, group));
      auto net = ddp->module();
      at::Tensor lacking;
      for (int i = 0; i < 6; ++i) {
        const auto mine = net->random(10 * i + group.rank());
        ddp->zero_grad();
        ddp->forward(mine).backward();
        const auto lost =
            test::exact_mean(group, net->flat(mine)) - net->flat_gradients();
        lacking = lacking.defined() ? lacking + lost : lost;
      }
      const auto owed = net->residuals(group, *ddp) / group.size();
      EXPECT_LE((lacking - owed).abs().max().item<double>(), 1e-5) << inner;
      EXPECT_EQ(ddp->stats().steps, 6);
    });
  }
}

// One that does not pass on where steps begin is told so.
TEST(HookWrapper, MustPassOnSteps) {
  struct Deaf : Hook {
    explicit Deaf(const Group& group) : inner(make_hook("int8", group)) {}
    Future reduce(Bucket& bucket) override {
      return inner->reduce(bucket);
    }
    std::unique_ptr<Hook> inner;
  };
  run_threads(2, [](const Group& group) {
    auto ddp = make_ddp(group, std::make_shared<Deaf>(group));
    EXPECT_ERROR(
        Error,
        ddp->forward(ddp->module()->random(1)).backward(),
        "'int8' got bucket 0 outside of a step");
  });
}

}  // namespace
}  // namespace gradwire
