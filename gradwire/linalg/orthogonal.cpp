#include "gradwire/linalg/orthogonal.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradwire::linalg {
namespace {

// A column of floats without the part that others explain is only rounding
// noise below this share of its length.
constexpr double kNoise = 1e-6;
// Down to this share, one pass makes columns orthogonal to the precision of
// floats. A Gram matrix squares what is lost to cancellation.
constexpr double kGood = 1e-3;
// Two are enough, unless the column that fills a gap depends on others too.
constexpr int kMostPasses = 4;

void read_row(const Columns& columns, std::int64_t row, double* to) {
  const float* from = columns.data + row * columns.row_step;
  for (std::int64_t k = 0; k < columns.count; ++k) {
    to[k] = from[k * columns.column_step];
  }
}

void fill_with_nan(const Columns& columns) {
  for (std::int64_t row = 0; row < columns.rows; ++row) {
    for (std::int64_t k = 0; k < columns.count; ++k) {
      columns.data[row * columns.row_step + k * columns.column_step] =
          std::numeric_limits<float>::quiet_NaN();
    }
  }
}

// Gram-Schmidt on columns that are known by their products only.
class GramSchmidt {
 public:
  // Both are rank x rank. The products are overwritten.
  GramSchmidt(double* gram, double* factors, std::int64_t rank)
      : gram_(gram), factors_(factors), rank_(rank) {
    std::fill(factors, factors + rank * rank, 0.0);
  }

  // The length of column k without the part that earlier columns explain,
  // relative to its own length. Zero if only noise is left; the column is then
  // zero too.
  double take(std::int64_t k, double whole) {
    const double left = gram_[k * rank_ + k];
    if (whole == 0 || left <= kNoise * kNoise * whole) {
      std::fill(gram_ + k * rank_ + k, gram_ + (k + 1) * rank_, 0.0);
      return 0;
    }
    // Row k becomes that of the triangle R of G = R' R.
    const double length = std::sqrt(left);
    for (std::int64_t j = k; j < rank_; ++j) {
      gram_[k * rank_ + j] /= length;
    }
    for (std::int64_t i = k + 1; i < rank_; ++i) {
      const double part = gram_[k * rank_ + i];
      for (std::int64_t j = i; j < rank_; ++j) {
        gram_[i * rank_ + j] -= part * gram_[k * rank_ + j];
      }
    }
    solve(k, length);
    return std::sqrt(left / whole);
  }

  // Column k stays as it is given.
  void keep(std::int64_t k) {
    factors_[k * rank_ + k] = 1;
  }

 private:
  // Column k of the inverse of R.
  void solve(std::int64_t k, double length) {
    for (std::int64_t i = 0; i <= k; ++i) {
      double sum = i == k ? 1 : 0;
      for (std::int64_t j = i; j < k; ++j) {
        sum -= factors_[i * rank_ + j] * gram_[j * rank_ + k];
      }
      factors_[i * rank_ + k] = sum / length;
    }
  }

  double* gram_;
  double* factors_;
  std::int64_t rank_;
};

}  // namespace

bool Orthogonaliser::apply(
    const Columns& columns, double epsilon, const Fill& fill) {
  const auto rank = static_cast<std::size_t>(columns.count);
  gram_.resize(rank * rank);
  factors_.resize(rank * rank);
  wholes_.resize(rank);
  row_.resize(rank);
  lengths_.resize(rank);
  for (int attempt = 0; attempt < kMostPasses; ++attempt) {
    const Pass result = pass(columns, attempt, fill);
    if (result == Pass::kNotFinite) {
      fill_with_nan(columns);
      return false;
    }
    if (result == Pass::kDone) {
      break;
    }
  }
  if (epsilon > 0) {
    std::fill(factors_.begin(), factors_.end(), 0.0);
    for (std::size_t k = 0; k < rank; ++k) {
      factors_[k * rank + k] = lengths_[k] / (lengths_[k] + epsilon);
    }
    combine(columns);
  }
  return true;
}

Orthogonaliser::Pass Orthogonaliser::pass(
    const Columns& columns, int attempt, const Fill& fill) {
  if (!measure(columns)) {
    return Pass::kNotFinite;
  }
  const std::int64_t rank = columns.count;
  for (std::int64_t k = 0; k < rank; ++k) {
    wholes_[k] = gram_[k * rank + k];
  }
  GramSchmidt basis(gram_.data(), factors_.data(), rank);
  bool done = true;
  for (std::int64_t k = 0; k < rank; ++k) {
    const double share = basis.take(k, wholes_[k]);
    if (attempt == 0) {
      lengths_[k] = share * std::sqrt(wholes_[k]);
    }
    if (share == 0 && fill) {
      fill(k, attempt);
      basis.keep(k);
    }
    const bool settled = share == 0 ? !fill : share >= kGood;
    done = done && settled;
  }
  combine(columns);
  return done ? Pass::kDone : Pass::kAgain;
}

// False when a product is not finite.
bool Orthogonaliser::measure(const Columns& columns) {
  const std::int64_t rank = columns.count;
  std::fill(gram_.begin(), gram_.end(), 0.0);
  for (std::int64_t row = 0; row < columns.rows; ++row) {
    read_row(columns, row, row_.data());
    for (std::int64_t i = 0; i < rank; ++i) {
      for (std::int64_t j = i; j < rank; ++j) {
        gram_[i * rank + j] += row_[i] * row_[j];
      }
    }
  }
  return std::ranges::all_of(
      gram_, [](double product) { return std::isfinite(product); });
}

void Orthogonaliser::combine(const Columns& columns) {
  const std::int64_t rank = columns.count;
  for (std::int64_t row = 0; row < columns.rows; ++row) {
    read_row(columns, row, row_.data());
    float* to = columns.data + row * columns.row_step;
    for (std::int64_t k = 0; k < rank; ++k) {
      double sum = 0;
      for (std::int64_t i = 0; i <= k; ++i) {
        sum += row_[i] * factors_[i * rank + k];
      }
      to[k * columns.column_step] = static_cast<float>(sum);
    }
  }
}

}  // namespace gradwire::linalg
