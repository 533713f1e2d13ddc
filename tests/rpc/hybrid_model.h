#pragma once

// The model of PyTorch's ddp_under_dist_autograd_test: an embedding and a net
// on a remote worker, two linear layers on each trainer, with DDP around
// nothing, the second of them, or all that is local.

#include <torch/torch.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gradwire/ddp/ddp.h"
#include "gradwire/ddp/join.h"
#include "gradwire/rpc/context.h"
#include "gradwire/rpc/remote_module.h"

namespace gradwire::test {

constexpr int kEmbeddings = 2;
constexpr int kSparseDim = 3;
constexpr int kDenseDim = 2;
constexpr int kHidden = 3;
constexpr int kOut = 1;
constexpr int kTrainers = 4;
constexpr int kRemoteRank = 4;
constexpr int kMasterRank = 5;
constexpr int kWorld = 6;

enum class DdpMode { kNone, kOutside, kInside };

struct FeatureSet {
  at::Tensor dense;
  at::Tensor sparse;
  at::Tensor values;
};

// All ones but for the first.
inline torch::nn::Linear make_linear(int in, int out) {
  torch::nn::Linear linear(torch::nn::LinearOptions(in, out).bias(false));
  const torch::NoGradGuard no_grad;
  linear->weight.fill_(1);
  linear->weight[0][0] = -1;
  return linear;
}

struct RemoteEmImpl : torch::nn::Module {
  RemoteEmImpl()
      : table(register_module(
            "table",
            torch::nn::EmbeddingBag(
                torch::nn::EmbeddingBagOptions(kEmbeddings, kSparseDim)
                    .mode(torch::kMean)))) {
    const torch::NoGradGuard no_grad;
    table->weight.fill_(0.5);
  }
  at::Tensor forward(const at::Tensor& ids) {
    return table->forward(ids, torch::arange(ids.size(0)));
  }
  torch::nn::EmbeddingBag table;
};
TORCH_MODULE(RemoteEm);

struct RemoteNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return torch::relu(fc(x));
  }
  torch::nn::Linear fc =
      register_module("fc", make_linear(kDenseDim + kSparseDim, kHidden));
};
TORCH_MODULE(RemoteNet);

// Em and Net are remote modules, or local ones to compare with.
template <class Em, class Net>
struct HybridModel : torch::nn::Module {
  HybridModel(Em em, Net net) : em(std::move(em)), net(std::move(net)) {}

  at::Tensor forward(const FeatureSet& input) {
    const auto sparse = em(input.sparse);
    const auto dense = fc1(input.dense);
    TORCH_CHECK(sparse.size(0) == dense.size(0));
    const auto hidden = net(torch::cat({dense, sparse}, 1));
    return fc2_ddp ? (*fc2_ddp)->forward(hidden) : fc2(hidden);
  }

  Em em;
  Net net;
  torch::nn::Linear fc1 =
      register_module("fc1", make_linear(kDenseDim, kDenseDim));
  torch::nn::Linear fc2 = register_module("fc2", make_linear(kHidden, kOut));
  std::optional<DistributedDataParallel<torch::nn::Linear>> fc2_ddp;
};

// Two halves with the same features and opposite values, a quarter a trainer.
inline std::vector<FeatureSet> training_examples() {
  const int n = 16;
  FeatureSet all{
      torch::zeros({n, kDenseDim}),
      torch::zeros(n, torch::kLong),
      torch::zeros(n)};
  int at = 0;
  for (const double value : {-1.0, 1.0}) {
    for (const double x : {-value, value}) {
      for (const double y : {value, -value}) {
        for (const int z : {0, 1}) {
          all.dense[at][0] = x;
          all.dense[at][1] = y;
          all.sparse[at] = z;
          all.values[at] = value;
          ++at;
        }
      }
    }
  }
  std::vector<FeatureSet> parts;
  for (int i = 0; i < kTrainers; ++i) {
    const auto from = i * n / kTrainers;
    const auto to = (i + 1) * n / kTrainers;
    parts.push_back(
        {all.dense.slice(0, from, to),
         all.sparse.slice(0, from, to),
         all.values.slice(0, from, to)});
  }
  return parts;
}

