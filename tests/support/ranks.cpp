#include "tests/support/ranks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <filesystem>
#include <iostream>
#include <thread>

#include "gradwire/base/env.h"
#include "gradwire/base/text.h"
#include "gradwire/comm/group_impl.h"
#include "tests/support/fork_ranks.h"

namespace gradwire::test {
namespace {

constexpr const char* kRank = "GRADWIRE_TEST_RANK";
constexpr const char* kWorld = "GRADWIRE_TEST_WORLD";
constexpr const char* kCall = "GRADWIRE_TEST_CALL";
constexpr const char* kFile = "GRADWIRE_TEST_FILE";
constexpr const char* kBodyDone = "the body of this rank has run";

GroupOptions group_options(const RankOptions& options) {
  return {
      .name = "world",
      .timeout = options.timeout,
      .transport = options.transport,
      .address = "127.0.0.1"};
}

// What the body threw, "" if nothing.
std::string run_rank(
    const StorePtr& store,
    int rank,
    int world,
    const Body& body,
    const RankOptions& options) {
  const testing::ScopedTrace trace(
      __FILE__, __LINE__, concat("rank ", rank, " of ", world));
  try {
    const Group group = make_group(store, rank, world, group_options(options));
    // A rank that fails at once must not find others that still connect.
    group.barrier().wait();
    body(group);
    return "";
  } catch (const std::exception& e) {
    return concat("rank ", rank, ": ", e.what());
  } catch (...) {
    return concat("rank ", rank, ": unknown exception");
  }
}

std::string running_test() {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  return concat(info->test_suite_name(), ".", info->name());
}

// This process is a rank: do its part and leave.
[[noreturn]] void be_rank(
    int rank, const Body& body, const RankOptions& options) {
  const Environment environment = process_environment();
  const auto world = static_cast<int>(*integer_variable(environment, kWorld));
  std::string failure;
  {
    auto store =
        c10::make_intrusive<c10d::FileStore>(*environment(kFile), world);
    store->setTimeout(options.timeout);
    failure = run_rank(store, rank, world, body, options);
  }
  // The parent wants to see that the body ran and did not just return early.
  (failure.empty() ? std::cout << kBodyDone : std::cerr << failure)
      << std::endl;
  std::exit(failure.empty() && !testing::Test::HasFailure() ? 0 : 1);
}

}  // namespace

void run_threads(int n, const Body& body, const RankOptions& options) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(options.timeout);
  std::vector<std::string> failures(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      failures[static_cast<std::size_t>(rank)] =
          run_rank(store, rank, n, body, options);
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& failure : failures) {
    if (!failure.empty()) {
      ADD_FAILURE() << failure;
    }
  }
}

void run_processes(int n, const Body& body, const RankOptions& options) {
  // Several calls in one test are told apart by their number.
  static std::string counted_test;
  static long call = 0;
  call = counted_test == running_test() ? call + 1 : 0;
  counted_test = running_test();
  const Environment environment = process_environment();
  if (const auto rank = integer_variable(environment, kRank)) {
    if (integer_variable(environment, kCall) == call) {
      be_rank(static_cast<int>(*rank), body, options);
    }
    return;
  }
  const auto file = std::filesystem::temp_directory_path() /
                    concat("gradwire-test-", getpid(), "-", call);
  const auto result = fork_ranks(
      {.n = n,
       .test = running_test(),
       .environment =
           {{kWorld, concat(n)}, {kCall, concat(call)}, {kFile, file.string()}},
       .rank_variable = kRank,
       .deadline = 2 * options.timeout + std::chrono::seconds(20),
       .end_others_on_failure = options.may_die.empty()});
  std::filesystem::remove(file);
  for (const auto& exit : result.ranks) {
    const auto& output = result.output[static_cast<std::size_t>(exit.rank)];
    const bool expected =
        std::ranges::find(options.may_die, exit.rank) != options.may_die.end();
    const bool ended = exit.told_to_end && !result.deadline_passed;
    const bool ran = output.find(kBodyDone) != std::string::npos;
    if ((!exit.ok() || !ran) && !expected && !ended) {
      ADD_FAILURE() << to_string(exit)
                    << (result.deadline_passed ? " when time was up" : "")
                    << "\n"
                    << output;
    }
  }
}

}  // namespace gradwire::test
