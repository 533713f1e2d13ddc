#pragma once

#include <torch/torch.h>

#include <vector>

#include "gradwire/ddp/ddp.h"
#include "gradwire/hook/hook_record.h"
#include "tests/support/command.h"
#include "tests/support/tensors.h"

namespace gradwire::test {

// A module whose gradients are what forward() is given, so that tests know what
// a hook got.
class GivenGradients : public torch::nn::Module {
 public:
  using Gradients = std::vector<at::Tensor>;

  explicit GivenGradients(const std::vector<std::int64_t>& sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      register_parameter(concat("p", i), torch::zeros({sizes[i]}));
    }
  }

  at::Tensor forward(const Gradients& gradients) {
    auto loss = torch::zeros({});
    const auto own = parameters();
    for (std::size_t i = 0; i < own.size(); ++i) {
      loss = loss + (own[i] * gradients[i]).sum();
    }
    return loss;
  }

  Gradients random(std::uint64_t seed) const {
    Gradients gradients;
    for (const auto& parameter : parameters()) {
      gradients.push_back(
          random_tensor(parameter.sizes(), 17 * seed + gradients.size()));
    }
    return gradients;
  }

  static at::Tensor flat(const Gradients& gradients) {
    return torch::cat(gradients).to(torch::kDouble);
  }
  at::Tensor flat_gradients() const {
    Gradients gradients;
    for (const auto& parameter : parameters()) {
      gradients.push_back(parameter.grad());
    }
    return flat(gradients);
  }

  // What all ranks together still owe, as the DDP's saved hook state says.
  template <class Ddp>
  at::Tensor residuals(const Group& group, Ddp& ddp) const {
    const TemporaryFolder folder;
    ddp.save_hook_state(folder.path());
    const auto owed =
        read_record(folder / concat("hook-state.rank", group.rank()))
            .state.residuals;
    Gradients parts;
    for (const auto& item : named_parameters()) {
      // A rank that joined a larger world owes nothing yet.
      const auto found = owed.find(item.key());
      parts.push_back(
          found != owed.end() ? found->second
                              : torch::zeros(item.value().sizes()));
    }
    auto sum = flat(parts);
    group.all_reduce(sum).wait();
    return sum;
  }
};

}  // namespace gradwire::test
