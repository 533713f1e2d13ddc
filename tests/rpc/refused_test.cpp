// What a worker does not do for others, sent as a program would that is not
// ours: through Torch's agent.

#include <gtest/gtest.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_profiling_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rref_backward_req.h>
#include <torch/csrc/distributed/rpc/python_call.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>
#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/torch.h>

#include "gradwire/rpc/local_optimizer.h"
#include "gradwire/rpc/rpc.h"
#include "tests/rpc/workers.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/hostile_archive.h"

namespace gradwire::test {
namespace {

namespace torch_rpc = torch::distributed::rpc;
namespace torch_autograd = torch::distributed::autograd;
using MessagePtr = c10::intrusive_ptr<torch_rpc::Message>;

// What worker 1 answers.
std::string answer_to(MessagePtr message) {
  const auto agent = torch_rpc::RpcAgent::getCurrentRpcAgent();
  const auto future = agent->send(
      agent->getWorkerInfo("worker1"), std::move(message), /*timeout=*/10);
  future->wait();
  return future->hasError() ? future->tryRetrieveErrorMessage() : "done";
}

MessagePtr in_autograd_message(MessagePtr message) {
  return torch_autograd::RpcWithAutograd(
             /*fromWorkerId=*/0,
             torch_rpc::MessageType::FORWARD_AUTOGRAD_REQ,
             torch_autograd::AutogradMetadata(/*context=*/1, /*message=*/1),
             std::move(message))
      .toMessage();
}

std::shared_ptr<torch::jit::Operator> find_operator(const char* name) {
  return torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name))
      .front();
}

// The operator opens a file by name.
MessagePtr operator_call(const std::string& path) {
  std::vector<c10::IValue> arguments{
      path,
      false,
      4,
      at::ScalarType::Float,
      c10::IValue(),
      c10::IValue(),
      false};
  return torch_rpc::ScriptCall(
             find_operator("aten::from_file"), std::move(arguments))
      .toMessage();
}

void expect_refused(const std::function<void()>& send_all) {
  run_workers(2, [&](const Group& group) {
    if (group.rank() == 0) {
      send_all();
    }
  });
}

void expect_refused_both_ways(const std::function<MessagePtr()>& make) {
  expect_refused([&] {
    for (const bool wrapped : {false, true}) {
      const auto text =
          answer_to(wrapped ? in_autograd_message(make()) : make());
      EXPECT_NE(
          text.find("refused: only registered functions can be called"),
          std::string::npos)
          << (wrapped ? "wrapped: " : "plain: ") << text;
    }
  });
}

TEST(RefusedProcesses, Operators) {
  expect_refused_both_ways([] { return operator_call("/etc/hostname"); });
}

TEST(RefusedProcesses, ScriptRemoteCalls) {
  expect_refused_both_ways([] {
    return torch_rpc::ScriptRemoteCall(
               find_operator("aten::neg"),
               {torch::ones(1)},
               torch_rpc::RRefId(0, 1),
               torch_rpc::ForkId(0, 2))
        .toMessage();
  });
}

TEST(RefusedProcesses, PythonCalls) {
  expect_refused_both_ways([] {
    return torch_rpc::PythonCall(
               torch_rpc::SerializedPyObj("payload", {}),
               /*isAsyncExecution=*/false)
        .toMessage();
  });
}

TEST(RefusedProcesses, References) {
  expect_refused_both_ways([] {
    return torch_rpc::RRefUserDelete(
               torch_rpc::RRefId(1, 1), torch_rpc::ForkId(1, 2))
        .toMessage();
  });
}

TEST(RefusedProcesses, ReferenceFetches) {
  expect_refused_both_ways([] {
    return torch_rpc::ScriptRRefFetchCall(0, torch_rpc::RRefId(1, 1))
        .toMessage();
  });
}

TEST(RefusedProcesses, ReferenceBackward) {
  expect_refused_both_ways([] {
    return torch_autograd::RRefBackwardReq(torch_rpc::RRefId(1, 1), 1, false)
        .toMessage();
  });
}

