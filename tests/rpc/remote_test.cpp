#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sys/types.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <thread>

#include "gradwire/rpc/object_table.h"
#include "gradwire/rpc/remote.h"
#include "tests/rpc/workers.h"
#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

using namespace std::chrono_literals;
using rpc::Remote;

class Counter {
 public:
  explicit Counter(int start) : value_(start) {
    if (start < 0) {
      throw std::invalid_argument("a counter starts at 0 or above");
    }
  }
  int add(int n) {
    return value_ += n;
  }
  int value() const {
    return value_;
  }

 private:
  std::atomic<int> value_;
};

void register_counter() {
  rpc::register_class<Counter>("Counter")
      .constructor<int>()
      .method<&Counter::add>("add")
      .method<&Counter::value>("value");
  rpc::register_function("count_for", [](Remote<Counter> counter, int n) {
    return counter.invoke<&Counter::add>(n);
  });
  rpc::register_function(
      "objects", [] { return static_cast<int>(rpc::owned_objects()); });
}

// Waits for it rather than for a time; the caller's deadline is the test's.
void wait_for_objects(const std::string& worker, int count) {
  while (rpc::call<int>(worker, "objects") != count) {
    std::this_thread::sleep_for(5ms);
  }
}

TEST(RemoteProcesses, ObjectsLiveWhereTheyWereMade) {
  once<register_counter>();
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    auto counter = Remote<Counter>::create("worker1", 5);
    EXPECT_EQ(counter.owner().name, "worker1");
    EXPECT_EQ(counter.invoke<&Counter::add>(3), 8);
    EXPECT_EQ(counter.invoke_async<&Counter::value>().wait(), 8);
    EXPECT_EQ(counter.within(10s).invoke<&Counter::value>(), 8);
    EXPECT_EQ(rpc::call<int>("worker1", "objects"), 1);
    const auto copy = counter;
    counter.release();
    EXPECT_FALSE(counter.valid());
    EXPECT_EQ(copy.invoke<&Counter::value>(), 8);
    EXPECT_ERROR(
        Error,
        counter.release(),
        "the handle is empty: it was released or never made");
    EXPECT_ERROR(Error, counter.invoke<&Counter::value>(), "handle is empty");
    EXPECT_ERROR(
        Error,
        copy.local(),
        "the object lives on worker 'worker1' and cannot be used on worker "
        "'worker0'");
  });
}

TEST(RemoteProcesses, ObjectsEndWithTheLastHandle) {
  once<register_counter>();
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    {
      const auto one = Remote<Counter>::create("worker1", 1);
      const auto two = Remote<Counter>::create("worker1", 2);
      const auto mine = Remote<Counter>::own(std::make_shared<Counter>(3));
      EXPECT_EQ(rpc::call<int>("worker1", "objects"), 2);
      EXPECT_EQ(rpc::owned_objects(), 1u);
      EXPECT_EQ(mine.local()->value(), 3);
      EXPECT_EQ(mine.invoke<&Counter::add>(1), 4);
    }
    // A call's own hold ends a little after its reply.
    wait_for_objects("worker0", 0);
    wait_for_objects("worker1", 0);
    // The handle is gone before the call has begun, the object is not.
    const auto reply =
        Remote<Counter>::create("worker1", 7).invoke_async<&Counter::value>();
    EXPECT_EQ(reply.wait(), 7);
    wait_for_objects("worker1", 0);
  });
}

TEST(RemoteProcesses, HandlesArePassedOn) {
  once<register_counter>();
  static Remote<Counter> kept;
  rpc::register_function(
      "keep", [](Remote<Counter> counter) { kept = std::move(counter); });
  rpc::register_function("kept", [] { return kept; });
  rpc::register_function("drop", [] { kept.release(); });
  run_workers(3, [](const Group& group) {
    if (group.rank() != 0) {
      return;
    }
    auto counter = Remote<Counter>::create("worker1", 0);
    EXPECT_EQ(rpc::call<int>("worker2", "count_for", counter, 2), 2);
    // To its owner.
    EXPECT_EQ(rpc::call<int>("worker1", "count_for", counter, 2), 4);
    // A third worker holds it alone.
    rpc::call("worker2", "keep", counter);
    counter.release();
    auto back = rpc::call<Remote<Counter>>("worker2", "kept");
    EXPECT_EQ(back.owner().name, "worker1");
    EXPECT_EQ(back.invoke<&Counter::value>(), 4);
    rpc::call("worker2", "drop");
    EXPECT_EQ(back.invoke<&Counter::value>(), 4);
    back.release();
    wait_for_objects("worker1", 0);
  });
}

