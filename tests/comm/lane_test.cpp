#include "gradwire/comm/lane.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <torch/torch.h>

#include <future>

#include "gradwire/base/error.h"
#include "gradwire/comm/compressed.h"
#include "gradwire/ddp/ddp.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::random_tensor;
using test::run_threads;

const std::vector<Lane::Phase> kPhases{{"sum"}, {"product"}, {"end", 0}};

// Sums in one step and multiplies in the next; throws where it is told to.
class Calculation : public Lane::Job {
 public:
  explicit Calculation(at::Tensor value, std::string throws_in = "")
      : value_(std::move(value)), throws_in_(std::move(throws_in)) {}

  std::span<const Step> steps() const override {
    static const Step kSteps[] = {
        step("sum", &Calculation::sum),
        step("product", &Calculation::product),
        step("end", &Calculation::end)};
    return kSteps;
  }

 private:
  void sum(const Lane::Groups& groups) {
    await(groups[0].all_reduce(value_));
  }
  void product(const Lane::Groups& groups) {
    if (throws_in_ == "product") {
      gradwire::fail("test", "out of luck");
    }
    await(groups[0].all_reduce(value_, ReduceOp::kProduct));
  }
  void end(const Lane::Groups&) {}

  at::Tensor value_;
  std::string throws_in_;
};

Future submit(Lane& lane, at::Tensor value, const std::string& throws_in = "") {
  return lane.submit(std::make_shared<Calculation>(value, throws_in), value);
}

TEST(Lane, JobsPassThePhasesInOrder) {
  run_threads(3, [](const Group& group) {
    Lane lane(group, "test", kPhases);
    std::vector<Future> results;
    for (int i = 0; i < 20; ++i) {
      results.push_back(
          submit(lane, torch::full({1}, i + group.rank(), torch::kDouble)));
    }
    for (int i = 0; i < 20; ++i) {
      const double sum = 3 * i + 3;
      EXPECT_EQ(results[i].wait().item<double>(), sum * sum * sum);
    }
  });
}

TEST(Lane, WhatIsSentCountsForTheGroupAndForTheScope) {
  run_threads(2, [](const Group& group) {
    Lane lane(group, "test", kPhases);
    const auto ledger = std::make_shared<ByteMeter>();
    const auto before = group.bytes_sent();
    Future result;
    {
      const ByteScope scope(ledger);
      result = submit(lane, torch::ones({100}));
    }
    result.wait();
    EXPECT_EQ(ledger->read().payload, 2 * group.all_reduce_bytes(100, 4));
    EXPECT_EQ(group.bytes_sent() - before, ledger->read());
  });
}

TEST(Lane, AFailureIsNamedAndReachesEveryJobAndEveryPeer) {
  run_threads(
      3,
      [](const Group& group) {
        const auto start = std::chrono::steady_clock::now();
        Lane lane(group, "test", kPhases);
        const char* throws_in = group.rank() == 1 ? "product" : "";
        submit(lane, torch::ones({1})).wait();
        const Future bad = submit(lane, torch::ones({1}), throws_in);
        const Future next = submit(lane, torch::ones({1}));
        if (group.rank() == 1) {
          EXPECT_ERROR(
              CommError, bad.wait(), "out of luck", "(rank 1, phase product)");
        } else {
          EXPECT_ERROR(
              CommError,
              bad.wait(),
              concat("failed on rank ", group.rank()),
              concat("(rank ", group.rank(), ", phase "));
        }
        EXPECT_THROW(next.wait(), CommError);
        EXPECT_THROW(submit(lane, torch::ones({1})).wait(), CommError);
        // Long before the timeout, which is how peers would notice otherwise.
        EXPECT_LT(
            std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
      },
      {.timeout = std::chrono::seconds(60)});
}

TEST(Lane, ClosingEndsWhatIsUnderWay) {
  run_threads(
      2,
      [](const Group& group) {
        Future result;
        {
          Lane lane(group, "test", kPhases);
          if (group.rank() == 0) {
            result = submit(lane, torch::ones({1}));  // the peer never does
          }
        }
        if (group.rank() == 0) {
          EXPECT_THROW(result.wait(), CommError);
        }
      },
      {.timeout = std::chrono::seconds(3)});
}

// The peer is alive and says nothing: then it takes the timeout, and no more.
TEST(Lane, ClosingTakesAtMostOneTimeout) {
  constexpr auto kTimeout = std::chrono::seconds(3);
  std::promise<void> closed;
  run_threads(
      2,
      [&](const Group& group) {
        auto lane = std::make_unique<Lane>(group, "test", kPhases);
        if (group.rank() == 1) {
          closed.get_future().wait_for(5 * kTimeout);
          return;
        }
        std::vector<Future> results;
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < 8; ++i) {
          results.push_back(submit(*lane, torch::ones({1})));
        }
        lane.reset();
        EXPECT_LT(std::chrono::steady_clock::now() - start, 2 * kTimeout);
        for (const auto& result : results) {
          EXPECT_THROW(result.wait(), CommError);
        }
        closed.set_value();
      },
      {.timeout = kTimeout});
}

// Submits a sum in its first step; the second one waits for a word of the test
// and then throws, if it is told to.
class Sum : public Lane::Job {
 public:
  Sum(at::Tensor value, std::shared_future<void> word, bool throws)
      : value_(std::move(value)), word_(std::move(word)), throws_(throws) {}

