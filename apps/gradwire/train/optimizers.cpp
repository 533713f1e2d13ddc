#include "apps/gradwire/train/optimizers.h"

#include <torch/torch.h>

#include "gradwire/base/error.h"

namespace gradwire::apps {
namespace {

struct Row {
  const char* name;
  SliceOptimizer (*make)(double lr, double momentum);
};

// The only list of optimizers that the command has.
constexpr Row kRows[] = {
    {"sgd",
     [](double lr, double momentum) {
       return sliced<torch::optim::SGD>(
           torch::optim::SGDOptions(lr).momentum(momentum));
     }},
    {"adam",
     [](double lr, double) {
       return sliced<torch::optim::Adam>(torch::optim::AdamOptions(lr));
     }},
    {"adamw",
     [](double lr, double) {
       return sliced<torch::optim::AdamW>(torch::optim::AdamWOptions(lr));
     }},
    {"adagrad",
     [](double lr, double) {
       return sliced<torch::optim::Adagrad>(torch::optim::AdagradOptions(lr));
     }},
    {"rmsprop",
     [](double lr, double) {
       return sliced<torch::optim::RMSprop>(torch::optim::RMSpropOptions(lr));
     }},
};

}  // namespace

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) {
    names.emplace_back(row.name);
  }
  return names;
}

SliceOptimizer find_optimizer(
    const std::string& name, double lr, double momentum) {
  for (const Row& row : kRows) {
    if (row.name == name) {
      return row.make(lr, momentum);
    }
  }
  const auto names = optimizer_names();
  fail(
      "app",
      "--optimizer is '",
      name,
      "', expected one of ",
      join(names),
      did_you_mean(name, names));
}

}  // namespace gradwire::apps
