#include "gradwire/comm/roll_call.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/comm/group_impl.h"
#include "tests/support/no_threads.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

using test::run_threads;

std::string ask(RollCall& call) {
  std::promise<std::string> told;
  call.ask([&](const std::string& missing) { told.set_value(missing); });
  return told.get_future().get();
}

std::string text_of(const Future& failed) {
  try {
    failed.wait();
    return "no error";
  } catch (const CommError& e) {
    return e.what();
  }
}

TEST(RollCall, NamesThoseWhoDoNotAnswer) {
  run_threads(
      3,
      [](const Group& group) {
        RollCall call(group);
        switch (group.rank()) {
          case 0:
            EXPECT_EQ(ask(call), "rank 2 does not answer");
            break;
          case 1:
            call.answer();
            break;
        }
        group.barrier().wait();
      },
      {.timeout = std::chrono::seconds(4), .transport = "local"});
}

TEST(RollCall, NamesNobodyWhenAllAreHere) {
  run_threads(
      2,
      [](const Group& group) {
        RollCall call(group);
        EXPECT_EQ(ask(call), "");
        EXPECT_EQ(ask(call), "");
      },
      {.transport = "local"});
}

// Ranks may have had different numbers of collectives under way.
TEST(RollCall, FailuresOfOneLossAskOnce) {
  run_threads(
      2,
      [](const Group& group) {
        RollCall call(group);
        std::vector<Future> named;
        for (int i = 0; i < 3 - 2 * group.rank(); ++i) {
          named.push_back(call.named(
              Future::failed(std::make_exception_ptr(CommError("lost")))));
        }
        for (const auto& future : named) {
          EXPECT_EQ(text_of(future), "lost");
        }
        // Those that come later know already.
        EXPECT_EQ(text_of(call.named(named.front())), "lost");
      },
      {.timeout = std::chrono::seconds(4), .transport = "local"});
}

// Failures come from the threads of several collectives.
TEST(RollCall, EveryFailureHasANumberOfItsOwn) {
  run_threads(
      1,
      [](const Group& group) {
        constexpr int kThreads = 4;
        constexpr int kEach = 50;
        RollCall call(group);
        std::vector<std::thread> threads;
        for (int i = 0; i < kThreads; ++i) {
          threads.emplace_back([&] {
            for (int k = 0; k < kEach; ++k) {
              call.answer();
            }
          });
        }
        for (auto& thread : threads) {
          thread.join();
        }
        // Waits until the last of them is there, which none that shares a
        // number with another would be.
        std::vector<std::string> keys;
        for (int i = 0; i < kThreads * kEach; ++i) {
          keys.push_back(concat("here/", i, "/0"));
        }
        EXPECT_NO_THROW(group.impl().store->wait(keys));
      },
      {.timeout = std::chrono::seconds(10), .transport = "local"});
}

#ifdef GRADWIRE_TEST_NO_THREADS
TEST(RollCall, WithoutAThreadForItTheCallerWaits) {
  run_threads(
      1,
      [](const Group& group) {
        RollCall call(group);
        const test::NoThreads no_threads;
        call.answer();
        EXPECT_TRUE(group.impl().store->check({"here/0/0"}));
        EXPECT_EQ(ask(call), "");
      },
      {.transport = "local"});
}
#endif

}  // namespace
}  // namespace gradwire
