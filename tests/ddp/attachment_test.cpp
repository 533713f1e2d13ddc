// A hook on a Reducer that others drive.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/comm/group_impl.h"
#include "gradwire/compat/reducer.h"
#include "gradwire/ddp/attachment.h"
#include "gradwire/ddp/bucket_hook.h"
#include "gradwire/hook/registry.h"
#include "tests/support/expect.h"
#include "tests/support/moody_hook.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::run_threads;
using torch::nn::Linear;

// Buckets of two types, however large they may be.
struct TwoTypesImpl : torch::nn::Module {
  TwoTypesImpl() {
    register_module("floats", floats);
    register_module("doubles", doubles)->to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    return doubles->forward(floats->forward(x).to(torch::kDouble));
  }
  torch::nn::Sequential floats{Linear(20, 20), Linear(20, 20)};
  Linear doubles{20, 20};
};
TORCH_MODULE(TwoTypes);

// What Torch's DDP does with its Reducer.
struct Foreign {
  explicit Foreign(const Group& group, bool static_graph = false)
      : delay(static_graph) {
    compat::ReducerOptions options;
    for (const auto& item : net->named_parameters()) {
      options.parameters.push_back(item.value());
      options.names.push_back(item.key());
      ddp.parameters.push_back({item.key(), item.value()});
    }
    options.sparse.resize(options.parameters.size());
    options.first_bucket_bytes = options.bucket_bytes = 1024;
    options.static_graph = static_graph;
    ddp.process_group = group.impl().process_group;
    reduction = compat::make_reducer(options, ddp.process_group);
    ddp.reducer = reduction.reducer;
  }

  void step(int seed) {
    net->zero_grad();
    ddp.reducer->prepare_for_forward();
    ddp.reducer->rebuild_buckets();
    const auto out = net->forward(test::random_tensor({2, 20}, seed));
    ddp.reducer->prepare_for_backward({});
    if (std::exchange(delay, false)) {
      out.register_hook([this](const at::Tensor&) {
        torch::autograd::Engine::get_default_engine().queue_callback(
            [this] { ddp.reducer->delay_all_reduce(); });
      });
    }
    out.sum().backward();
  }

  TwoTypes net;
  compat::ReducerPair reduction;
  ForeignDdp ddp;
  // A static graph's first backward reduces when all of it is done.
  bool delay;
};

TEST(Attachment, AFailureInTheSameBucketIsForgotten) {
  run_threads(2, [](const Group& group) {
    bool fail_now = false;
    const auto moody = test::moody_hook(group, fail_now, 1);
    Foreign foreign(group);
    Attachment attachment(foreign.ddp, [&] { return HookChoice(moody); }, {});
    for (int step = 0; step < 6; ++step) {
      fail_now = step == 2 || step == 4;
      if (fail_now) {
        EXPECT_ERROR(Error, foreign.step(group.rank()), "bad mood", "bucket 1");
        continue;
      }
      foreign.step(group.rank());
      for (const auto& parameter : foreign.net->parameters()) {
        EXPECT_TRUE(test::same_on_all_ranks(group, parameter.grad()));
      }
    }
  });
}

// Collectives of later backwards would not find their partners: it stays an
// error, although all ranks fail in the same bucket from then on.
TEST(Attachment, FailuresInDifferentBucketsAreNeverForgotten) {
  run_threads(2, [](const Group& group) {
    bool fail_now = false;
    const auto moody = [&, group](Bucket& bucket) {
      if (fail_now && bucket.index() == static_cast<unsigned>(group.rank())) {
        throw std::runtime_error("bad mood");
      }
      return Future::ready(bucket.buffer());
    };
    Foreign foreign(group);
    Attachment attachment(foreign.ddp, [&] { return HookChoice(moody); }, {});
    foreign.step(0);
    foreign.step(0);
    fail_now = true;
    EXPECT_ERROR(Error, foreign.step(0), "bad mood");
    fail_now = false;
    for (int turn = 0; turn < 3; ++turn) {
      EXPECT_ERROR(
          Error,
          foreign.step(0),
          "ranks do not agree on going on after a failed backward: failed "
          "bucket is '0' on rank 0 but '1' on rank 1");
    }
    EXPECT_ERROR(
        Error,
        attachment.set_hook([] { return HookChoice("allreduce"); }, {}),
        "failed bucket is '0'");
  });
}