// What trainer `index` is fed: one batch, or two halves of which the first half
// of the trainers gets only one.
inline std::vector<FeatureSet> batches_of(int index, bool uneven) {
  const auto examples = training_examples().at(index);
  if (!uneven) {
    return {examples};
  }
  std::vector<FeatureSet> result;
  for (int i = 0; i < (index < kTrainers / 2 ? 1 : 2); ++i) {
    result.push_back(
        {examples.dense.slice(0, 2 * i, 2 * i + 2),
         examples.sparse.slice(0, 2 * i, 2 * i + 2),
         examples.values.slice(0, 2 * i, 2 * i + 2)});
  }
  return result;
}

// With halves, the values of the whole batch are still multiplied with every
// half's output, as the reference does.
inline at::Tensor loss_of(const at::Tensor& output, int index) {
  const auto values = training_examples().at(index).values;
  return (output * values).sum();
}

// The group of this process, when it is a trainer.
inline Group& trainers() {
  static Group group;
  return group;
}

struct CallRemote {
  at::Tensor operator()(const at::Tensor& x) const {
    return std::visit(
        [&](const auto& module) { return module.forward(x); }, at);
  }
  std::variant<rpc::RemoteModule<RemoteEm>, rpc::RemoteModule<RemoteNet>> at;
};
using RemoteHybrid = HybridModel<CallRemote, CallRemote>;

using Gradients = std::vector<at::Tensor>;
// Of parameters that DDP averages, and of the others.
using TrainerGradients = std::pair<Gradients, Gradients>;

class Trainer {
 public:
  Trainer(
      const rpc::RemoteModule<RemoteEm>& em,
      const rpc::RemoteModule<RemoteNet>& net,
      int mode,
      const std::string& hook)
      : model_(std::make_shared<RemoteHybrid>(CallRemote{em}, CallRemote{net})),
        mode_(static_cast<DdpMode>(mode)) {
    if (mode_ == DdpMode::kInside) {
      model_->fc2_ddp.emplace(
          model_->fc2,
          trainers(),
          DistributedDataParallelOptions{.hook = hook});
    }
    if (mode_ == DdpMode::kOutside) {
      outside_.emplace(
          model_, trainers(), DistributedDataParallelOptions{.hook = hook});
    }
  }

  // The gradients of the last batch.
  TrainerGradients train(int index, bool uneven) {
    TrainerGradients result;
    std::optional<Join> join;
    if (uneven && outside_) {
      join.emplace(*outside_);
    } else if (uneven && model_->fc2_ddp) {
      join.emplace(*model_->fc2_ddp);
    }
    for (const auto& batch : batches_of(index, uneven)) {
      const autograd::Context context;
      const auto output =
          outside_ ? (*outside_)->forward(batch) : model_->forward(batch);
      autograd::backward(context, {loss_of(output, index)});
      result = split(autograd::gradients(context));
    }
    if (join) {
      join->finish();
    }
    return result;
  }

 private:
  TrainerGradients split(const autograd::Gradients& all) const {
    TrainerGradients result;
    for (const auto& linear : {model_->fc1, model_->fc2}) {
      const bool averaged =
          mode_ == DdpMode::kOutside ||
          (mode_ == DdpMode::kInside && linear.get() == model_->fc2.get());
      (averaged ? result.first : result.second)
          .push_back(all.of(linear->weight));
    }
    return result;
  }

  std::shared_ptr<RemoteHybrid> model_;
  DdpMode mode_;
  std::optional<DistributedDataParallel<std::shared_ptr<RemoteHybrid>>>
      outside_;
};

inline void register_hybrid() {
  rpc::register_module<RemoteEm>("RemoteEM");
  rpc::register_module<RemoteNet>("RemoteNet");
  rpc::register_class<Trainer>("Trainer")
      .constructor<
          rpc::RemoteModule<RemoteEm>,
          rpc::RemoteModule<RemoteNet>,
          int,
          std::string>()
      .method<&Trainer::train>("train");
}

}  // namespace gradwire::test
