#include "apps/gradwire/bench/rpc/hybrid_model.h"

#include "gradwire/rpc/context.h"

namespace gradwire::apps {
namespace {

constexpr int kEmbeddings = 2;
constexpr int kSparseDim = 3;
constexpr int kDenseDim = 2;
constexpr int kHidden = 3;
constexpr int kOut = 1;
constexpr int kExamples = 16;

// All ones but for the first.
torch::nn::Linear make_linear(int in, int out) {
  torch::nn::Linear linear(torch::nn::LinearOptions(in, out).bias(false));
  const torch::NoGradGuard no_grad;
  linear->weight.fill_(1);
  linear->weight[0][0] = -1;
  return linear;
}

// Two halves with the same features and opposite values.
Examples all_examples() {
  Examples all{
      torch::zeros({kExamples, kDenseDim}),
      torch::zeros(kExamples, torch::kLong),
      torch::zeros(kExamples)};
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
  return all;
}

}  // namespace

RemoteEmImpl::RemoteEmImpl()
    : table(register_module(
          "table",
          torch::nn::EmbeddingBag(
              torch::nn::EmbeddingBagOptions(kEmbeddings, kSparseDim)
                  .mode(torch::kMean)))) {
  const torch::NoGradGuard no_grad;
  table->weight.fill_(0.5);
}

at::Tensor RemoteEmImpl::forward(const at::Tensor& ids) {
  return table->forward(ids, torch::arange(ids.size(0)));
}

RemoteNetImpl::RemoteNetImpl()
    : fc(register_module("fc", make_linear(kDenseDim + kSparseDim, kHidden))) {}

at::Tensor RemoteNetImpl::forward(const at::Tensor& x) {
  return torch::relu(fc(x));
}

Group& trainers() {
  static Group group;
  return group;
}

std::vector<Examples> examples_by_trainer() {
  const auto all = all_examples();
  std::vector<Examples> parts;
  for (int i = 0; i < kTrainers; ++i) {
    const auto part = [&](const at::Tensor& whole) {
      constexpr int kShare = kExamples / kTrainers;
      return whole.slice(0, i * kShare, (i + 1) * kShare).clone();
    };
    parts.push_back({part(all.dense), part(all.sparse), part(all.values)});
  }
  return parts;
}

Trainer::Trainer(const Em& em, const Net& net)
    : em_(em),
      net_(net),
      fc1_(make_linear(kDenseDim, kDenseDim)),
      fc2_(make_linear(kHidden, kOut)),
      ddp_(fc2_, trainers(), DistributedDataParallelOptions{.hook = "none"}) {}

std::vector<at::Tensor> Trainer::step(
    const at::Tensor& dense,
    const at::Tensor& sparse,
    const at::Tensor& values) {
  const autograd::Context context;
  const auto rows = em_.forward(sparse);
  const auto hidden = net_.forward(torch::cat({fc1_(dense), rows}, 1));
  autograd::backward(context, {(ddp_->forward(hidden) * values).sum()});
  const auto gradients = autograd::gradients(context);
  return {gradients.of(fc1_->weight), gradients.of(fc2_->weight)};
}

void register_hybrid() {
  rpc::register_module<RemoteEm>("RemoteEM");
  rpc::register_module<RemoteNet>("RemoteNet");
  rpc::register_class<Trainer>("Trainer")
      .constructor<Trainer::Em, Trainer::Net>()
      .method<&Trainer::step>("step");
}

}  // namespace gradwire::apps
