#include "gradwire/rpc/handler_threads.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/rpc/request_callback.h>
#include <torch/csrc/distributed/rpc/script_call.h>

#include <future>
#include <system_error>

#include "gradwire/rpc/answer.h"
#include "gradwire/rpc/callback.h"
#include "gradwire/rpc/messages.h"
#include "gradwire/rpc/rpc.h"
#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

namespace torch_rpc = torch::distributed::rpc;
using rpc::HandlerThreads;
using Kind = HandlerThreads::Kind;

[[noreturn]] void start_none(const std::function<void()>&) {
  throw std::system_error(
      std::make_error_code(std::errc::resource_unavailable_try_again));
}

// Not for a thread that comes later, either.
TEST(RpcHandlerThreads, AJobWithoutAThreadIsGone) {
  bool full = true;
  HandlerThreads threads([&](const std::function<void()>& work) {
    if (full) {
      start_none(work);
    }
    std::thread(work).detach();
  });
  bool ran = false;
  EXPECT_ERROR(
      Error,
      threads.run(Kind::kWork, [&] { ran = true; }),
      "[gradwire.rpc] no thread can be started for a handler");
  EXPECT_EQ(threads.working(), 0u);
  full = false;
  std::promise<void> done;
  threads.run(Kind::kWork, [&] { done.set_value(); });
  done.get_future().wait();
  EXPECT_TRUE(threads.stop(std::chrono::steady_clock::time_point::max()));
  EXPECT_FALSE(ran);
}

// Its end may need the threads, too.
TEST(RpcHandlerThreads, WhatAJobHoldsEndsOutsideOfTheLock) {
  HandlerThreads threads(start_none);
  std::shared_ptr<void> held(nullptr, [&](void*) { threads.working(); });
  EXPECT_ERROR(
      Error,
      threads.run(Kind::kUpkeep, [kept = std::move(held)] {}),
      "no thread can be started");
}

TEST(RpcHandlerThreads, ACallerIsToldThatThereIsNoThread) {
  const auto callback =
      rpc::make_callback(std::make_shared<HandlerThreads>(start_none));
  auto call =
      torch_rpc::ScriptCall(c10::QualifiedName("anything"), {}).toMessage();
  call->setId(17);
  const auto future = (*callback)(*call, {});
  future->wait();
  ASSERT_FALSE(future->hasError());
  const auto answer = future->value().toCustomClass<torch_rpc::Message>();
  EXPECT_EQ(answer->id(), 17);
  EXPECT_ERROR(
      rpc::RemoteError,
      rpc::result_of(rpc::read_response(*answer), "the call failed"),
      "the call failed: [gradwire.rpc] no thread can be started");
}

}  // namespace
}  // namespace gradwire::test
