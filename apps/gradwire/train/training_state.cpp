#include "apps/gradwire/train/training_state.h"

#include <torch/torch.h>

#include "gradwire/base/archive.h"
#include "gradwire/hook/named_tensors.h"

namespace gradwire::apps {
namespace {

constexpr ArchiveFormat kStateFormat{"gw train", 2};

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

void write_state(ArchiveWriter& out, const OptimizerState& state) {
  out.text(state.optimizer);
  out.number(static_cast<std::int64_t>(state.parameters.size()));
  for (const ParameterState& each : state.parameters) {
    write_tensors(out, each.tensors);
    out.number(static_cast<std::int64_t>(each.numbers.size()));
    for (const auto& [name, number] : each.numbers) {
      out.text(name);
      out.number(number);
    }
  }
}

ParameterState read_parameter_state(ByteReader& in) {
  ParameterState state;
  state.tensors = read_tensors(in);
  // A name's length and a number.
  const std::size_t numbers = in.count(2 * sizeof(std::int64_t));
  for (std::size_t i = 0; i < numbers; ++i) {
    const std::string name(in.text());
    state.numbers[name] = in.number();
  }
  return state;
}

OptimizerState read_optimizer_state(ByteReader& in) {
  OptimizerState state;
  state.optimizer = in.text();
  const std::size_t parameters = in.count(2 * sizeof(std::int64_t));
  for (std::size_t i = 0; i < parameters; ++i) {
    state.parameters.push_back(read_parameter_state(in));
  }
  return state;
}

struct Loaded {
  NamedTensors model;
  OptimizerState optimizer;
};

Loaded read_state(const std::string& bytes) {
  const ArchiveReader archive(bytes, kStateFormat);
  Loaded loaded;
  ByteReader model = archive.section("model");
  loaded.model = read_tensors(model);
  model.end();
  ByteReader optimizer = archive.section("optimizer");
  loaded.optimizer = read_optimizer_state(optimizer);
  optimizer.end();
  return loaded;
}

Loaded read_checked(const std::string& bytes, torch::nn::Module& module) {
  try {
    Loaded loaded = read_state(bytes);
    const NamedTensors own = model_of(module);
    check_alike(loaded.model, own);
    if (loaded.model.size() != own.size()) {
      throw DamagedError("a tensor of the model is missing");
    }
    return loaded;
  } catch (const DamagedError& e) {
    fail("checkpoint", "the state of the checkpoint is damaged: ", e.reason());
  }
}

}  // namespace

std::string pack_state(
    torch::nn::Module& module, const OptimizerState& optimizer) {
  ArchiveWriter out(kStateFormat);
  out.begin("model");
  write_tensors(out, model_of(module));
  out.begin("optimizer");
  write_state(out, optimizer);
  return std::move(out).finish();
}

void unpack_state(
    const std::string& bytes,
    torch::nn::Module& module,
    const std::function<void(const OptimizerState&)>& take) {
  const torch::NoGradGuard no_grad;
  const Loaded loaded = read_checked(bytes, module);
  take(loaded.optimizer);
  for (const auto& [name, tensor] : model_of(module)) {
    at::Tensor(tensor).copy_(loaded.model.at(name));
  }
}

}  // namespace gradwire::apps
