// What can go wrong is said in words, on every rank, and nothing hangs.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "tests/support/expect.h"
#include "tests/support/moody_hook.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::run_threads;
using torch::nn::Linear;

TEST(DdpErrors, NothingToTrain) {
  run_threads(2, [](const Group& group) {
    Linear net(2, 2);
    for (auto& parameter : net->parameters()) {
      parameter.requires_grad_(false);
    }
    EXPECT_ERROR(
        Error,
        DistributedDataParallel(net, group),
        "[gradwire.ddp] no parameter of the module requires a gradient");
    EXPECT_ERROR(
        Error,
        DistributedDataParallel(std::make_shared<torch::nn::ReLUImpl>(), group),
        "there is nothing to average");
    EXPECT_ERROR(
        Error,
        DistributedDataParallel(
            std::shared_ptr<torch::nn::LinearImpl>(), group),
        "null module");
    EXPECT_ERROR(
        Error, DistributedDataParallel(Linear(nullptr), group), "null module");
  });
}

TEST(DdpErrors, BadOptions) {
  run_threads(2, [](const Group& group) {
    const auto wrap = [&](const DistributedDataParallelOptions& options) {
      DistributedDataParallel(Linear(2, 2), group, options);
    };
    EXPECT_ERROR(Error, wrap({.bucket_cap_mb = 0}), "bucket_cap_mb is 0");
    EXPECT_ERROR(
        Error,
        wrap({.first_bucket_cap_mb = std::nan("")}),
        "first_bucket_cap_mb is nan");
    EXPECT_ERROR(
        Error,
        wrap({.ignore = {"wieght"}}),
        "option ignore names 'wieght'",
        "did you mean 'weight'?");
    EXPECT_ERROR(Error, wrap({.sparse = {"x"}}), "option sparse names 'x'");
    EXPECT_ERROR(Error, wrap({.hook = "int7(8)"}), "unknown hook 'int7'");
  });
}

TEST(DdpErrors, RanksMustAgreeBeforeTheyStart) {
  run_threads(3, [](const Group& group) {
    const bool odd = group.rank() == 2;
    EXPECT_ERROR(
        Error,
        DistributedDataParallel(
            Linear(2, 2), group, {.hook = odd ? "noop" : "allreduce"}),
        "ranks do not agree on DistributedDataParallel: hook is 'allreduce' on "
        "rank 0 but 'noop' on rank 2");
    EXPECT_ERROR(
        Error,
        DistributedDataParallel(Linear(2, odd ? 3 : 2), group),
        "parameter 0 is 'weight Float [2, 2] strides [2, 1]' on rank 0 but "
        "'weight Float [3, 2] strides [2, 1]' on rank 2");
    EXPECT_ERROR(
        Error,
        DistributedDataParallel(
            Linear(torch::nn::LinearOptions(2, 2).bias(!odd)), group),
        "rank 0 has parameter 1 where rank 2 has (nothing)");
    torch::nn::Sequential named;
    named->push_back(odd ? "b" : "a", Linear(2, 2));
    EXPECT_ERROR(
        Error,
        DistributedDataParallel(named, group),
        "parameter 0 is 'a.weight Float",
        "'b.weight Float");
    Linear other(2, 2);
    if (odd) {
      other->to(torch::kDouble);
    }
    EXPECT_ERROR(Error, DistributedDataParallel(other, group), "weight Double");
    EXPECT_ERROR(
        Error,
        DistributedDataParallel(Linear(2, 2), group, {.static_graph = odd}),
        "static_graph is '0' on rank 0 but '1' on rank 2");
    // A rank that cannot even start tells the others why.
    EXPECT_ERROR(
        Error,
        DistributedDataParallel(
            Linear(2, 2), group, {.bucket_cap_mb = odd ? -1.0 : 25.0}),
        "local check is 'passed' on rank 0",
        "bucket_cap_mb is -1");
    // And all of it left no trace.
    auto ddp = DistributedDataParallel(Linear(2, 2), group);
    ddp->forward(torch::ones({1, 2})).sum().backward();
  });
}

TEST(DdpErrors, ARankThatDoesNotWrapIsNamed) {
  run_threads(
      2,
      [](const Group& group) {
        if (group.rank() == 0) {
          EXPECT_ERROR(
              CommError,
              DistributedDataParallel(Linear(2, 2), group),
              "DistributedDataParallel: rank 1 did not arrive within 1 s");
        }
      },
      {.timeout = std::chrono::seconds(1)});
}

TEST(DdpErrors, ALostPeerIsNamedWithoutAHookToo) {
  run_threads(
      2,
      [](const Group& group) {
        auto ddp = DistributedDataParallel(Linear(2, 2), group);
        auto loss = ddp->forward(torch::ones({1, 2})).sum();
        if (group.rank() == 0) {
          EXPECT_ERROR(
              CommError,
              loss.backward(),
              "all_reduce on group 'world/ddp0' failed on rank 0 of 2");
        }
      },
      {.timeout = std::chrono::seconds(2)});
}

struct HalfUsedImpl : torch::nn::Module {
  HalfUsedImpl() {
    used = register_module("used", Linear(2, 2));
    unused = register_module("unused", Linear(2, 2));
  }
  at::Tensor forward(const at::Tensor& x) {
    return used->forward(x);
  }
  Linear used{nullptr};
  Linear unused{nullptr};
};
TORCH_MODULE(HalfUsed);

