#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/rpc/rpc.h"
#include "tests/rpc/workers.h"
#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

using Table = std::map<std::string, at::Tensor>;
using Everything = std::tuple<
    at::Tensor,
    std::int64_t,
    int,
    double,
    bool,
    std::string,
    std::vector<at::Tensor>,
    std::vector<std::string>,
    Table,
    std::unordered_map<std::int64_t, double>,
    std::pair<int, std::string>,
    std::optional<at::Tensor>,
    std::optional<int>>;

Everything sample() {
  return {
      torch::arange(6).view({2, 3}),
      std::int64_t{1} << 60,
      -7,
      0.1,
      true,
      std::string("nul\0 and ü", 10),
      {torch::ones(2), torch::zeros({0, 3})},
      {},
      {{"a", torch::eye(2)}, {"b", torch::tensor(3)}},
      {{-1, 0.5}, {2, 1e300}},
      {3, "three"},
      std::nullopt,
      4};
}

TEST(RpcProcesses, KindsOfValuesComeBackAsTheyWent) {
  rpc::register_function("echo", [](const Everything& all) { return all; });
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    const auto sent = sample();
    const auto got = rpc::call<Everything>("worker1", "echo", sent);
    EXPECT_TRUE(torch::equal(std::get<0>(got), std::get<0>(sent)));
    EXPECT_EQ(std::get<1>(got), std::get<1>(sent));
    EXPECT_EQ(std::get<2>(got), std::get<2>(sent));
    EXPECT_EQ(std::get<3>(got), std::get<3>(sent));
    EXPECT_EQ(std::get<4>(got), std::get<4>(sent));
    EXPECT_EQ(std::get<5>(got), std::get<5>(sent));
    ASSERT_EQ(std::get<6>(got).size(), 2u);
    EXPECT_TRUE(torch::equal(std::get<6>(got)[0], std::get<6>(sent)[0]));
    EXPECT_EQ(std::get<6>(got)[1].sizes(), std::get<6>(sent)[1].sizes());
    EXPECT_TRUE(std::get<7>(got).empty());
    EXPECT_TRUE(torch::equal(std::get<8>(got).at("b"), torch::tensor(3)));
    EXPECT_EQ(std::get<9>(got), std::get<9>(sent));
    EXPECT_EQ(std::get<10>(got), std::get<10>(sent));
    EXPECT_FALSE(std::get<11>(got).has_value());
    EXPECT_EQ(std::get<12>(got), 4);
  });
}

TEST(RpcProcesses, SparseTensorsAndViewsTravel) {
  rpc::register_function("twice", [](const at::Tensor& t) { return t * 2; });
  run_workers(2, [](const Group& group) {
    const auto other = worker_name(1 - group.rank());
    const auto view = torch::arange(100.0).view({10, 10}).t().slice(0, 2, 4);
    EXPECT_TRUE(
        torch::equal(rpc::call<at::Tensor>(other, "twice", view), view * 2));
    const auto sparse = torch::eye(3).to_sparse();
    const auto got = rpc::call<at::Tensor>(other, "twice", sparse);
    EXPECT_TRUE(got.is_sparse());
    EXPECT_TRUE(torch::equal(got.to_dense(), torch::eye(3) * 2));
  });
}

TEST(RpcProcesses, CallsOfAWorkerToItselfWork) {
  rpc::register_function("add", [](int a, int b) { return a + b; });
  run_workers(2, [](const Group& group) {
    EXPECT_EQ(rpc::call<int>(worker_name(group.rank()), "add", 2, 3), 5);
    EXPECT_EQ(rpc::self().id, group.rank());
    EXPECT_EQ(rpc::workers().at(1).name, "worker1");
  });
}

TEST(RpcProcesses, NotifyArrives) {
  static std::atomic<int> heard = 0;
  rpc::register_function("hear", [](int what) { heard += what; });
  run_workers(2, [](const Group& group) {
    rpc::notify(worker_name(1 - group.rank()), "hear", 5);
    // What is under way when workers shut down is finished first.
    group.barrier().wait();
    rpc::shutdown();
    EXPECT_EQ(heard, 5);
    init_worker(group);
  });
}

// Each call at depth d calls the other worker at depth d - 1.
TEST(RpcProcesses, NestedCallsDoNotBlockTheAgent) {
  rpc::register_function("nest", [](int depth) {
    const auto other = worker_name(1 - rpc::self().id);
    return depth == 0 ? 0 : 1 + rpc::call<int>(other, "nest", depth - 1);
  });
  WorkerOptions options;
  options.rpc.agent_threads = 2;
  run_workers(
      2,
      [](const Group& group) {
        std::vector<rpc::Reply<int>> replies;
        for (int i = 0; i < 64; ++i) {
          replies.push_back(
              rpc::call_async<int>(worker_name(1 - group.rank()), "nest", 4));
        }
        for (const auto& reply : replies) {
          EXPECT_EQ(reply.wait(), 4);
        }
      },
      options);
}

