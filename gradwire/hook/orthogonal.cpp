#include "gradwire/hook/orthogonal.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

namespace gradwire {
namespace {

// What is left of a column of floats when the part that others explain is taken
// away is noise below this share of it.
constexpr double kNoise = 1e-6;
// Down to this share the first pass leaves columns orthogonal to the precision
// of floats: a Gram matrix squares what is lost.
constexpr double kGood = 1e-3;
// After the first one. Two do, unless what fills a gap happens to leave
// another.
constexpr int kMostPasses = 3;

// Gram-Schmidt on columns of which only the products are known. Column k of
// `factors` will say how to make column k of the basis from the given ones.
class GramSchmidt {
 public:
  GramSchmidt(const double* gram, std::int64_t rank, double* factors)
      : gram_(gram), rank_(rank), factors_(factors) {
    std::fill(factors, factors + rank * rank, 0.0);
    for (std::int64_t k = 0; k < rank; ++k) {
      at(k, k) = 1;
    }
  }

  // False: column k depends on those before it, and is now zero.
  bool take(std::int64_t k, double epsilon) {
    const double whole = gram_[k * rank_ + k];
    const double left = product(k, k);
    // Comparisons that NaN fails: it must not be taken for zero.
    if (whole == 0 || left <= kNoise * kNoise * whole) {
      scale(k, 0);
      return false;
    }
    smallest_share_ = std::min(smallest_share_, std::sqrt(left / whole));
    scale(k, 1 / (std::sqrt(left) + epsilon));
    for (std::int64_t j = k + 1; j < rank_; ++j) {
      const double part = product(k, j);
      for (std::int64_t i = 0; i <= k; ++i) {
        at(i, j) -= part * at(i, k);
      }
    }
    return true;
  }
  // Column k stays as it is given.
  void keep(std::int64_t k) {
    at(k, k) = 1;
  }

  double smallest_share() const {
    return smallest_share_;
  }

 private:
  double& at(std::int64_t i, std::int64_t k) {
    return factors_[i * rank_ + k];
  }
  void scale(std::int64_t k, double by) {
    for (std::int64_t i = 0; i <= k; ++i) {
      at(i, k) *= by;
    }
  }
  double product(std::int64_t a, std::int64_t b) {
    double sum = 0;
    for (std::int64_t i = 0; i <= a; ++i) {
      double inner = 0;
      for (std::int64_t j = 0; j <= b; ++j) {
        inner += gram_[i * rank_ + j] * at(j, b);
      }
      sum += at(i, a) * inner;
    }
    return sum;
  }

  const double* gram_;
  std::int64_t rank_;
  double* factors_;
  double smallest_share_ = 1;
};

void reserve(at::Tensor& tensor, at::IntArrayRef sizes) {
  if (!tensor.defined() || tensor.sizes() != sizes) {
    tensor = at::empty(sizes, at::kDouble);
  }
}

}  // namespace

void Orthogonaliser::apply(
    at::Tensor matrices, double epsilon, const Fill& fill) {
  const auto count = matrices.size(0);
  const auto rank = matrices.size(2);
  reserve(columns_, matrices.sizes());
  reserve(next_, matrices.sizes());
  reserve(gram_, {count, rank, rank});
  reserve(factors_, {count, rank, rank});
  columns_.copy_(matrices);
  bool done = pass(epsilon, fill);
  for (int i = 0; i < kMostPasses && !done; ++i) {
    done = pass(0, fill);
  }
  matrices.copy_(columns_);
}

bool Orthogonaliser::pass(double epsilon, const Fill& fill) {
  at::bmm_out(gram_, columns_.transpose(1, 2), columns_);
  const auto rank = columns_.size(2);
  bool done = true;
  for (std::int64_t matrix = 0; matrix < columns_.size(0); ++matrix) {
    const std::int64_t begin = matrix * rank * rank;
    GramSchmidt basis(
        gram_.data_ptr<double>() + begin,
        rank,
        factors_.data_ptr<double>() + begin);
    for (std::int64_t k = 0; k < rank; ++k) {
      if (!basis.take(k, epsilon) && fill) {
        fill(matrix, k, columns_[matrix].select(1, k));
        basis.keep(k);
        done = false;
      }
    }
    done = done && basis.smallest_share() >= kGood;
  }
  at::bmm_out(next_, columns_, factors_);
  std::swap(columns_, next_);
  return done;
}

}  // namespace gradwire
