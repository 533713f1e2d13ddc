#pragma once

// PowerSGD once more, from algorithm 1 of the paper, in plain LibTorch: nothing
// is shared with gradwire/hook but how the first Q is drawn.

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "gradwire/base/text.h"
#include "gradwire/comm/group.h"

namespace gradwire::test {

struct NamedGradient {
  std::string name;
  at::Tensor gradient;
};

class PowerSgdReference {
 public:
  struct Config {
    std::int64_t rank = 1;
    bool error_feedback = true;
    bool warm_start = true;
    double min_compression_rate = 2;
  };

  PowerSgdReference(Group group, Config config)
      : group_(std::move(group)), config_(config) {}

  // The averages of one step, in double precision.
  std::vector<at::Tensor> step(const std::vector<NamedGradient>& gradients) {
    std::vector<at::Tensor> averages;
    for (const auto& [name, gradient] : gradients) {
      const auto wide = gradient.to(torch::kDouble);
      averages.push_back(
          is_compressed(gradient) ? low_rank(name, wide) : mean(wide));
    }
    ++steps_;
    return averages;
  }

  const std::map<std::string, at::Tensor>& errors() const {
    return errors_;
  }

 private:
  bool is_compressed(const at::Tensor& gradient) const {
    if (gradient.dim() == 0 || gradient.numel() == 0) {
      return false;
    }
    const auto n = gradient.size(0);
    const auto m = gradient.numel() / n;
    const auto r = std::min({n, m, config_.rank});
    return static_cast<double>((n + m) * r) * config_.min_compression_rate <
           static_cast<double>(n * m);
  }

  at::Tensor mean(const at::Tensor& tensor) const {
    auto sum = tensor.clone(at::MemoryFormat::Contiguous);
    group_.all_reduce(sum).wait();
    return sum / group_.size();
  }

  at::Tensor low_rank(const std::string& name, const at::Tensor& gradient) {
    const auto n = gradient.size(0);
    auto matrix = gradient.reshape({n, -1});
    if (config_.error_feedback && errors_.contains(name)) {
      matrix = matrix + errors_[name];
    }
    const auto m = matrix.size(1);
    const auto r = std::min({n, m, config_.rank});
    if (!config_.warm_start || !bases_.contains(name)) {
      bases_[name] = draw(name, m, r);
    }
    const auto p = mean(matrix.matmul(bases_[name]));
    const auto basis = std::get<0>(torch::linalg_qr(p));
    bases_[name] = mean(matrix.t().matmul(basis));
    const auto approximation = basis.matmul(bases_[name].t());
    errors_[name] = matrix - approximation;
    return approximation.reshape(gradient.sizes());
  }

  at::Tensor draw(
      const std::string& name, std::int64_t rows, std::int64_t columns) const {
    auto q = torch::empty({rows, columns}, torch::kDouble);
    for (std::int64_t k = 0; k < columns; ++k) {
      const auto seed = fingerprint(concat(0, " ", steps_, " ", k, " ", name));
      const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
      q.select(1, k).copy_(torch::randn({rows}, generator, torch::kDouble));
    }
    return q;
  }

  Group group_;
  Config config_;
  std::int64_t steps_ = 0;
  std::map<std::string, at::Tensor> errors_;
  std::map<std::string, at::Tensor> bases_;
};

}  // namespace gradwire::test
