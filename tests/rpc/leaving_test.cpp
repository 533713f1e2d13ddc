// Workers leave: together, in time, and also when others do not.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "gradwire/rpc/context.h"
#include "tests/rpc/faults.h"
#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

TEST(RpcLeavingProcesses, ShutdownWithCallsInFlight) {
  once<register_faults>();
  const auto options = with_shutdown_timeout(500ms);
  run_joined(
      2,
      [](const Group& group) {
        if (group.rank() == 1) {
          // Its handler is still busy when the time is up.
          EXPECT_THROW(rpc::shutdown(), CommError);
          return;
        }
        const auto slow = rpc::call_async<int>("worker1", "sleep_ms", 3000);
        const auto start = Clock::now();
        EXPECT_ERROR(CommError, rpc::shutdown(), "");
        EXPECT_LT(seconds_since(start), 2);
        EXPECT_ERROR(CommError, slow.wait(), "'sleep_ms' on worker 'worker1'");
        EXPECT_LT(seconds_since(start), 2);
      },
      options);
}

TEST(RpcLeavingProcesses, ServeEndsWithTheOthers) {
  once<register_faults>();
  const auto options = with_shutdown_timeout(500ms);
  run_joined(
      2,
      [](const Group& group) {
        if (group.rank() == 1) {
          rpc::serve();  // longer than any shutdown would wait
          return;
        }
        for (int i = 0; i < 3; ++i) {
          EXPECT_EQ(rpc::call<int>("worker1", "sleep_ms", 400), 400);
        }
        rpc::shutdown();
        EXPECT_FALSE(rpc::is_running());
      },
      options);
}

TEST(RpcLeavingProcesses, ServeEndsWhenAWorkerIsLost) {
  once<register_faults>();
  const auto options = with_death_of(0);
  run_joined(
      3,
      [](const Group& group) {
        group.barrier().wait();
        const auto start = Clock::now();
        if (group.rank() == 0) {
          kill(getpid(), SIGKILL);
        }
        EXPECT_ERROR(CommError, rpc::serve(), "worker0", "is lost or has left");
        EXPECT_LT(seconds_since(start), 3);
      },
      options);
}

// The only one that can notice neither serves nor shuts down.
TEST(RpcLeavingProcesses, ServeEndsWhenSomebodyElseNoticesALoss) {
  once<register_faults>();
  auto options = with_death_of(1);
  options.ranks.may_die = {0, 1};
  run_joined(
      3,
      [](const Group& group) {
        if (group.rank() != 2) {
          over.get_future().wait_for(20s);
          return;
        }
        const auto pid = rpc::call<std::int64_t>("worker0", "pid");
        EXPECT_THROW(rpc::call("worker1", "die"), CommError);
        const auto start = Clock::now();
        EXPECT_ERROR(
            CommError, rpc::serve(), "'worker1'", "(worker 'worker0' called)");
        EXPECT_LT(seconds_since(start), 3);
        kill(static_cast<pid_t>(pid), SIGKILL);
      },
      options);
}

TEST(RpcLeavingProcesses, ServeEndsWhenAWorkerIsSilent) {
  once<register_faults>();
  auto options = with_death_of(1);
  options.rpc.liveness = 700ms;
  run_joined(
      2,
      [](const Group& group) {
        if (group.rank() == 1) {
          over.get_future().wait_for(20s);
          return;
        }
        const auto pid =
            static_cast<pid_t>(rpc::call<std::int64_t>("worker1", "pid"));
        kill(pid, SIGSTOP);
        EXPECT_ERROR(
            CommError,
            rpc::serve(),
            "on worker 'worker1' gave no answer within 0.7 s");
        kill(pid, SIGKILL);
      },
      options);
}

