#pragma once

// PowerSGD once more, from algorithm 1 of the paper, in plain LibTorch and
// double precision: nothing is shared with gradwire/hook but how the first Q is
// drawn.

#include <torch/torch.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "gradwire/base/text.h"
#include "gradwire/comm/group.h"
#include "tests/hook/named_gradients.h"

namespace gradwire::test {

class PowerSgdReference {
 public:
  struct Config {
    std::int64_t rank = 1;
    bool error_feedback = true;
    bool warm_start = true;
    double min_compression_rate = 2;
    int iterations = 1;
    // One side a step, P first.
    bool alternate = false;
    // Q anew every so many steps.
    int refresh = 0;
  };

  PowerSgdReference(Group group, Config config)
      : group_(std::move(group)), config_(config) {}

  // The averages of one step, each parameter a matrix.
  std::vector<at::Tensor> step(const NamedGradients& gradients) {
    std::vector<at::Tensor> averages;
    for (const auto& [name, gradient] : gradients) {
      const auto wide = gradient.to(torch::kDouble);
      averages.push_back(
          is_compressed(gradient)
              ? low_rank(name, wide.reshape({gradient.size(0), -1}))
                    .reshape(gradient.sizes())
              : mean(wide));
    }
    ++steps_;
    return averages;
  }

  // The same with each bucket as one matrix: a square, filled up with zeros.
  std::vector<at::Tensor> batched_step(
      const NamedGradients& gradients, std::size_t a_bucket) {
    std::vector<at::Tensor> averages;
    for (std::size_t begin = 0; begin < gradients.size(); begin += a_bucket) {
      const auto end = std::min(begin + a_bucket, gradients.size());
      std::string name;
      std::vector<at::Tensor> parts;
      for (std::size_t i = begin; i < end; ++i) {
        name += gradients[i].name + " ";
        parts.push_back(gradients[i].gradient.reshape({-1}));
      }
      const auto flat = torch::cat(parts).to(torch::kDouble);
      const auto side = static_cast<std::int64_t>(
          std::ceil(std::sqrt(static_cast<double>(flat.numel()))));
      const auto square =
          torch::constant_pad_nd(flat, {0, side * side - flat.numel()})
              .view({side, side});
      auto all = low_rank(name, square).flatten();
      // What lies beyond the bucket is nobody's, and is not remembered.
      errors_[name].flatten().slice(0, flat.numel()).zero_();
      for (std::size_t i = begin; i < end; ++i) {
        const auto& gradient = gradients[i].gradient;
        averages.push_back(
            all.slice(0, 0, gradient.numel()).view(gradient.sizes()));
        all = all.slice(0, gradient.numel());
      }
    }
    ++steps_;
    return averages;
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

  static at::Tensor basis_of(const at::Tensor& columns) {
    return std::get<0>(torch::linalg_qr(columns));
  }

  at::Tensor low_rank(const std::string& name, at::Tensor matrix) {
    if (config_.error_feedback && errors_.contains(name)) {
      matrix = matrix + errors_[name];
    }
    const auto columns = matrix.size(1);
    const auto rank = std::min({matrix.size(0), columns, config_.rank});
    const bool anew = !config_.warm_start || !bases_.contains(name) ||
                      (config_.refresh > 0 && steps_ % config_.refresh == 0);
    if (anew) {
      bases_[name] = draw(name, columns, rank);
    }
    const auto approximation =
        config_.alternate ? one_side(name, matrix) : both_sides(name, matrix);
    errors_[name] = matrix - approximation;
    return approximation;
  }

  at::Tensor both_sides(const std::string& name, const at::Tensor& matrix) {
    at::Tensor left;
    for (int i = 0; i < config_.iterations; ++i) {
      left = basis_of(mean(matrix.matmul(basis_of(bases_[name]))));
      bases_[name] = mean(matrix.t().matmul(left));
    }
    return left.matmul(bases_[name].t());
  }

  at::Tensor one_side(const std::string& name, const at::Tensor& matrix) {
    const auto basis = basis_of(bases_[name]);
    const bool left = steps_ % 2 == 0;
    bases_[name] = mean((left ? matrix : matrix.t()).matmul(basis));
    const auto product = bases_[name].matmul(basis.t());
    return left ? product : product.t();
  }

  at::Tensor draw(
      const std::string& name, std::int64_t rows, std::int64_t columns) const {
    auto q = torch::empty({rows, columns}, torch::kDouble);
    for (std::int64_t k = 0; k < columns; ++k) {
      const auto seed =
          fingerprint(concat(0, " ", steps_, " 0 ", k, " ", name));
      std::mt19937_64 random(seed);
      for (std::int64_t i = 0; i < rows; ++i) {
        q[i][k] = static_cast<std::int32_t>(random() >> 32) * 0x1p-31f;
      }
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
