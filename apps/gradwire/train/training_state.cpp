#include "apps/gradwire/train/training_state.h"

#include <torch/torch.h>

#include <bit>

#include "gradwire/base/archive.h"
#include "gradwire/hook/named_tensors.h"

namespace gradwire::apps {
namespace {

constexpr ArchiveFormat kStateFormat{"gw train", 1};

NamedTensors model_of(torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& each : module.named_parameters()) {
    tensors[each.key()] = each.value();
  }
  for (const auto& each : module.named_buffers()) {
    tensors[each.key()] = each.value();
  }
  return tensors;
}

// Of parameters that were updated at least once.
NamedTensors momentum_of(torch::nn::Module& module, torch::optim::SGD& sgd) {
  NamedTensors tensors;
  for (const auto& each : module.named_parameters()) {
    const auto found = sgd.state().find(each.value().unsafeGetTensorImpl());
    if (found == sgd.state().end()) {
      continue;
    }
    const auto& state =
        static_cast<torch::optim::SGDParamState&>(*found->second);
    if (state.momentum_buffer().defined()) {
      tensors[each.key()] = state.momentum_buffer();
    }
  }
  return tensors;
}

torch::optim::SGDOptions& options_of(torch::optim::SGD& sgd) {
  return static_cast<torch::optim::SGDOptions&>(
      sgd.param_groups().front().options());
}

// Throws unless every tensor of `loaded` has the shape and type of its
// namesake.
void check_alike(const NamedTensors& loaded, const NamedTensors& own) {
  for (const auto& [name, tensor] : loaded) {
    const auto found = own.find(name);
    if (found == own.end() || found->second.sizes() != tensor.sizes() ||
        found->second.scalar_type() != tensor.scalar_type()) {
      throw DamagedError(concat("'", name, "' does not fit the model"));
    }
  }
}

struct Loaded {
  NamedTensors model;
  NamedTensors momentum;
  double factor = 0;
};

Loaded read_state(const std::string& bytes) {
  const ArchiveReader archive(bytes, kStateFormat);
  Loaded loaded;
  ByteReader model = archive.section("model");
  loaded.model = read_tensors(model);
  model.end();
  ByteReader momentum = archive.section("momentum");
  loaded.factor = std::bit_cast<double>(momentum.number());
  loaded.momentum = read_tensors(momentum);
  momentum.end();
  return loaded;
}

Loaded read_checked(const std::string& bytes, torch::nn::Module& module) {
  try {
    Loaded loaded = read_state(bytes);
    const NamedTensors own = model_of(module);
    check_alike(loaded.model, own);
    check_alike(loaded.momentum, own);
    if (loaded.model.size() != own.size()) {
      throw DamagedError("a tensor of the model is missing");
    }
    return loaded;
  } catch (const DamagedError& e) {
    fail("checkpoint", "the state of the checkpoint is damaged: ", e.reason());
  }
}

}  // namespace

std::string pack_state(torch::nn::Module& module, torch::optim::SGD& sgd) {
  ArchiveWriter out(kStateFormat);
  out.begin("model");
  write_tensors(out, model_of(module));
  out.begin("momentum");
  out.number(std::bit_cast<std::int64_t>(options_of(sgd).momentum()));
  write_tensors(out, momentum_of(module, sgd));
  return std::move(out).finish();
}

void unpack_state(
    const std::string& bytes,
    torch::nn::Module& module,
    torch::optim::SGD& sgd) {
  const torch::NoGradGuard no_grad;
  const Loaded loaded = read_checked(bytes, module);
  for (const auto& [name, tensor] : model_of(module)) {
    at::Tensor(tensor).copy_(loaded.model.at(name));
  }
  options_of(sgd).momentum(loaded.factor);
  sgd.state().clear();
  for (const auto& each : module.named_parameters()) {
    if (const auto found = loaded.momentum.find(each.key());
        found != loaded.momentum.end()) {
      auto state = std::make_unique<torch::optim::SGDParamState>();
      state->momentum_buffer(found->second);
      sgd.state()[each.value().unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

}  // namespace gradwire::apps
