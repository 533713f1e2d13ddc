// Workers that die, stop or do not come: every caller gets an error in time.

#include <gtest/gtest.h>

#include "gradwire/rpc/context.h"
#include "tests/rpc/faults.h"
#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

using autograd::Context;

// Rank 0 acts; the others wait for it and end without shutdown().
void run_until_done(
    int n,
    const std::function<void(const Group&)>& act,
    const WorkerOptions& options) {
  once<register_faults>();
  run_joined(
      n,
      [&](const Group& group) {
        if (group.rank() != 0) {
          over.get_future().wait();
          return;
        }
        act(group);
        for (int rank = 1; rank < n; ++rank) {
          try {
            rpc::call(rpc::To(worker_name(rank), 2s), "over");
          } catch (const CommError&) {
            // the one that died
          }
        }
      },
      options);
}

TEST(RpcFaultsProcesses, ADeadWorkerIsAnErrorWithinASecond) {
  run_until_done(
      3,
      [](const Group&) {
        // During a call, in the middle of others.
        const auto pending = rpc::call_async<int>("worker1", "sleep_ms", 15000);
        auto start = Clock::now();
        EXPECT_ERROR(
            CommError,
            rpc::call("worker1", "die"),
            "'die' on worker 'worker1' cannot be reached, the worker is lost "
            "or "
            "has left",
            "(worker 'worker0' called)");
        EXPECT_ERROR(
            CommError, pending.wait(), "'sleep_ms' on worker 'worker1'");
        EXPECT_LT(seconds_since(start), 1);
        // Afterwards.
        start = Clock::now();
        EXPECT_ERROR(
            CommError,
            rpc::call<std::int64_t>("worker1", "pid"),
            "'pid' on worker 'worker1' cannot be reached");
        EXPECT_LT(seconds_since(start), 1);
        // The others go on.
        EXPECT_EQ(rpc::call<int>("worker2", "sleep_ms", 1), 1);
      },
      with_death_of(1));
}

// Before the first call: nothing is connected yet.
TEST(RpcFaultsProcesses, AWorkerThatDiedBeforeIsAnErrorWithinASecond) {
  once<register_faults>();
  const auto options = with_death_of(1);
  run_joined(
      2,
      [](const Group& group) {
        if (group.rank() == 1) {
          kill(getpid(), SIGKILL);
        }
        EXPECT_THROW(group.barrier().wait(), CommError);  // it is gone now
        const auto start = Clock::now();
        EXPECT_ERROR(
            CommError,
            rpc::call<std::int64_t>("worker1", "pid"),
            "'pid' on worker 'worker1' cannot be reached");
        EXPECT_LT(seconds_since(start), 1);
        EXPECT_ERROR(
            CommError,
            rpc::shutdown(),
            "on worker 'worker1' cannot be reached, the worker is lost");
        EXPECT_LT(seconds_since(start), 3);
      },
      options);
}

TEST(RpcFaultsProcesses, AStoppedWorkerIsAnErrorWithinTheTimeout) {
  run_until_done(
      2,
      [](const Group&) {
        const auto pid =
            static_cast<pid_t>(rpc::call<std::int64_t>("worker1", "pid"));
        kill(pid, SIGSTOP);
        const auto start = Clock::now();
        EXPECT_ERROR(
            CommError,
            rpc::call<std::int64_t>(rpc::To("worker1", 700ms), "pid"),
            "'pid' on worker 'worker1' gave no answer within 0.7 s (worker "
            "'worker0' waited)");
        EXPECT_LT(seconds_since(start), 1.7);
        kill(pid, SIGCONT);
        EXPECT_EQ(rpc::call<std::int64_t>("worker1", "pid"), pid);
      },
      {});
}

TEST(RpcFaultsProcesses, ASlowCallTimesOutAndTheNextOneWorks) {
  run_until_done(
      2,
      [](const Group&) {
        EXPECT_ERROR(
            CommError,
            rpc::call<int>(rpc::To("worker1", 100ms), "sleep_ms", 400),
            "'sleep_ms' on worker 'worker1' gave no answer within 0.1 s");
        EXPECT_ERROR(
            Error,
            rpc::call<int>(rpc::To("worker1", 0ms), "sleep_ms", 1),
            "the timeout of a call is 0 ms, expected more than 0");
        EXPECT_EQ(rpc::call<int>("worker1", "sleep_ms", 1), 1);
      },
      {});
}

TEST(RpcFaultsProcesses, ADeathInBackwardIsAnErrorWithinASecond) {
  run_until_done(
      2,
      [](const Group&) {
        const auto x = torch::ones({1, 2}).requires_grad_();
        const Context context;
        const auto y =
            rpc::call<at::Tensor>("worker1", "times_weight_and_die", x).sum();
        const auto start = Clock::now();
        EXPECT_ERROR(
            CommError,
            autograd::backward(context, {y}),
            "[gradwire.autograd] backward failed: ",
            "(worker 'worker0')");
        EXPECT_LT(seconds_since(start), 1);
      },
      with_death_of(1));
}

// A -> B -> C, and C is gone: A learns from B that it was C.
TEST(RpcFaultsProcesses, ADeathBehindAnotherWorkerIsNamed) {
  run_until_done(
      3,
      [](const Group&) {
        const auto x = torch::ones({1, 2});
        EXPECT_THROW(rpc::call("worker2", "die"), CommError);
        const auto start = Clock::now();
        EXPECT_ERROR(
            rpc::RemoteError,
            rpc::call<at::Tensor>("worker1", "times_weight_at", "worker2", x),
            "'times_weight_at' on worker 'worker1' failed: [gradwire.rpc] "
            "'times_weight' on worker 'worker2' cannot be reached");
        EXPECT_LT(seconds_since(start), 1);
      },
      with_death_of(2));
}

TEST(RpcFaultsProcesses, AWorkerThatNeverJoinsIsNamed) {
  run_processes(
      3,
      [&](const Group& group) {
        const auto start = Clock::now();
        if (group.rank() == 1) {
          std::this_thread::sleep_for(3s);
          return;
        }
        EXPECT_ERROR(
            CommError,
            rpc::init(worker_name(group.rank()), group),
            "rpc::init: rank 1 did not arrive within 1.5 s");
        EXPECT_LT(seconds_since(start), 2.5);
      },
      {.timeout = 1500ms});
}

// Neither as an argument nor as a result; nobody waits for it when all leave.
TEST(RpcFaultsProcesses, WhatCannotBeSentIsAnErrorAndForgotten) {
  once<register_faults>();
  rpc::register_function("meta", [] { return torch::ones(1, torch::kMeta); });
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    EXPECT_ERROR(
        Error,
        rpc::call("worker1", "a..b"),
        "'a..b' is not the name of a function");
    EXPECT_ERROR(
        Error,
        rpc::call<at::Tensor>(
            "worker1", "times_weight", torch::ones({1, 2}, torch::kMeta)),
        "a tensor on meta cannot be sent, expected one on the cpu");
    EXPECT_ERROR(
        rpc::RemoteError,
        rpc::call<at::Tensor>("worker1", "meta"),
        "a tensor on meta cannot be sent");
  });
}

}  // namespace
}  // namespace gradwire::test
