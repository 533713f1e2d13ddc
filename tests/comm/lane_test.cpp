#include "gradwire/comm/lane.h"

#include <gtest/gtest.h>
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

// Sums in one phase and multiplies in the next; throws where it is told to.
class Calculation : public Lane::Job {
 public:
  explicit Calculation(at::Tensor value, int throws_in = -1)
      : value_(std::move(value)), throws_in_(throws_in) {}

  void wait() override {
    pending_.wait();
  }
  void run(std::size_t phase, const Lane::Groups& groups) override {
    if (static_cast<int>(phase) == throws_in_) {
      fail_here();
    }
    if (phase < 2) {
      pending_ = groups[0].all_reduce(
          value_, phase == 0 ? ReduceOp::kSum : ReduceOp::kProduct);
    } else {
      done_.set_value(value_);
    }
  }
  void fail(const std::exception_ptr& error) noexcept override {
    done_.set_exception(error);
  }
  at::Tensor result() {
    return done_.get_future().get();
  }

 private:
  [[noreturn]] static void fail_here() {
    gradwire::fail("test", "out of luck");
  }

  at::Tensor value_;
  int throws_in_;
  Future pending_;
  std::promise<at::Tensor> done_;
};

TEST(Lane, JobsPassThePhasesInOrder) {
  run_threads(3, [](const Group& group) {
    Lane lane(group, "test", kPhases);
    std::vector<std::shared_ptr<Calculation>> jobs;
    for (int i = 0; i < 20; ++i) {
      jobs.push_back(std::make_shared<Calculation>(
          torch::full({1}, i + group.rank(), torch::kDouble)));
      lane.submit(jobs.back());
    }
    for (int i = 0; i < 20; ++i) {
      const double sum = 3 * i + 3;
      EXPECT_EQ(jobs[i]->result().item<double>(), sum * sum * sum);
    }
  });
}

TEST(Lane, WhatIsSentCountsForTheGroupAndForTheScope) {
  run_threads(2, [](const Group& group) {
    Lane lane(group, "test", kPhases);
    const auto ledger = std::make_shared<ByteMeter>();
    const auto before = group.bytes_sent();
    const auto job = std::make_shared<Calculation>(torch::ones({100}));
    {
      const ByteScope scope(ledger);
      lane.submit(job);
    }
    job->result();
    EXPECT_EQ(
        ledger->read().payload, 2 * all_reduce_bytes(group.rank(), 2, 100, 4));
    EXPECT_EQ(group.bytes_sent() - before, ledger->read());
  });
}

TEST(Lane, AFailureIsNamedAndReachesEveryJobAndEveryPeer) {
  run_threads(
      3,
      [](const Group& group) {
        const auto start = std::chrono::steady_clock::now();
        Lane lane(group, "test", kPhases);
        const int throws_in = group.rank() == 1 ? 1 : -1;
        const auto good = std::make_shared<Calculation>(torch::ones({1}));
        const auto bad =
            std::make_shared<Calculation>(torch::ones({1}), throws_in);
        const auto next = std::make_shared<Calculation>(torch::ones({1}));
        lane.submit(good);
        good->result();
        lane.submit(bad);
        lane.submit(next);
        if (group.rank() == 1) {
          EXPECT_ERROR(
              CommError, bad->result(), "out of luck", "phase product");
        } else {
          EXPECT_ERROR(
              CommError,
              bad->result(),
              concat("failed on rank ", group.rank()),
              "(phase ");
        }
        EXPECT_THROW(next->result(), CommError);
        const auto late = std::make_shared<Calculation>(torch::ones({1}));
        lane.submit(late);
        EXPECT_THROW(late->result(), CommError);
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
        auto job = std::make_shared<Calculation>(torch::ones({1}));
        {
          Lane lane(group, "test", kPhases);
          if (group.rank() == 0) {
            lane.submit(job);  // the peer never does
          } else {
            job->fail(std::make_exception_ptr(CommError("not submitted")));
          }
        }
        EXPECT_THROW(job->result(), CommError);
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
        std::vector<std::shared_ptr<Calculation>> jobs;
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < 8; ++i) {
          jobs.push_back(std::make_shared<Calculation>(torch::ones({1})));
          lane->submit(jobs.back());
        }
        lane.reset();
        EXPECT_LT(std::chrono::steady_clock::now() - start, 2 * kTimeout);
        for (const auto& job : jobs) {
          EXPECT_THROW(job->result(), CommError);
        }
        closed.set_value();
      },
      {.timeout = kTimeout});
}

TEST(Lane, AnUnusedLaneClosesAtOnce) {
  run_threads(4, [](const Group& group) { Lane(group, "test", kPhases); });
}

// Ranks are ready at different times, several modules train at once, and the
// user does what he likes on his own group: nothing of it may mix.
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
    const auto job = std::make_shared<Calculation>(torch::ones({1}));
    forever->submit(job);
    EXPECT_EQ(job->result().item<float>(), 4);
  });
}

}  // namespace
}  // namespace gradwire