  std::span<const Step> steps() const override {
    static const Step kSteps[] = {
        step("sum", &Sum::send), step("end", &Sum::end)};
    return kSteps;
  }
  const Future& sum() const {
    return sum_;
  }

 private:
  void send(const Lane::Groups& groups) {
    sum_ = groups[0].all_reduce(value_);
    await(sum_);
  }
  void end(const Lane::Groups&) {
    word_.wait();
    if (throws_) {
      gradwire::fail("test", "out of luck");
    }
  }

  at::Tensor value_;
  std::shared_future<void> word_;
  bool throws_;
  Future sum_;
};

// The transport may write into a job's values until its collective has ended,
// also where another job has failed the lane.
TEST(Lane, AnAbandonedJobEndsAfterItsCollective) {
  std::promise<void> submitted;
  std::promise<void> failed;
  const std::shared_future<void> both_are_submitted =
      submitted.get_future().share();
  run_threads(2, [&](const Group& group) {
    Lane lane(group, "test", {{"sum"}, {"end", 0}});
    const bool first = group.rank() == 0;
    const auto values = torch::ones({1});
    const Future bad = lane.submit(
        std::make_shared<Sum>(torch::ones({1}), both_are_submitted, first),
        values);
    if (!first) {
      failed.get_future().wait();
    }
    const auto job =
        std::make_shared<Sum>(values, both_are_submitted, /*throws=*/false);
    const Future abandoned = lane.submit(job, values);
    if (!first) {
      // The peer may be gone before this ends here.
      try {
        abandoned.wait();
      } catch (const CommError&) {
      }
      return;
    }
    std::promise<bool> ended;
    abandoned.on_done(
        [&](const Future&) { ended.set_value(job->sum().done()); });
    submitted.set_value();
    EXPECT_THROW(bad.wait(), CommError);
    failed.set_value();
    EXPECT_TRUE(ended.get_future().get());
    EXPECT_EQ(values.item<float>(), 2);
  });
}

TEST(Lane, RanksAgreeOnTheLabel) {
  run_threads(3, [](const Group& group) {
    const char* label = group.rank() == 2 ? "int8:block=256" : "int8";
    EXPECT_ERROR(
        Error,
        Lane(group, label, kPhases),
        "'int8' on rank 0",
        "'int8:block=256' on rank 2");
  });
}

// As many threads as there is room for, which is one or none.
TEST(Lane, AThreadThatCannotBeStartedIsAnError) {
  run_threads(1, [](const Group& group) {
    pthread_attr_t before;
    pthread_attr_t huge;
    ASSERT_EQ(pthread_getattr_default_np(&before), 0);
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{70} << 40);
    ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
    EXPECT_ERROR(
        Error,
        Lane(group, "test", {{"first", 0}, {"second", 0}, {"third", 0}}),
        "[gradwire.comm] lane 'test' cannot start a thread",
        "(rank 0)");
    pthread_setattr_default_np(&before);
    pthread_attr_destroy(&before);
    pthread_attr_destroy(&huge);
    Lane(group, "test", {{"first", 0}, {"second", 0}});
  });
}

TEST(Lane, AnUnusedLaneClosesAtOnce) {
  run_threads(4, [](const Group& group) { Lane(group, "test", kPhases); });
}

// Ranks are ready at different times, several modules train at once, and the
// user has collectives on the group: nothing of it may mix.
TEST(Lane, NothingElseInterleaves) {
  run_threads(4, [](const Group& group) {
    constexpr int kSteps = 6;
    const auto make = [&](std::uint64_t seed, const char* hook) {
      torch::nn::Sequential net;
      for (int i = 0; i < 12; ++i) {
        net->push_back(torch::nn::Linear(24, 24));
      }
      test::fill_parameters(*net, seed);
      return DistributedDataParallel(
          net,
          group,
          {.hook = hook, .bucket_cap_mb = 0.002, .first_bucket_cap_mb = 0.001});
    };
    auto first = make(1, "int8");
    auto second = make(2, "int4:rounding=stochastic");
    for (int step = 0; step < kSteps; ++step) {
      first->zero_grad();
      second->zero_grad();
      const auto input = random_tensor({2, 24}, 10 * step + group.rank());
      const auto ones = torch::ones({50});
      auto a = first->forward(input).sum();
      auto b = second->forward(input).sum();
      const auto sum = group.all_reduce(ones.clone());
      std::this_thread::sleep_for(
          std::chrono::milliseconds((group.rank() * 7 + step * 3) % 5));
      const auto extra = random_tensor({5000}, step);
      const auto compressed =
          compressed_all_reduce(group, extra.clone(), "fp16");
      b.backward();
      group.barrier().wait();
      a.backward();
      EXPECT_TRUE(sum.wait().eq(4).all().item<bool>());
      EXPECT_TRUE(torch::allclose(compressed.wait(), extra * 4, 1e-3, 1e-3));
      for (const auto& ddp : {first, second}) {
        for (const auto& parameter : ddp->parameters()) {
          EXPECT_TRUE(test::same_on_all_ranks(group, parameter.grad()));
        }
      }
    }
  });
}

// A process may end with lanes open: in a global, or without unwinding.
TEST(LaneProcesses, AProcessMayEndWithALaneOpen) {
  test::run_processes(2, [](const Group& group) {
    static std::unique_ptr<Lane> forever;
    forever = std::make_unique<Lane>(group, "test", kPhases);
    EXPECT_EQ(submit(*forever, torch::ones({1})).wait().item<float>(), 4);
  });
}

}  // namespace
}  // namespace gradwire
