// Workers that die, stop or do not come: every caller gets an error in time.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <future>
#include <thread>

#include "gradwire/rpc/context.h"
#include "gradwire/rpc/remote.h"
#include "tests/rpc/workers.h"
#include "tests/support/expect.h"

#ifdef __SANITIZE_ADDRESS__
// GCC comes without the header that declares it.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace gradwire::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using autograd::Context;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

at::Tensor& weight() {
  static at::Tensor tensor = torch::ones({2, 2}).requires_grad_();
  return tensor;
}

std::promise<void> over;

void register_faults() {
  rpc::register_function("over", [] { over.set_value(); });
  rpc::register_function("pid", [] { return std::int64_t{getpid()}; });
  rpc::register_function("die", [] { kill(getpid(), SIGKILL); });
  rpc::register_function("sleep_ms", [](int ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    return ms;
  });
  rpc::register_function(
      "times_weight", [](const at::Tensor& x) { return x.matmul(weight()); });
  // Dies as soon as its gradient is asked for.
  rpc::register_function("times_weight_and_die", [](const at::Tensor& x) {
    auto y = x.matmul(weight());
    y.register_hook([](const at::Tensor&) { kill(getpid(), SIGKILL); });
    return y;
  });
  rpc::register_function(
      "times_weight_at", [](const std::string& worker, const at::Tensor& x) {
        return rpc::call<at::Tensor>(worker, "times_weight", x);
      });
}

WorkerOptions with_death_of(int rank) {
  WorkerOptions options;
  options.rpc.timeout = 20s;
  options.rpc.shutdown_timeout = 2s;
  options.ranks.may_die = {rank};
  return options;
}

// Rank 0 acts; the others wait for it and leave without a word.
void run_until_done(
    int n,
    const std::function<void(const Group&)>& act,
    const WorkerOptions& options) {
  once<register_faults>();
  run_processes(
      n,
      [&](const Group& group) {
        rpc::init(worker_name(group.rank()), group, options.rpc);
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
      options.ranks);
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
  run_processes(
      2,
      [&](const Group& group) {
        rpc::init(worker_name(group.rank()), group, options.rpc);
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
      options.ranks);
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
  WorkerOptions options;
  options.ranks.timeout = 1500ms;
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
            "rank 1 did not become a worker within 1.5 s");
        EXPECT_LT(seconds_since(start), 2.5);
      },
      options.ranks);
}

TEST(RpcFaultsProcesses, ShutdownWithCallsInFlight) {
  once<register_faults>();
  WorkerOptions options;
  options.rpc.shutdown_timeout = 500ms;
  run_processes(
      2,
      [&](const Group& group) {
        rpc::init(worker_name(group.rank()), group, options.rpc);
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
      options.ranks);
}

TEST(RpcFaultsProcesses, ServeEndsWithTheOthers) {
  once<register_faults>();
  WorkerOptions options;
  options.rpc.shutdown_timeout = 500ms;
  run_processes(
      2,
      [&](const Group& group) {
        rpc::init(worker_name(group.rank()), group, options.rpc);
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
      options.ranks);
}

TEST(RpcFaultsProcesses, ServeEndsWhenAWorkerIsLost) {
  once<register_faults>();
  const auto options = with_death_of(0);
  run_processes(
      3,
      [&](const Group& group) {
        rpc::init(worker_name(group.rank()), group, options.rpc);
        group.barrier().wait();
        const auto start = Clock::now();
        if (group.rank() == 0) {
          kill(getpid(), SIGKILL);
        }
        EXPECT_ERROR(CommError, rpc::serve(), "worker0", "is lost or has left");
        EXPECT_LT(seconds_since(start), 3);
      },
      options.ranks);
}

// A handler under a context that is over meanwhile: its own call fails, and
// nobody waits for it when all leave.
TEST(RpcFaultsProcesses, ACallThatCannotBeSentIsAnErrorAndForgotten) {
  once<register_faults>();
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    EXPECT_ERROR(
        Error, rpc::call("worker1", "a..b"), "'a..b' is no name of a function");
    EXPECT_ERROR(
        Error,
        rpc::call<at::Tensor>(
            "worker1", "times_weight", torch::ones({1, 2}, torch::kMeta)),
        "a tensor on meta cannot be sent, expected one on the cpu");
  });
}

TEST(RpcFaultsProcesses, HandlersMayNotShutDown) {
  once<register_faults>();
  rpc::register_function("quit", [] { rpc::shutdown(); });
  rpc::register_function("meta", [] { return torch::ones(1, torch::kMeta); });
  run_workers(2, [](const Group& group) {
    const auto other = worker_name(1 - group.rank());
    EXPECT_ERROR(
        rpc::RemoteError,
        rpc::call(other, "quit"),
        "shutdown was called by a handler, which it would wait for");
    EXPECT_ERROR(
        rpc::RemoteError,
        rpc::call<at::Tensor>(other, "meta"),
        "a tensor on meta cannot be sent");
  });
}

// shutdown() keeps its time though another worker does not answer at all.
TEST(RpcFaultsProcesses, ShutdownBesideAStoppedWorker) {
  once<register_faults>();
  WorkerOptions options;
  options.rpc.shutdown_timeout = 1500ms;
  run_processes(
      2,
      [&](const Group& group) {
        rpc::init(worker_name(group.rank()), group, options.rpc);
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
      {.may_die = {1}});
}

// A program that just ends does not hang or crash.
TEST(RpcFaultsProcesses, LeavingWithoutShutdown) {
  once<register_faults>();
  run_processes(2, [](const Group& group) {
    rpc::init(worker_name(group.rank()), group);
    rpc::call<std::int64_t>(worker_name(1 - group.rank()), "pid");
    group.barrier().wait();
  });
}

// The address sanitizer keeps freed memory for a while: what the process has is
// not what it uses.
std::int64_t bytes_in_use() {
#ifdef __SANITIZE_ADDRESS__
  return static_cast<std::int64_t>(__sanitizer_get_current_allocated_bytes());
#else
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  file >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
#endif
}

// Ten thousand calls and a thousand contexts: memory stays, and so do threads.
TEST(RpcFaultsProcesses, ASoakLeavesNothingBehind) {
  once<register_faults>();
  rpc::register_function("in_use", [] { return bytes_in_use(); });
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    const auto x = torch::ones({8, 2}).requires_grad_();
    const auto round = [&](int calls, int contexts) {
      for (int i = 0; i < calls; ++i) {
        rpc::call<at::Tensor>("worker1", "times_weight", torch::ones({8, 2}));
      }
      for (int i = 0; i < contexts; ++i) {
        const Context context;
        autograd::backward(
            context,
            {rpc::call<at::Tensor>("worker1", "times_weight", x).sum()});
      }
    };
    round(2000, 200);  // what is allocated once
    const auto here = bytes_in_use();
    const auto there = rpc::call<std::int64_t>("worker1", "in_use");
    round(10000, 1000);
    // A leak of one tensor a call would be tens of MB.
    const std::int64_t slack = 4 << 20;
    EXPECT_LT(bytes_in_use() - here, slack);
    EXPECT_LT(rpc::call<std::int64_t>("worker1", "in_use") - there, slack);
  });
}

}  // namespace
}  // namespace gradwire::test
