#include "gradwire/ddp/model.h"

#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <set>

#include "gradwire/base/error.h"
#include "gradwire/comm/transports.h"

namespace gradwire {
namespace {

using Names = std::vector<std::string>;

bool contains(const Names& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// The weights of embeddings whose gradients are sparse, by tensor identity.
std::set<const void*> sparse_weights(const torch::nn::Module& module) {
  std::set<const void*> weights;
  const auto add = [&](const auto* embedding) {
    if (embedding != nullptr && embedding->options.sparse()) {
      weights.insert(embedding->weight.unsafeGetTensorImpl());
    }
  };
  for (const auto& part : module.modules(/*include_self=*/false)) {
    add(part->as<torch::nn::EmbeddingImpl>());
    add(part->as<torch::nn::EmbeddingBagImpl>());
  }
  add(module.as<torch::nn::EmbeddingImpl>());
  add(module.as<torch::nn::EmbeddingBagImpl>());
  return weights;
}

class Inspector {
 public:
  Inspector(
      const torch::nn::Module& module,
      const DistributedDataParallelOptions& options)
      : module_(module),
        options_(options),
        sparse_weights_(sparse_weights(module)) {}

  Model run() {
    for (const auto& item : module_.named_parameters()) {
      known_.push_back(item.key());
      add_parameter(item.key(), item.value());
    }
    for (const auto& item : module_.named_buffers()) {
      known_.push_back(item.key());
      add_buffer(item.key(), item.value());
    }
    check_names("ignore", options_.ignore);
    check_names("sparse", options_.sparse);
    if (model_.trainable.empty()) {
      fail(
          "ddp",
          "no parameter of the module requires a gradient",
          options_.ignore.empty() ? "" : " except the ignored ones",
          ": there is nothing to average, use the module without DDP");
    }
    return std::move(model_);
  }

 private:
  void add_parameter(const std::string& name, const at::Tensor& tensor) {
    if (!take(name, tensor)) {
      return;
    }
    const bool trains = tensor.requires_grad();
    model_.state.push_back(tensor);
    model_.facts.push_back(
        {concat("parameter ", model_.facts.size()),
         describe(name, tensor) + (trains ? "" : " frozen")});
    if (!trains) {
      model_.frozen.push_back(tensor);
      return;
    }
    model_.trainable.push_back(
        std::make_shared<const Parameter>(Parameter{name, tensor}));
    model_.sparse.push_back(
        contains(options_.sparse, name) ||
        sparse_weights_.contains(tensor.unsafeGetTensorImpl()));
  }

  void add_buffer(const std::string& name, const at::Tensor& tensor) {
    if (!take(name, tensor)) {
      return;
    }
    model_.state.push_back(tensor);
    model_.buffers.push_back(tensor);
    model_.facts.push_back(
        {concat("buffer ", model_.facts.size()), describe(name, tensor)});
  }

  // Whether this tensor counts: defined, not ignored, not seen under another
  // name before (tied weights are listed twice).
  bool take(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || contains(options_.ignore, name) ||
        !seen_.insert(tensor.unsafeGetTensorImpl()).second) {
      return false;
    }
    check_device(name, tensor);
    return true;
  }

  void check_names(const char* option, const Names& names) const {
    for (const auto& name : names) {
      if (!contains(known_, name)) {
        fail(
            "ddp",
            "option ",
            option,
            " names '",
            name,
            "', which the module does not have",
            did_you_mean(name, known_));
      }
    }
  }

  const torch::nn::Module& module_;
  const DistributedDataParallelOptions& options_;
  std::set<const void*> sparse_weights_;
  std::set<const void*> seen_;
  Names known_;
  Model model_;
};

}  // namespace

std::string describe(const std::string& name, const at::Tensor& tensor) {
  return concat(
      name,
      " ",
      tensor.scalar_type(),
      " ",
      tensor.sizes(),
      " strides ",
      tensor.strides());
}

void check_device(const std::string& name, const at::Tensor& tensor) {
  if (!is_served(tensor.device().type())) {
    fail(
        "ddp",
        "'",
        name,
        "' is on ",
        tensor.device().str(),
        ", expected ",
        served_devices(),
        ": this build has no transport for other devices");
  }
}

Model inspect_model(
    const torch::nn::Module& module,
    const DistributedDataParallelOptions& options) {
  return Inspector(module, options).run();
}

}  // namespace gradwire