TEST(RemoteProcesses, ConstructorsAndTypesAreChecked) {
  once<register_counter>();
  rpc::register_class<std::vector<double>>("Series").constructor<std::size_t>();
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    EXPECT_ERROR(
        rpc::RemoteError,
        Remote<Counter>::create("worker1", -1),
        "'Counter.new' on worker 'worker1' failed: a counter starts at 0 or "
        "above");
    EXPECT_ERROR(
        rpc::RemoteError,
        Remote<Counter>::create("worker1", "one"),
        "'Counter.new' is (int) -> Remote<Counter>, but was called as (str) -> "
        "Remote<Counter>");
    // A handle that lies about its type.
    const auto counter = Remote<Counter>::create("worker1", 1);
    EXPECT_ERROR(
        rpc::RemoteError,
        rpc::call<std::vector<double>>(
            "worker1", "Series.fetch", counter.hold().object()),
        "is a Counter, expected a Series");
    EXPECT_ERROR(
        rpc::RemoteError,
        rpc::call<int>("worker1", "Counter.value", std::int64_t{12}),
        "object 12 is gone");
  });
}

TEST(RemoteProcesses, AReplyReadTwiceIsOneHandle) {
  once<register_counter>();
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    auto reply =
        std::make_optional(Remote<Counter>::create_async("worker1", 4));
    const auto first = reply->wait();
    { const auto second = reply->wait(); }
    reply.reset();
    EXPECT_EQ(first.invoke<&Counter::value>(), 4);
  });
}

TEST(RemoteProcesses, ValuesAreFetched) {
  rpc::register_function("weight", [] {
    return Remote<at::Tensor>::own(
        std::make_shared<at::Tensor>(torch::arange(4)));
  });
  run_workers(2, [](const Group& group) {
    const auto weight =
        rpc::call<Remote<at::Tensor>>(worker_name(1 - group.rank()), "weight");
    EXPECT_TRUE(torch::equal(weight.fetch(), torch::arange(4)));
  });
}

// Holds go on over many leases.
TEST(RemoteProcesses, HoldersAreHeardOf) {
  once<register_counter>();
  run_workers(
      2,
      [](const Group& group) {
        if (group.rank() == 1) {
          return;
        }
        const auto counter = Remote<Counter>::create("worker1", 9);
        const auto here = Remote<Counter>::create("worker0", 8);
        std::this_thread::sleep_for(3s);
        EXPECT_EQ(counter.invoke<&Counter::value>(), 9);
        EXPECT_EQ(here.invoke<&Counter::value>(), 8);
      },
      {.rpc = {.lease = 900ms}});
}

TEST(RemoteProcesses, ObjectsOfADeadHolderEndWithTheLease) {
  once<register_counter>();
  static std::promise<void> seen;
  rpc::register_function("seen", [] { seen.set_value(); });
  WorkerOptions options;
  options.rpc.lease = 600ms;
  options.rpc.shutdown_timeout = 1s;
  options.ranks.may_die = {2};
  run_joined(
      3,
      [](const Group& group) {
        auto mine = group.rank() == 0 ? Remote<Counter>::create("worker1", 1)
                                      : Remote<Counter>();
        auto theirs = group.rank() == 2 ? Remote<Counter>::create("worker1", 2)
                                        : Remote<Counter>();
        group.barrier().wait();
        if (group.rank() == 2) {
          kill(getpid(), SIGKILL);
        }
        if (group.rank() == 0) {
          EXPECT_EQ(rpc::call<int>("worker1", "objects"), 2);
          wait_for_objects("worker1", 1);
          EXPECT_EQ(mine.invoke<&Counter::value>(), 1);
          rpc::call("worker1", "seen");
        } else {
          seen.get_future().wait();
        }
        EXPECT_ERROR(CommError, rpc::shutdown(), "is lost or has left");
      },
      options);
}

TEST(ObjectTable, HoldsKeepObjectsUntilReleasedOrExpired) {
  rpc::ObjectTable table;
  const rpc::ObjectTable::Clock::time_point start{};
  const auto value = std::make_shared<int>(1);
  const std::type_index type = typeid(int);
  const auto [object, own] = table.add({value, "int", type});
  table.retain(object, 17, start + 10s);
  table.retain(object, 17, start + 10s);  // once is enough
  table.release(own);
  table.release(own);
  EXPECT_TRUE(table.reap(start + 9s).empty());
  EXPECT_EQ(table.find(object, "int", type), value);
  EXPECT_ERROR(
      Error,
      table.find(object, "int", typeid(long)),
      "is a int, expected a int of another C++ type");
  table.renew({17, 18}, start + 20s);
  EXPECT_TRUE(table.reap(start + 19s).empty());
  table.extend(start + 30s);
  EXPECT_TRUE(table.reap(start + 29s).empty());
  EXPECT_EQ(table.reap(start + 30s).size(), 1u);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(value.use_count(), 1);
  EXPECT_ERROR(Error, table.find(object, "int", type), "is gone");
  EXPECT_ERROR(Error, table.retain(object, 19, start), "is gone");
}

}  // namespace
}  // namespace gradwire::test
