// PyTorch's test of DDP under distributed autograd, in C++: four trainers, a
// remote worker and a master, six processes.

#include <gtest/gtest.h>

#include "tests/rpc/hybrid_model.h"
#include "tests/rpc/workers.h"

namespace gradwire::test {
namespace {

using rpc::Remote;
using rpc::RemoteModule;

using LocalHybrid = HybridModel<RemoteEm, RemoteNet>;

// Gradients of fc1 and fc2 of a trainer's last batch, in one process.
std::vector<Gradients> single_process_gradients(bool uneven) {
  std::vector<Gradients> result(kTrainers);
  for (int index = 0; index < kTrainers; ++index) {
    for (const auto& batch : batches_of(index, uneven)) {
      LocalHybrid model{RemoteEm(), RemoteNet()};
      loss_of(model.forward(batch), index).backward();
      result[index].push_back(model.fc1->weight.grad());
      result[index].push_back(model.fc2->weight.grad());
    }
  }
  return result;
}

// Layer 0 or 1 in the round of trainer `index`'s last batch: its own gradient
// or, averaged, what all trainers with input in that round give.
at::Tensor expected_gradient(int index, int layer, bool averaged, bool uneven) {
  const auto all = single_process_gradients(uneven);
  const std::size_t round = all[index].size() / 2 - 1;
  if (!averaged) {
    return all[index][2 * round + layer];
  }
  at::Tensor sum = torch::zeros_like(all[index][layer]);
  for (const auto& each : all) {
    if (2 * round + layer < each.size()) {
      sum += each[2 * round + layer];
    }
  }
  return sum / kTrainers;
}

void expect_gradients(
    int index,
    const TrainerGradients& got,
    DdpMode mode,
    bool uneven,
    double tolerance) {
  std::size_t averaged_at = 0;
  std::size_t own_at = 0;
  for (int layer = 0; layer < 2; ++layer) {
    const bool averaged =
        mode == DdpMode::kOutside || (mode == DdpMode::kInside && layer == 1);
    const auto gradient =
        averaged ? got.first.at(averaged_at++) : got.second.at(own_at++);
    const auto expected = expected_gradient(index, layer, averaged, uneven);
    EXPECT_TRUE(
        torch::allclose(gradient, expected, 1e-5, averaged ? tolerance : 1e-6))
        << "trainer " << index << ", layer " << layer << ", got " << gradient
        << ", expected " << expected;
    if (!uneven && averaged) {
      // They cancel over the trainers.
      EXPECT_TRUE(torch::allclose(
          gradient, torch::zeros_like(gradient), 1e-5, tolerance + 1e-8))
          << gradient;
    }
    if (!uneven && !averaged) {
      EXPECT_GT(gradient.abs().max().item<double>(), 0);
    }
  }
}

void run_master(DdpMode mode, bool uneven, const std::string& hook) {
  const RemoteModule<RemoteEm> em(concat("rank:", kRemoteRank, "/cpu"));
  const RemoteModule<RemoteNet> net(worker_name(kRemoteRank));
  std::vector<rpc::Reply<Remote<Trainer>>> making;
  for (int i = 0; i < kTrainers; ++i) {
    making.push_back(Remote<Trainer>::create_async(
        worker_name(i), em, net, static_cast<int>(mode), hook));
  }
  std::vector<Remote<Trainer>> remote;
  for (const auto& each : making) {
    remote.push_back(each.wait());
  }
  // What one step of 127 can be off, of gradients up to 12.
  const double tolerance = hook == "int8" ? 12.0 / 127 : 1e-6;
  for (int round = 0; round < 3; ++round) {
    std::vector<rpc::Reply<TrainerGradients>> replies;
    for (int i = 0; i < kTrainers; ++i) {
      replies.push_back(remote[i].invoke_async<&Trainer::train>(i, uneven));
    }
    for (int i = 0; i < kTrainers; ++i) {
      expect_gradients(i, replies[i].wait(), mode, uneven, tolerance);
    }
  }
}

class DdpUnderDistAutogradProcesses
    : public testing::TestWithParam<std::string> {
 protected:
  void run(DdpMode mode, bool uneven) {
    once<register_hybrid>();
    run_workers(kWorld, [&](const Group& group) {
      trainers() = group.subgroup({0, 1, 2, 3});
      group.barrier().wait();
      if (group.rank() == kMasterRank) {
        run_master(mode, uneven, GetParam());
      }
      group.barrier().wait();
      trainers() = Group();
    });
  }
};

TEST_P(DdpUnderDistAutogradProcesses, BackwardDdpOutside) {
  run(DdpMode::kOutside, false);
}
TEST_P(DdpUnderDistAutogradProcesses, BackwardDdpOutsideUnevenInputs) {
  run(DdpMode::kOutside, true);
}
TEST_P(DdpUnderDistAutogradProcesses, BackwardDdpInside) {
  run(DdpMode::kInside, false);
}
TEST_P(DdpUnderDistAutogradProcesses, BackwardDdpInsideUnevenInputs) {
  run(DdpMode::kInside, true);
}

INSTANTIATE_TEST_SUITE_P(
    Hooks,
    DdpUnderDistAutogradProcesses,
    testing::Values("none", "int8", "powersgd:rank=1,start=0,ef=off"),
    [](const auto& info) {
      return info.param.substr(0, info.param.find(':'));
    });

class WithoutDdpProcesses : public DdpUnderDistAutogradProcesses {};
TEST_P(WithoutDdpProcesses, BackwardNoDdp) {
  run(DdpMode::kNone, false);
}
INSTANTIATE_TEST_SUITE_P(
    DdpUnderDistAutograd, WithoutDdpProcesses, testing::Values("none"));

}  // namespace
}  // namespace gradwire::test