// Rank 0 serves the store, which answers no more either.
TEST(RpcLeavingProcesses, ServeEndsWhenTheStoreIsSilent) {
  once<register_faults>();
  auto options = with_death_of(0);
  options.rpc.liveness = 700ms;
  run_joined(
      2,
      [](const Group& group) {
        if (group.rank() == 0) {
          over.get_future().wait_for(60s);
          return;
        }
        const auto pid =
            static_cast<pid_t>(rpc::call<std::int64_t>("worker0", "pid"));
        std::thread stopping([pid] {
          // In the middle of serve(), which looks at the store by then.
          std::this_thread::sleep_for(300ms);
          kill(pid, SIGSTOP);
        });
        const auto start = Clock::now();
        EXPECT_THROW(rpc::serve(), CommError);
        stopping.join();
        EXPECT_LT(seconds_since(start), 10);
        kill(pid, SIGKILL);
      },
      options);
}

// It has a copy of the worker, and none of its threads.
TEST(RpcLeavingProcesses, AForkedChildEnds) {
  once<register_faults>();
  run_workers(2, [](const Group& group) {
    const pid_t child = fork();
    if (child == 0) {
      std::exit(rpc::is_running() ? 2 : 3);
    }
    int status = -1;
    for (int waited = 0; waitpid(child, &status, WNOHANG) == 0; ++waited) {
      if (waited == 100) {
        kill(child, SIGKILL);
      }
      std::this_thread::sleep_for(100ms);
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
    EXPECT_EQ(rpc::call<int>(worker_name(1 - group.rank()), "sleep_ms", 1), 1);
  });
}

// Workers exchange their ranks, and gradients still flow between them.
TEST(RpcLeavingProcesses, AWorkerOfAnotherRankAfterwards) {
  once<register_faults>();
  run_joined(2, [](const Group& group) {
    rpc::shutdown();
    const Group turned = group.subgroup({1, 0});
    for (int round = 0; round < 2; ++round) {
      init_worker(turned);
      const auto other = worker_name(1 - turned.rank());
      EXPECT_EQ(rpc::self().id, 1 - group.rank());
      const auto x = torch::ones({1, 2}).requires_grad_();
      {
        const autograd::Context context;
        autograd::backward(
            context, {rpc::call<at::Tensor>(other, "times_weight", x).sum()});
        EXPECT_TRUE(torch::equal(
            autograd::gradients(context).of(x), torch::full({1, 2}, 2.0)));
        turned.barrier().wait();
      }
      rpc::shutdown();
    }
  });
}

TEST(RpcLeavingProcesses, HandlersMayNotShutDown) {
  once<register_faults>();
  rpc::register_function("quit", [] { rpc::shutdown(); });
  run_workers(2, [](const Group& group) {
    EXPECT_ERROR(
        rpc::RemoteError,
        rpc::call(worker_name(1 - group.rank()), "quit"),
        "shutdown was called by a handler and would wait for its end");
  });
}

// shutdown() keeps its time though another worker does not answer at all.
TEST(RpcLeavingProcesses, ShutdownBesideAStoppedWorker) {
  once<register_faults>();
  auto options = with_death_of(1);
  options.rpc.shutdown_timeout = 1500ms;
  run_joined(
      2,
      [](const Group& group) {
        if (group.rank() == 1) {
          over.get_future().wait_for(20s);
          return;
        }
        const auto pid =
            static_cast<pid_t>(rpc::call<std::int64_t>("worker1", "pid"));
        kill(pid, SIGSTOP);
        const auto start = Clock::now();
        EXPECT_ERROR(CommError, rpc::shutdown(), "worker1");
        EXPECT_LT(seconds_since(start), 3.5);
        kill(pid, SIGKILL);
      },
      options);
}

// A program that just ends does not hang or crash.
TEST(RpcLeavingProcesses, LeavingWithoutShutdown) {
  once<register_faults>();
  run_joined(2, [](const Group& group) {
    rpc::call<std::int64_t>(worker_name(1 - group.rank()), "pid");
    group.barrier().wait();
  });
}

}  // namespace
}  // namespace gradwire::test
