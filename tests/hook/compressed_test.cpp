// What hooks with a codec do besides what the conformance suite asks of all.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/base/error.h"
#include "gradwire/ddp/comm_hook_type.h"
#include "gradwire/ddp/ddp.h"
#include "tests/support/expect.h"
#include "tests/support/gradients.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::GivenGradients;
using test::random_tensor;
using test::run_threads;
using test::same_bits;

const std::vector<std::int64_t> kSizes{300000, 513, 700, 250000, 1, 90000};

// The averages of some steps with buckets of that size, on rank 0.
std::vector<at::Tensor> train(
    int world, const std::string& hook, double bucket_mb) {
  std::vector<at::Tensor> result;
  run_threads(world, [&](const Group& group) {
    auto net = std::make_shared<GivenGradients>(kSizes);
    auto ddp = DistributedDataParallel(
        net, group, {.hook = hook, .bucket_cap_mb = bucket_mb});
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      ddp->forward(net->random(100 * step + group.rank())).backward();
      if (group.rank() == 0) {
        for (const auto& parameter : ddp->parameters()) {
          result.push_back(parameter.grad().clone());
        }
      }
    }
  });
  return result;
}

TEST(CompressedHooks, BitsDoNotDependOnTheBucketSizeWithoutFeedback) {
  for (const std::string hook :
       {"int8:ef=off",
        "int4:ef=off,rounding=stochastic",
        "fp8:ef=off",
        "fp16",
        "bf16"}) {
    for (const int world : {2, 3}) {
      const auto small = train(world, hook, 1);
      const auto middle = train(world, hook, 4);
      const auto large = train(world, hook, 25);
      for (std::size_t i = 0; i < small.size(); ++i) {
        EXPECT_TRUE(same_bits(small[i], middle[i])) << hook << " " << i;
        EXPECT_TRUE(same_bits(small[i], large[i])) << hook << " " << i;
      }
    }
  }
}

TEST(CompressedHooks, BucketSizesAgreeWithinTheErrorWithFeedback) {
  const auto small = train(3, "int8", 1);
  const auto large = train(3, "int8", 25);
  for (std::size_t i = 0; i < small.size(); ++i) {
    const auto bound = 4.0 / 127 * small[i].abs().max().item<double>();
    EXPECT_LE((small[i] - large[i]).abs().max().item<double>(), bound);
  }
}

// All that was put in comes out, sooner or later: over steps, through the
// rebuild of buckets after the first one and through accumulation.
void expect_conserved(int world, const std::string& hook) {
  run_threads(world, [&](const Group& group) {
    const std::vector<std::int64_t> sizes{5000, 700, 3000};
    auto net = std::make_shared<GivenGradients>(sizes);
    auto ddp = DistributedDataParallel(
        net,
        group,
        {.hook = hook, .bucket_cap_mb = 0.012, .first_bucket_cap_mb = 0.001});
    auto given = torch::zeros({8700}, torch::kDouble);
    auto received = torch::zeros({8700}, torch::kDouble);
    for (int step = 0; step < 5; ++step) {
      ddp->zero_grad();
      const auto first = net->random(1000 * step + group.rank());
      const auto second = net->random(1000 * step + 500 + group.rank());
      given += net->flat(first) + net->flat(second);
      {
        const auto local = ddp->no_sync();
        ddp->forward(first).backward();
      }
      ddp->forward(second).backward();
      received += net->flat_gradients() * group.size();
    }
    EXPECT_TRUE(ddp->stats().rebuilt);
    group.all_reduce(given).wait();
    const auto owed = net->residuals(group, *ddp);
    const auto missing = (received + owed - given).abs().max().item<double>();
    EXPECT_LT(missing, 2e-4) << hook << " on " << world;
    // Without feedback something would be missing.
    EXPECT_GT((received - given).abs().max().item<double>(), 1e-3);
  });
}

TEST(CompressedHooks, FeedbackConservesGradients) {
  for (const int world : {2, 3, 4}) {
    for (const std::string hook :
         {"int8", "int4", "fp8", "fp16:ef=on", "int4:min_elems=2000"}) {
      expect_conserved(world, hook);
    }
  }
}

TEST(CompressedHooks, SmallBucketsMayGoUncompressed) {
  run_threads(3, [](const Group& group) {
    auto net = std::make_shared<GivenGradients>(std::vector<std::int64_t>{900});
    auto ddp =
        DistributedDataParallel(net, group, {.hook = "int4:min_elems=1000"});
    const auto mine = net->random(group.rank());
    ddp->forward(mine).backward();
    const auto exact = test::exact_mean(group, mine[0]);
    EXPECT_TRUE(
        torch::allclose(ddp->parameters()[0].grad(), exact, 1e-5, 1e-6));
    EXPECT_EQ(ddp->stats().last.sent.payload, group.all_reduce_bytes(900, 4));
  });
}

