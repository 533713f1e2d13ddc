#include "gradwire/rpc/local_optimizer.h"

#include <ATen/ATen.h>

#include <mutex>

#include "gradwire/base/error.h"
#include "gradwire/rpc/optimizer_options.h"

namespace gradwire::rpc {
namespace {

struct Made {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  double weight_decay;
};

template <class Optimizer, class Options>
Made make(
    const std::vector<at::Tensor>& parameters, const NamedNumbers& numbers) {
  const auto options = options_of<Options>(numbers);
  return {
      std::make_unique<Optimizer>(parameters, options), options.weight_decay()};
}

Made make_optimizer(
    const std::string& kind,
    const std::vector<at::Tensor>& parameters,
    const NamedNumbers& numbers) {
  using namespace torch::optim;
  if (kind == "SGD") {
    return make<SGD, SGDOptions>(parameters, numbers);
  }
  if (kind == "Adam") {
    return make<Adam, AdamOptions>(parameters, numbers);
  }
  if (kind == "AdamW") {
    return make<AdamW, AdamWOptions>(parameters, numbers);
  }
  if (kind == "Adagrad") {
    return make<Adagrad, AdagradOptions>(parameters, numbers);
  }
  fail("rpc", "there is no distributed optimizer '", kind, "'");
}

// Of all optimizers on this worker: they may share parameters.
std::mutex& step_mutex() {
  static std::mutex mutex;
  return mutex;
}

at::Tensor add_up(const at::Tensor& sum, const at::Tensor& gradient) {
  if (!sum.defined()) {
    return gradient;
  }
  return sum.is_sparse() && !gradient.is_sparse() ? gradient + sum
                                                  : sum + gradient;
}

// Gives these gradients to the parameters for as long as it exists.
class BorrowedGradients {
 public:
  BorrowedGradients(
      std::vector<at::Tensor>& parameters, std::vector<at::Tensor> gradients)
      : parameters_(parameters), others_(std::move(gradients)) {
    exchange();
  }
  ~BorrowedGradients() {
    exchange();
  }
  BorrowedGradients(const BorrowedGradients&) = delete;

 private:
  void exchange() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      std::swap(parameters_[i].mutable_grad(), others_[i]);
    }
  }

  std::vector<at::Tensor>& parameters_;
  std::vector<at::Tensor> others_;
};

}  // namespace

LocalOptimizer::LocalOptimizer(
    const std::string& kind,
    const std::map<std::string, double>& options,
    const std::vector<Remote<at::Tensor>>& parameters)
    : kind_(kind) {
  for (const auto& parameter : parameters) {
    parameters_.push_back(*parameter.local());
  }
  auto made = make_optimizer(kind, parameters_, options);
  optimizer_ = std::move(made.optimizer);
  weight_decay_ = made.weight_decay;
}

LocalOptimizer::~LocalOptimizer() = default;

void LocalOptimizer::check(const at::Tensor& gradient) const {
  if (!gradient.defined() || !gradient.is_sparse()) {
    return;
  }
  if (kind_ == "Adam" || kind_ == "AdamW") {
    fail(
        "rpc",
        kind_,
        " does not take sparse gradients, expected SGD or Adagrad, or an "
        "embedding with sparse(false)");
  }
  if (weight_decay_ != 0) {
    fail("rpc", kind_, " does not take sparse gradients with weight_decay");
  }
}

std::vector<at::Tensor> LocalOptimizer::gradients(
    const std::vector<autograd::ContextId>& contexts, bool average) const {
  std::vector<at::Tensor> sums(parameters_.size());
  for (const auto context : contexts) {
    const auto found = autograd::gradients(context);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (auto gradient = found.of(parameters_[i]); gradient.defined()) {
        sums[i] = add_up(sums[i], gradient);
      }
    }
  }
  for (auto& sum : sums) {
    check(sum);
    if (average && sum.defined()) {
      sum = sum / static_cast<double>(contexts.size());
    }
  }
  return sums;
}

void LocalOptimizer::step(
    const std::vector<autograd::ContextId>& contexts, bool average) {
  const at::NoGradGuard no_grad;
  auto sums = gradients(contexts, average);
  const std::lock_guard lock(step_mutex());
  const BorrowedGradients borrowed(parameters_, std::move(sums));
  optimizer_->step();
}

void register_local_optimizer() {
  register_class<LocalOptimizer>("LocalOptimizer")
      .constructor<
          std::string,
          std::map<std::string, double>,
          std::vector<Remote<at::Tensor>>>()
      .method<&LocalOptimizer::step>("step");
}

}  // namespace gradwire::rpc
