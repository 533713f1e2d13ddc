#include "gradwire/comm/compressed.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>

#include "gradwire/base/error.h"
#include "gradwire/comm/exchanges.h"
#include "tests/support/allocations.h"
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

// A chunk of one block has one owner; the next one has another.
TEST(Compressed, FewBlocksAreSharedOverChunks) {
  constexpr std::int64_t kElems = 4 << 20;
  run_threads(4, [&](const Group& group) {
    const auto before = group.bytes_sent();
    compressed_all_reduce(group, torch::ones({kElems}), "int8:block=1048576")
        .wait();
    const auto sent = group.bytes_sent() - before;
    EXPECT_LT(static_cast<double>(sent.total()), 1.01 * 2 * 3 / 4 * kElems);
  });
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

// A callback runs on the thread that the call in it needs.
TEST(Compressed, WaitingInACallbackIsAnError) {
  std::promise<void> attached;
  run_threads(2, [&](const Group& group) {
    const auto first = torch::ones({10});
    const auto second = torch::ones({10});
    compressed_all_reduce(group, torch::ones({1}), "fp16").wait();
    if (group.rank() == 1) {
      attached.get_future().wait();
      compressed_all_reduce(group, first, "fp16").wait();
      compressed_all_reduce(group, second, "fp16").wait();
      return;
    }
    Future result = compressed_all_reduce(group, first, "fp16");
    Future inner;
    result = result.then([&](const at::Tensor& sum) {
      inner = compressed_all_reduce(group, second, "fp16");
      inner.wait();
      return sum;
    });
    attached.set_value();
    EXPECT_ERROR(Error, result.wait(), "[gradwire.comm] a callback", "then()");
    // Nothing is lost.
    EXPECT_EQ(inner.wait()[0].item<float>(), 2);
  });
}

TEST(Compressed, TensorsAreLetGo) {
  run_threads(3, [](const Group& group) {
    for (const auto type : {torch::kFloat, torch::kHalf}) {
      auto tensor = torch::ones({1000}, type);
      compressed_all_reduce(group, tensor, "int8").wait();
      // Whoever completed the first call is done with it when the second ends.
      compressed_all_reduce(group, torch::ones({10}), "int8").wait();
      EXPECT_EQ(tensor.use_count(), 1u);
      EXPECT_EQ(tensor.storage().use_count(), 1u);
    }
  });
}

// More sizes than a small cache would hold.
TEST(Compressed, SizesInRotationArePlannedOnce) {
  run_threads(2, [](const Group& group) {
    std::vector<at::Tensor> tensors;
    for (std::int64_t i = 0; i < 20; ++i) {
      tensors.push_back(torch::ones({(1 << 20) + i}));
    }
    const auto round = [&] {
      for (const auto& tensor : tensors) {
        compressed_all_reduce(group, tensor, "int8", Reduction::kAverage)
            .wait();
      }
    };
    EXPECT_GE(test::large_allocations_of(round), 20);
    EXPECT_EQ(test::large_allocations_of(round), 0);
  });
}

TEST(Compressed, BuffersThatAreNotInUseAreBounded) {
  run_threads(2, [](const Group& group) {
    constexpr std::int64_t kElems = 1 << 20;
    const auto codec =
        std::make_shared<const codec::Codec>(codec::make_codec("int8"));
    // One exchange has two buffers of one such message each.
    Exchanges exchanges(group, 5 * kElems);
    Lane lane(group, "test", exchange_phases(2));
    const auto allocations = [&](std::int64_t more) {
      const auto tensor = torch::ones({kElems + more});
      return test::large_allocations_of([&] {
        exchanges
            .start(lane, {codec, {{kElems + more, 0, 0}}}, {.values = tensor})
            .wait();
      });
    };
    EXPECT_GT(allocations(0), 0);
    EXPECT_GT(allocations(1), 0);
    EXPECT_EQ(allocations(0), 0);
    // Takes the place of the one that was not used for longest.
    EXPECT_GT(allocations(2), 0);
    EXPECT_EQ(allocations(0), 0);
    EXPECT_GT(allocations(1), 0);
  });
}

// Ranks say what they ask for before they send: messages would be of sizes that
// others do not expect.
TEST(Compressed, RanksThatAskForDifferentThingsAreToldSo) {
  struct Row {
    const char* codec;
    std::int64_t elems;
    Reduction reduction;
    const char* text;
  };
  constexpr std::int64_t kLarge = 3 << 20;
  const std::vector<Row> rows{
      {"int8", 1001, Reduction::kSum, "int8 of 1001 elements"},
      {"int8", 999, Reduction::kSum, "int8 of 999 elements"},
      {"fp8", 1000, Reduction::kSum, "fp8 of 1000 elements"},
      {"int8:block=256", 1000, Reduction::kSum, "int8:block=256 of 1000"},
      {"int8:scheme=affine", 1000, Reduction::kSum, "scheme=affine of 1000"},
      {"int8", 1000, Reduction::kAverage, "1000 elements, averaged"},
      {"int8", kLarge, Reduction::kSum, "int8 of 3145728 elements"}};
  for (const int world : {2, 3}) {
    run_threads(world, [&](const Group& group) {
      for (const Row& row : rows) {
        const bool odd = group.rank() == world - 1;
        const auto mine = torch::ones({odd ? row.elems : 1000});
        const Future result = compressed_all_reduce(
            group,
            mine,
            odd ? row.codec : "int8:block=512",
            odd ? row.reduction : Reduction::kSum);
        EXPECT_ERROR(
            Error,
            result.wait(),
            "rank 0 asks for 'int8 of 1000 elements'",
            concat("rank ", world - 1, " for '"),
            row.text);
        EXPECT_TRUE(torch::equal(mine, torch::ones(mine.sizes())));
      }
      // Nothing is lost.
      const auto sum = torch::ones({1000});
      compressed_all_reduce(group, sum, "int8").wait();
      EXPECT_EQ(sum[999].item<float>(), world);
    });
  }
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
            "phase all-");
        EXPECT_THROW(
            compressed_all_reduce(group, tensor, "int8").wait(), CommError);
      },
      {.timeout = std::chrono::seconds(20)});
}

}  // namespace
}  // namespace gradwire