// Also where the value that is not finite was not compressed.
TEST(CompressedHooks, ASkippedStepIsForgottenInAllBuckets) {
  run_threads(3, [](const Group& group) {
    auto net =
        std::make_shared<GivenGradients>(std::vector<std::int64_t>{5000, 100});
    auto ddp = DistributedDataParallel(
        net,
        group,
        {.hook = "int4:min_elems=1000",
         .bucket_cap_mb = 0.001,
         .first_bucket_cap_mb = 0.0001});
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      ddp->forward(net->random(10 * step + group.rank())).backward();
    }
    const auto before = net->residuals(group, *ddp);
    ddp->zero_grad();
    auto bad = net->random(99);
    bad[1][3] = std::numeric_limits<float>::infinity();
    ddp->forward(bad).backward();
    EXPECT_FALSE(ddp->parameters()[1].grad().isfinite().all().item<bool>());
    EXPECT_TRUE(torch::equal(net->residuals(group, *ddp), before));
    EXPECT_GT(before.abs().max().item<double>(), 0.01);
  });
}

TEST(CompressedHooks, SparseGradientsAreRefusedOrPassed) {
  run_threads(2, [](const Group& group) {
    const auto make = [&](const char* hook) {
      torch::nn::Embedding table(
          torch::nn::EmbeddingOptions(10, 4).sparse(true));
      test::fill_parameters(*table, 1);
      return DistributedDataParallel(table, group, {.hook = hook});
    };
    const auto ids = torch::tensor({1, 3 + group.rank()});
    auto refusing = make("int8");
    EXPECT_ERROR(
        Error,
        refusing->forward(ids).sum().backward(),
        "cannot compress the sparse gradient of 'weight'",
        "int8:sparse=pass",
        concat("rank ", group.rank()),
        "bucket 0");
    auto passing = make("int8:sparse=pass");
    passing->forward(ids).sum().backward();
    const auto gradient = passing->parameters()[0].grad().to_dense();
    EXPECT_EQ(gradient[1][0].item<float>(), 1.0f);
    EXPECT_EQ(gradient[3][0].item<float>(), 0.5f);
    EXPECT_EQ(gradient[4][0].item<float>(), 0.5f);
  });
}

TEST(CompressedHooks, BytesAreToldApartByBucketAndHook) {
  run_threads(3, [](const Group& group) {
    auto net = std::make_shared<GivenGradients>(kSizes);
    auto ddp = DistributedDataParallel(
        net, group, {.hook = "int8", .bucket_cap_mb = 1});
    for (const char* hook : {"int8", "fp16", "int8"}) {
      ddp->set_hook(hook);
      for (int step = 0; step < 2; ++step) {
        ddp->zero_grad();
        ddp->forward(net->random(step + group.rank())).backward();
      }
    }
    const Stats stats = ddp->stats();
    ASSERT_EQ(stats.last.buckets.size(), stats.bucket_bytes.size());
    Bytes sum;
    for (std::size_t i = 0; i < stats.last.buckets.size(); ++i) {
      sum = sum + stats.last.buckets[i].sent;
      const double elems = static_cast<double>(stats.bucket_bytes[i]) / 4;
      EXPECT_NEAR(
          static_cast<double>(stats.last.buckets[i].sent.payload),
          2.0 * 2 / 3 * elems,
          3000);
    }
    EXPECT_EQ(sum, stats.last.sent);
    ASSERT_EQ(stats.sent_by_hook.size(), 2u);
    EXPECT_EQ(stats.sent_by_hook[0].hook, "int8");
    EXPECT_EQ(stats.sent_by_hook[0].steps, 4);
    EXPECT_EQ(stats.sent_by_hook[1].steps, 2);
    EXPECT_NEAR(
        static_cast<double>(stats.sent_by_hook[1].sent.payload) /
            static_cast<double>(stats.sent_by_hook[0].sent.payload),
        1.0,
        0.01);
    EXPECT_NEAR(
        static_cast<double>(stats.last.sent.total()) /
            static_cast<double>(stats.plain_bytes),
        0.253,
        0.003);
  });
}

// A lane's error says where: rank, bucket and phase.
TEST(CompressedHooks, APeerThatLeavesIsNamedInBackward) {
  run_threads(
      3,
      [](Group group) {
        auto net = std::make_shared<GivenGradients>(kSizes);
        auto ddp = DistributedDataParallel(
            net, group, {.hook = "int8", .bucket_cap_mb = 1});
        ddp->forward(net->random(1)).backward();
        auto loss = ddp->forward(net->random(2));
        if (group.rank() == 2) {
          return;
        }
        EXPECT_ERROR(
            CommError,
            loss.backward(),
            concat("rank ", group.rank()),
            "bucket ",
            "phase all-");
        // It is known at once that there is no going on.
        EXPECT_ERROR(
            CommError, ddp->forward(net->random(3)), "rebuild the group");
        EXPECT_ERROR(CommError, ddp->set_hook("fp16"), "rebuild the group");
      },
      {.timeout = std::chrono::seconds(20)});
}

}  // namespace
}  // namespace gradwire
