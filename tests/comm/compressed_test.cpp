#include "gradwire/comm/compressed.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/base/error.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::random_tensor;
using test::run_threads;
using test::same_bits;
using test::same_on_all_ranks;

double relative_error(const at::Tensor& got, const at::Tensor& exact) {
  const auto difference = got.to(torch::kDouble) - exact.to(torch::kDouble);
  return (difference.norm() / exact.to(torch::kDouble).norm()).item<double>();
}

// Student's t with three degrees of freedom, as gradients often are.
at::Tensor heavy_tailed(at::IntArrayRef sizes, std::uint64_t seed) {
  auto squares = torch::zeros(sizes);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    squares += random_tensor(sizes, seed + 1000 * i).square();
  }
  return random_tensor(sizes, seed) / (squares / 3).sqrt();
}

// The relative error of the average of `make(rank)` on `world` ranks.
template <class Make>
double error_of_average(int world, const std::string& codec, const Make& make) {
  std::atomic<double> result{0};
  run_threads(world, [&](const Group& group) {
    const auto mine = make(group.rank());
    const auto exact = test::exact_mean(group, mine.to(torch::kDouble));
    const auto got =
        compressed_all_reduce(group, mine.clone(), codec, Reduction::kAverage)
            .wait();
    EXPECT_TRUE(same_on_all_ranks(group, got));
    if (group.rank() == 0) {
      result = relative_error(got, exact);
    }
  });
  return result;
}