TEST(DdpErrors, UnusedParametersAreNamedAtTheNextForward) {
  run_threads(2, [](const Group& group) {
    for (const char* hook : {"none", "allreduce"}) {
      auto ddp = DistributedDataParallel(HalfUsed(), group, {.hook = hook});
      ddp->forward(torch::ones({1, 2})).sum().backward();
      EXPECT_ERROR(
          Error,
          ddp->forward(torch::ones({1, 2})),
          "[gradwire.ddp] the last backward did not finish",
          "2 of 4 parameters got no gradient: unused.weight, unused.bias",
          "set find_unused_parameters",
          concat("rank ", group.rank()));
    }
  });
}

TEST(DdpErrors, AParameterUsedTwiceAcrossBackwards) {
  run_threads(2, [](const Group& group) {
    torch::nn::Sequential net(Linear(2, 2), Linear(2, 2));
    auto ddp = DistributedDataParallel(net, group);
    auto out = ddp->forward(torch::ones({1, 2}));
    const auto extra = net[0]->as<Linear>()->weight.sum();
    extra.backward();  // before the backward of the forward
    EXPECT_ERROR(
        Error,
        out.sum().backward(),
        "the gradient of '0.weight' became ready twice in one backward",
        concat("rank ", group.rank()));
  });
}

TEST(DdpErrors, AHookThatThrowsSurfacesInBackwardAndTrainingGoesOn) {
  run_threads(2, [](const Group& group) {
    int calls = 0;
    const auto moody = [&, group](Bucket& bucket) {
      if (++calls == 2) {
        throw std::runtime_error("bad mood");
      }
      bucket.buffer().div_(group.size());
      return group.all_reduce(bucket.buffer());
    };
    Linear net(2, 2);
    auto ddp = DistributedDataParallel(net, group, {.hook = moody});
    const auto step = [&] {
      ddp->zero_grad();
      ddp->forward(torch::full({1, 2}, 1.0 * group.rank())).sum().backward();
    };
    step();
    EXPECT_ERROR(
        Error,
        step(),
        "bad mood",
        "hook custom",
        concat("rank ", group.rank()),
        "bucket 0");
    step();
    EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 0.5);
    calls = 1;
    EXPECT_ERROR(Error, step(), "bad mood");
    ddp->set_hook("allreduce");  // a hook that failed can be replaced
    step();
    EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 0.5);
  });
}

// Several buckets under way when one fails, with unused parameters on top: the
// step is forgotten as a whole and the next one is right.
TEST(DdpErrors, AFailureInALaterBucketLeavesNoTrace) {
  run_threads(2, [](const Group& group) {
    bool fail_now = false;
    const auto moody = test::moody_hook(group, fail_now, 1);
    for (const bool find_unused : {false, true}) {
      torch::nn::Sequential net(Linear(50, 50), Linear(50, 50), Linear(50, 50));
      auto ddp = DistributedDataParallel(
          net,
          group,
          {.hook = moody,
           .bucket_cap_mb = 0.001,
           .find_unused_parameters = find_unused});
      for (int step = 0; step < 8; ++step) {
        fail_now = step == 2 || step == 5;
        ddp->zero_grad();
        auto loss =
            ddp->forward(test::random_tensor({2, 50}, group.rank())).sum();
        if (fail_now) {
          EXPECT_ERROR(Error, loss.backward(), "bad mood", "bucket 1");
          continue;
        }
        loss.backward();
        for (const auto& item : net->named_parameters()) {
          EXPECT_TRUE(test::same_on_all_ranks(group, item.value().grad()))
              << item.key() << " in step " << step;
        }
      }
    }
  });
}

TEST(DdpErrors, AFailureOnOneRankOnlyCannotBeForgotten) {
  run_threads(
      2,
      [](const Group& group) {
        const Group own = group.duplicate("hook");
        const auto moody = [own](Bucket& bucket) {
          if (own.rank() == 1) {
            throw std::runtime_error("bad mood");
          }
          return own.all_reduce(bucket.buffer());
        };
        torch::nn::Sequential net(Linear(2, 2), Linear(2, 2));
        auto ddp = DistributedDataParallel(net, group, {.hook = moody});
        auto loss = ddp->forward(torch::ones({1, 2})).sum();
        if (group.rank() == 1) {
          EXPECT_ERROR(Error, loss.backward(), "bad mood");
        } else {
          EXPECT_ERROR(CommError, loss.backward(), "all_reduce", "rank 0");
        }
        // Rank 1 waits here for rank 0, which is still in its backward.
        EXPECT_ANY_THROW(ddp->forward(torch::ones({1, 2})));
      },
      {.timeout = std::chrono::seconds(2)});
}

// The Reducer reads results from the start of their storage: whatever else a
// hook returns must be made to lie like that.
TEST(DdpErrors, ResultsThatAreViewsOfOtherMemory) {
  run_threads(2, [](const Group& group) {
    const auto offset = [](Bucket& bucket) {
      const auto n = bucket.buffer().numel();
      auto scratch = torch::full({3 * n}, 7.0);
      scratch.narrow(0, n, n).fill_(2.0);
      return Future::ready(scratch.narrow(0, n, n));
    };
    const auto strided = [](Bucket& bucket) {
      auto scratch = torch::zeros({bucket.buffer().numel(), 2});
      scratch.select(1, 1).fill_(2.0);
      return Future::ready(scratch.select(1, 1));
    };
    Linear net(3, 3);
    auto ddp = DistributedDataParallel(net, group, {.hook = offset});
    for (int turn = 0; turn < 2; ++turn) {
      ddp->forward(torch::ones({1, 3})).sum().backward();
      EXPECT_TRUE(net->weight.grad().eq(2).all().item<bool>());
      EXPECT_TRUE(net->bias.grad().eq(2).all().item<bool>());
      ddp->zero_grad();
      ddp->set_hook(strided);
    }
  });
}

}  // namespace
}  // namespace gradwire