// A rank whose hook fails alone has dropped its connections: nobody waits for
// the others to tell.
TEST(Attachment, AHookThatFailsOnOneRankIsLostOnAll) {
  run_threads(2, [](const Group& group) {
    std::shared_ptr<Hook> hook = make_hook("int8", group);
    if (group.rank() == 0) {
      hook->load({{{"step", 0}}, {}, {{"floats.0.bias", torch::zeros(7)}}});
    }
    Foreign foreign(group);
    Attachment attachment(foreign.ddp, [&] { return HookChoice(hook); }, {});
    if (group.rank() == 0) {
      EXPECT_ERROR(
          CommError,
          foreign.step(0),
          "the residual of parameter 'floats.0.bias' has 7 elements");
    } else {
      EXPECT_ERROR(CommError, foreign.step(0), "hook custom");
    }
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_ERROR(
          CommError,
          foreign.step(0),
          "a collective of the last backward failed: rebuild the group");
    }
  });
}

std::optional<HookState> no_state() {
  return std::nullopt;
}

// Hands the buckets of a Reducer to a BucketHook, as a function of a user's.
class Caller : public c10d::CommHookInterface {
 public:
  explicit Caller(BucketHook& hook) : hook_(hook) {}
  Future::Raw runHook(c10d::GradBucket& bucket) override {
    return hook_.reduce(bucket);
  }
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return result.toTensor();
  }

 private:
  BucketHook& hook_;
};

// In its first iteration Torch gives all buckets index 0 and marks none as the
// last.
TEST(BucketHook, AStaticGraphsFirstIteration) {
  run_threads(2, [](const Group& group) {
    for (const char* spec :
         {"int8", "powersgd:start=2,min_compression_rate=1"}) {
      Foreign foreign(group, /*static_graph=*/true);
      BucketHook hook(group, spec, no_state);
      foreign.ddp.reducer->register_comm_hook(std::make_unique<Caller>(hook));
      HookState state;
      for (int step = 0; step < 4; ++step) {
        foreign.step(step + 10 * group.rank());
        state = hook.state();
        EXPECT_EQ(state.numbers.at("step"), step + 1) << spec;
        for (const auto& parameter : foreign.net->parameters()) {
          EXPECT_TRUE(test::same_on_all_ranks(group, parameter.grad()));
        }
      }
    }
  });
}

// As a function of Python's does that nobody needs any more: the thread which
// completes a bucket must not wait for its own end.
TEST(BucketHook, MayEndInTheCallbackOfItsBucket) {
  run_threads(2, [](const Group& group) {
    auto hook = std::make_shared<BucketHook>(group, "int8", no_state);
    const auto weight = torch::zeros({4000});
    c10d::GradBucket bucket(
        0,
        1,
        test::random_tensor({4000}, group.rank()),
        {0},
        {4000},
        {weight.sizes()},
        {weight},
        std::nullopt);
    const Future result(hook->reduce(bucket));
    result.on_done([kept = std::move(hook)](const Future&) {});
    EXPECT_EQ(result.wait().numel(), 4000);
  });
}

TEST(BucketHook, AStateOnOneRankOnly) {
  run_threads(2, [](const Group& group) {
    const HookState state{{{"step", 4}}, {}, {}};
    EXPECT_ERROR(
        Error,
        BucketHook(
            group,
            "int8",
            [&] {
              return group.rank() == 0 ? std::optional(state) : std::nullopt;
            }),
        "its state is 'given' on rank 0 but 'none' on rank 1");
    EXPECT_ERROR(
        Error,
        BucketHook(
            group,
            "int8",
            [&]() -> std::optional<HookState> {
              if (group.rank() == 0) {
                fail("ddp", "no");
              }
              return std::nullopt;
            }),
        "[gradwire.ddp] no");
    EXPECT_ERROR(
        Error,
        BucketHook(group, "powersgd", [&] { return std::optional(state); }),
        "the state of 'powersgd' has no number 'turn'");
  });
}

}  // namespace
}  // namespace gradwire