TEST(Compressed, SumsAnyLengthAndTypeInPlace) {
  for (const int world : {1, 2, 3, 4}) {
    run_threads(world, [&](const Group& group) {
      for (const auto type :
           {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
        for (const std::int64_t elems : {0, 1, 2, 511, 512, 513, 70000}) {
          auto mine = random_tensor({elems}, elems + group.rank()).to(type);
          const auto before = mine.clone();
          const auto exact =
              test::exact_mean(group, before.to(torch::kDouble)) * group.size();
          const auto got = compressed_all_reduce(group, mine, "int8").wait();
          EXPECT_TRUE(got.is_same(mine));
          EXPECT_EQ(got.scalar_type(), type);
          if (world == 1) {
            EXPECT_TRUE(same_bits(got, before));
          } else if (elems > 0) {
            EXPECT_LT(relative_error(got, exact), 0.02) << elems;
            EXPECT_TRUE(same_on_all_ranks(group, got));
          }
        }
      }
    });
  }
}

TEST(Compressed, KeepsShapeAndStrides) {
  run_threads(2, [](const Group& group) {
    auto image = random_tensor({2, 3, 8, 8}, group.rank())
                     .contiguous(torch::MemoryFormat::ChannelsLast);
    const auto exact = test::exact_mean(group, image.contiguous()) * 2;
    compressed_all_reduce(group, image, "fp16").wait();
    EXPECT_TRUE(image.is_contiguous(torch::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(torch::allclose(image, exact, 1e-2, 1e-2));
  });
}

// Several calls under way, of several codecs and sizes.
TEST(Compressed, CallsOverlap) {
  run_threads(3, [](const Group& group) {
    std::vector<Future> futures;
    std::vector<at::Tensor> exact;
    const std::vector<std::string> codecs{
        "fp16", "int8", "bf16", "fp8", "int8"};
    for (int i = 0; i < 40; ++i) {
      const auto mine =
          random_tensor({1000 + 700 * (i % 3)}, 9 * i + group.rank());
      exact.push_back(test::exact_mean(group, mine) * 3);
      futures.push_back(
          compressed_all_reduce(group, mine, codecs[i % codecs.size()]));
    }
    for (int i = 0; i < 40; ++i) {
      EXPECT_LT(relative_error(futures[i].wait(), exact[i]), 0.08) << i;
    }
  });
}

struct Limit {
  const char* codec;
  double ratio;
};

// Against what the fp32 ring sends. The rest is headers and the difference
// between the largest shard and the mean one: one block a chunk at most.
TEST(Compressed, BytesDoNotGrowWithTheWorld) {
  constexpr std::int64_t kElems = 1 << 20;
  for (const int world : {2, 3, 4, 8}) {
    run_threads(world, [&](const Group& group) {
      for (const auto& [codec, ratio] :
           {Limit{"int8", 0.254},
            {"int8:scheme=affine", 0.254},
            {"fp8", 0.254},
            {"fp16", 0.502},
            {"bf16", 0.502},
            {"int4", 0.130}}) {
        const auto before = group.bytes_sent();
        compressed_all_reduce(group, torch::ones({kElems}), codec).wait();
        const auto sent = group.bytes_sent() - before;
        const double ring = 2.0 * (world - 1) / world * 4 * kElems;
        const double tail = 2.0 * (world - 1) * (2 * (512 + 8) + 8);
        EXPECT_LE(static_cast<double>(sent.total()), ratio * ring + tail)
            << codec << " on " << world;
        EXPECT_GT(sent.metadata, 0);
        EXPECT_LT(sent.metadata, sent.payload / 30 + 10000);
      }
    });
  }
}

TEST(Compressed, ErrorIsFlatInTheWorldAndNearOneQuantisation) {
  constexpr std::int64_t kElems = 1 << 18;
  const auto normal = [](int rank) { return random_tensor({kElems}, rank); };
  // With two ranks there is one quantisation.
  const double once = error_of_average(2, "int8", normal);
  const double at_three = error_of_average(3, "int8", normal);
  EXPECT_LT(at_three, 1.45 * once);
  for (const int world : {4, 8, 16}) {
    EXPECT_NEAR(error_of_average(world, "int8", normal) / at_three, 1, 0.05)
        << world;
  }
}

TEST(Compressed, BlockScalesSuitHeavyTails) {
  const auto tails = [](int rank) { return heavy_tailed({1 << 18}, rank); };
  const double blocks = error_of_average(4, "int8", tails);
  const double one = error_of_average(4, "int8:block=tensor", tails);
  EXPECT_GT(one, 4 * blocks) << blocks;
}

TEST(Compressed, TwoRunsGiveTheSameBits) {
  for (const std::string codec : {"int8", "int4:rounding=stochastic", "fp16"}) {
    std::vector<at::Tensor> runs;
    for (int run = 0; run < 2; ++run) {
      run_threads(3, [&](const Group& group) {
        auto mine = random_tensor({600000}, group.rank());
        compressed_all_reduce(group, mine, codec).wait();
        if (group.rank() == 0) {
          runs.push_back(mine);
        }
      });
    }
    EXPECT_TRUE(same_bits(runs[0], runs[1])) << codec;
  }
}

TEST(Compressed, StochasticRoundingIsRightOnAverage) {
  run_threads(3, [](const Group& group) {
    const auto mine = random_tensor({2000}, group.rank());
    const auto exact = test::exact_mean(group, mine);
    auto mean = torch::zeros({2000}, torch::kDouble);
    constexpr int kCalls = 200;
    const std::string codec = "int4:rounding=stochastic";
    for (int i = 0; i < kCalls; ++i) {
      mean +=
          compressed_all_reduce(group, mine.clone(), codec, Reduction::kAverage)
              .wait()
              .to(torch::kDouble);
    }
    mean /= kCalls;
    // One call is off by 0.25, the mean of 200 by a fourteenth of that.
    EXPECT_LT(relative_error(mean, exact), 0.03);
  });
}

TEST(Compressed, BadInputIsRefused) {
  run_threads(2, [](const Group& group) {
    EXPECT_ERROR(
        Error,
        compressed_all_reduce(group, torch::ones({4}), "int9"),
        "unknown codec 'int9'",
        "did you mean 'int8'");
    EXPECT_ERROR(
        Error,
        compressed_all_reduce(group, torch::ones({4}), "int8:block=3"),
        "option 'block'",
        "from 32 to 1048576 or tensor");
    EXPECT_ERROR(
        Error,
        compressed_all_reduce(group, torch::ones({4}, torch::kLong), "int8"),
        "got Long, expected Float");
    EXPECT_ERROR(
        Error,
        compressed_all_reduce(
            group, torch::ones({4, 4}).slice(1, 0, 4, 2), "int8"),
        "dense in memory");
    EXPECT_ERROR(
        Error, compressed_all_reduce(group, at::Tensor(), "int8"), "undefined");
  });
}

TEST(Compressed, APeerThatLeavesIsNamed) {
  run_threads(
      3,
      [](Group group) {
        // Several chunks.
        auto tensor = torch::ones({3 << 20});
        compressed_all_reduce(group, tensor, "int8").wait();
        if (group.rank() == 2) {
          return;
        }
        EXPECT_ERROR(
            CommError,
            compressed_all_reduce(group, tensor, "int8").wait(),
            concat("rank ", group.rank()),
            "(phase all-");
        EXPECT_THROW(
            compressed_all_reduce(group, tensor, "int8").wait(), CommError);
      },
      {.timeout = std::chrono::seconds(20)});
}

}  // namespace
}  // namespace gradwire
