#include "gradwire/rpc/remote_module.h"

#include <ATen/ATen.h>

#include <charconv>

#include "gradwire/rpc/agent_impl.h"

namespace gradwire::rpc::detail {
namespace {

constexpr const char* kRank = "rank:";

std::string worker_of_rank(const std::string& place, const std::string& text) {
  const auto& workers = running_agent()->workers();
  std::size_t rank = 0;
  const auto* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, rank);
  if (parsed.ec != std::errc() || parsed.ptr != end || rank >= workers.size()) {
    fail(
        "rpc",
        "there is no worker of rank '",
        text,
        "' for '",
        place,
        "', expected 0 to ",
        workers.size() - 1);
  }
  return workers[rank].name;
}

// Every tensor of the state, not copies.
std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> result;
  for (const auto& item : module.named_parameters()) {
    result.emplace(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    result.emplace(item.key(), item.value());
  }
  return result;
}

}  // namespace

Place parse_place(const std::string& place) {
  const std::size_t slash = place.find('/');
  std::string worker = place.substr(0, slash);
  if (worker.starts_with(kRank)) {
    worker = worker_of_rank(place, worker.substr(std::string(kRank).size()));
  }
  running_agent()->find(worker);
  return {
      std::move(worker),
      slash == std::string::npos ? "cpu" : place.substr(slash + 1)};
}

void move_to(torch::nn::Module& module, const std::string& device) {
  module.to(c10::Device(device));
}

std::map<std::string, at::Tensor> state_of(const torch::nn::Module& module) {
  auto state = tensors_of(module);
  for (auto& [name, tensor] : state) {
    tensor = tensor.detach().cpu().clone();
  }
  return state;
}

void load_state(
    torch::nn::Module& module, const std::map<std::string, at::Tensor>& state) {
  const auto own = tensors_of(module);
  for (const auto& [name, tensor] : state) {
    const auto found = own.find(name);
    if (found == own.end()) {
      fail(
          "rpc",
          "the module has no '",
          name,
          "', expected ",
          own.size(),
          " names that it has");
    }
    if (found->second.sizes() != tensor.sizes()) {
      fail(
          "rpc",
          "'",
          name,
          "' has the shape ",
          found->second.sizes(),
          ", got ",
          tensor.sizes());
    }
  }
  for (const auto& [name, tensor] : own) {
    if (!state.contains(name)) {
      fail("rpc", "the state lacks '", name, "'");
    }
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : state) {
    own.at(name).copy_(tensor);
  }
}

}  // namespace gradwire::rpc::detail