TEST(RpcProcesses, MistakesAreErrorsAtTheCaller) {
  rpc::register_function(
      "scale", [](const at::Tensor& t, double by) { return t * by; });
  rpc::register_function(
      "throws", []() -> int { throw std::runtime_error("no luck today"); });
  rpc::register_function(
      "throws_torch", [](const at::Tensor& t) { return t.reshape({7}); });
  run_workers(2, [](const Group& group) {
    if (group.rank() == 1) {
      return;
    }
    const auto t = torch::ones(3);
    EXPECT_ERROR(
        Error,
        rpc::call("worker7", "scale", t, 2.0),
        "[gradwire.rpc] there is no worker 'worker7', expected one of worker0, "
        "worker1");
    EXPECT_ERROR(
        rpc::RemoteError,
        rpc::call("worker1", "scald", t, 2.0),
        "'scald' on worker 'worker1' failed: [gradwire.rpc] there is no "
        "function 'scald'; registered there: ");
    EXPECT_ERROR(
        rpc::RemoteError,
        rpc::call<at::Tensor>("worker1", "scale", t),
        "'scale' is (Tensor, float) -> Tensor, but was called as (Tensor) -> "
        "Tensor");
    EXPECT_ERROR(
        rpc::RemoteError,
        rpc::call<at::Tensor>("worker1", "scale", t, 2),
        "but was called as (Tensor, int) -> Tensor");
    EXPECT_ERROR(
        rpc::RemoteError,
        rpc::call<int>("worker1", "throws"),
        "'throws' on worker 'worker1' failed: no luck today");
    EXPECT_ERROR(
        rpc::RemoteError,
        rpc::call<at::Tensor>("worker1", "throws_torch", t),
        "shape '[7]' is invalid for input of size 3");
    EXPECT_ERROR(
        Error,
        rpc::call<at::Tensor>("worker1", "scale", at::Tensor(), 1.0),
        "an undefined tensor cannot be sent");
    EXPECT_ERROR(
        Error,
        rpc::call<at::Tensor>(
            "worker1", "scale", torch::eye(2).to_sparse_csr(), 1.0),
        "a tensor of layout SparseCsr cannot be sent");
    EXPECT_TRUE(
        torch::equal(rpc::call<at::Tensor>("worker1", "scale", t, 2.0), t * 2));
  });
}

TEST(Rpc, NamesAndStateAreChecked) {
  EXPECT_ERROR(
      Error,
      rpc::call("worker1", "f"),
      "this process is no worker: call gradwire::rpc::init() first");
  EXPECT_ERROR(Error, rpc::shutdown(), "this process is no worker");
  for (const char* name : {"", "a b", ".a", "a.", "a..b", "gradwire.ping"}) {
    EXPECT_ERROR(
        Error,
        rpc::register_function(name, [] {}),
        concat("a function cannot be called '", name, "'"));
  }
  rpc::register_function("taken", [] {});
  EXPECT_ERROR(
      Error,
      rpc::register_function("taken", [] {}),
      "a function 'taken' is registered already");
}

TEST(RpcProcesses, BadInitIsAnErrorOnEveryRank) {
  run_processes(2, [](const Group& group) {
    EXPECT_ERROR(
        Error,
        rpc::init("same", group),
        "ranks 0 and 1 both want to be worker 'same'");
    EXPECT_ERROR(
        Error,
        rpc::init("two words", group),
        "a worker cannot be called 'two words'");
    EXPECT_ERROR(
        Error,
        rpc::init("w", group, {.interface = "eth77"}),
        "there is no interface 'eth77' with an address on this machine");
    EXPECT_ERROR(
        Error,
        rpc::init("w", group, {.lease = std::chrono::seconds(0)}),
        "lease is 0 ms, expected more than 0");
    EXPECT_ERROR(
        Error,
        rpc::init("w", group, {.liveness = std::chrono::milliseconds(5)}),
        "liveness is 5 ms, expected at least 100 and at most 1728000000");
    EXPECT_ERROR(
        Error,
        rpc::init("w", group, {.timeout = std::chrono::milliseconds::max()}),
        "ms, expected more than 0 and at most 1728000000");
    EXPECT_ERROR(
        Error,
        rpc::init(
            worker_name(group.rank()),
            group,
            {.lease = std::chrono::seconds(5 + group.rank())}),
        "ranks do not agree on rpc::init: lease in ms is '5000' on rank 0 but "
        "'6000' on rank 1");
    // What is wrong on one rank is told on all.
    EXPECT_ERROR(
        Error,
        rpc::init(group.rank() == 0 ? "fine" : "not fine", group),
        "a worker cannot be called 'not fine'");
    init_worker(group);
    EXPECT_ERROR(
        Error,
        rpc::init("again", group),
        "this process is a worker already, expected shutdown() first");
    rpc::shutdown();
  });
}

}  // namespace
}  // namespace gradwire::test