TEST(RefusedProcesses, Profiling) {
  expect_refused_both_ways([] {
    return torch_autograd::RpcWithProfilingReq(
               torch_rpc::MessageType::RUN_WITH_PROFILING_REQ,
               operator_call("/etc/hostname"),
               torch::autograd::profiler::ProfilerConfig(
                   torch::autograd::profiler::ProfilerState::CPU),
               torch_rpc::ProfilingId(0, 1))
        .toMessage();
  });
}

// An autograd message in an autograd message.
TEST(RefusedProcesses, WrappingTwice) {
  expect_refused([] {
    const auto text = answer_to(
        in_autograd_message(in_autograd_message(operator_call("/etc/hosts"))));
    EXPECT_NE(text.find("refused"), std::string::npos) << text;
  });
}

TEST(RefusedProcesses, ScriptsByName) {
  expect_refused([] {
    const auto text = answer_to(
        torch_rpc::ScriptCall(
            c10::QualifiedName("__torch__.some_function"), {torch::ones(1)})
            .toMessage());
    EXPECT_EQ(text, "done");  // an answer that says there is no such function
    EXPECT_THROW(
        rpc::call("worker1", "__torch__.some_function", torch::ones(1)),
        rpc::RemoteError);
  });
}

// Calls of our own shape with arguments that are not what the signature says.
TEST(RefusedProcesses, ArgumentsThatLie) {
  rpc::register_function("half", [](int n, const std::vector<int>& list) {
    return n / 2 + static_cast<int>(list.size());
  });
  expect_refused([] {
    const auto send = [](std::vector<c10::IValue> arguments) {
      const auto agent = torch_rpc::RpcAgent::getCurrentRpcAgent();
      const auto future = agent->send(
          agent->getWorkerInfo("worker1"),
          torch_rpc::ScriptCall(
              c10::QualifiedName("half"), std::move(arguments))
              .toMessage());
      const rpc::detail::RawReply reply(
          future, {"half", "worker1", "worker0", std::chrono::seconds(1)});
      try {
        return concat(reply.read().toInt());
      } catch (const rpc::RemoteError& e) {
        return std::string(e.what());
      }
    };
    const std::string types = "(int, list<int>) -> int";
    const auto list = rpc::Wire<std::vector<int>>::pack({1, 2});
    EXPECT_EQ(send({types, 4, list}), "4");
    EXPECT_NE(send({}).find("came without its signature"), std::string::npos);
    EXPECT_NE(send({4, list}).find("without its signature"), std::string::npos);
    EXPECT_NE(send({types}).find("got 0 arguments"), std::string::npos);
    EXPECT_NE(
        send({types, 4, list, 4}).find("got 3 arguments, expected 2"),
        std::string::npos);
    EXPECT_NE(
        send({types, 4.0, list}).find("of kind Double, expected int"),
        std::string::npos);
    EXPECT_NE(
        send({types, std::int64_t{1} << 40, list}).find("expected int"),
        std::string::npos);
    EXPECT_NE(
        send({types, 4, 4}).find("of kind Int, expected list<int>"),
        std::string::npos);
  });
}

// A call whose payload somebody wrote by hand.
MessagePtr written_call(const std::string& payload) {
  return c10::make_intrusive<torch_rpc::Message>(
      std::vector<char>(payload.begin(), payload.end()),
      std::vector<at::Tensor>(),
      torch_rpc::MessageType::SCRIPT_CALL);
}

TEST(RefusedProcesses, OptionsThatAreAnArchive) {
  const TemporaryFolder folder;
  const std::string file = folder / "made";
  expect_refused([&] {
    EXPECT_THROW(
        rpc::Remote<rpc::LocalOptimizer>::create(
            "worker1",
            "SGD",
            archive_that_makes(file),
            std::vector<rpc::Remote<at::Tensor>>()),
        rpc::RemoteError);
    EXPECT_FALSE(std::filesystem::exists(file));
  });
}

// Tuples in tuples: what reads or frees them by recursion runs out of stack.
TEST(RefusedProcesses, DeepNesting) {
  expect_refused([] {
    const auto text = answer_to(
        written_call("\x80\x02N" + std::string(3'000'000, '\x85') + "."));
    EXPECT_NE(text.find("nested"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace gradwire::test
