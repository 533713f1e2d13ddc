#pragma once

// The model of PyTorch's ddp_under_dist_autograd_test, with DDP inside: an
// embedding and a net on a remote worker, two linear layers on each trainer, of
// which DDP wraps the second. peer.py has the same one in Python.

#include <torch/torch.h>

#include <vector>

#include "gradwire/comm/group.h"
#include "gradwire/ddp/ddp.h"
#include "gradwire/rpc/remote_module.h"

namespace gradwire::apps {

constexpr int kTrainers = 4;
constexpr int kRemoteRank = 4;

struct RemoteEmImpl : torch::nn::Module {
  RemoteEmImpl();
  at::Tensor forward(const at::Tensor& ids);
  torch::nn::EmbeddingBag table;
};
TORCH_MODULE(RemoteEm);

struct RemoteNetImpl : torch::nn::Module {
  RemoteNetImpl();
  at::Tensor forward(const at::Tensor& x);
  torch::nn::Linear fc;
};
TORCH_MODULE(RemoteNet);

// The group of this process, when it is a trainer.
Group& trainers();

struct Examples {
  at::Tensor dense;
  at::Tensor sparse;
  at::Tensor values;
};

// A quarter of all examples for each trainer.
std::vector<Examples> examples_by_trainer();

// One trainer's half of the model.
class Trainer {
 public:
  using Em = rpc::RemoteModule<RemoteEm>;
  using Net = rpc::RemoteModule<RemoteNet>;

  Trainer(const Em& em, const Net& net);

  // One step under distributed autograd. Returns this trainer's own gradient of
  // its first layer, and that of the second, which DDP averages.
  std::vector<at::Tensor> step(
      const at::Tensor& dense,
      const at::Tensor& sparse,
      const at::Tensor& values);

 private:
  Em em_;
  Net net_;
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
  DistributedDataParallel<torch::nn::Linear> ddp_;
};

// Makes all of these available to calls of other workers.
void register_hybrid();

}  // namespace gradwire::apps
