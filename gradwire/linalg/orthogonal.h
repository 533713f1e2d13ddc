#pragma once

// Private to gradwire: orthonormal bases of the columns of tall matrices.

#include <cstdint>
#include <functional>
#include <vector>

namespace gradwire::linalg {

// A tall matrix of floats, its columns or its rows one after another.
struct Columns {
  float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t count = 0;
  std::int64_t row_step = 0;
  std::int64_t column_step = 0;
};

// Makes the columns of tall matrices orthonormal, as Gram-Schmidt would: column
// k stays in the span of columns 0 to k, with a positive factor.
//
// Uses the Gram matrix in double precision, where products of floats are exact.
// That takes two passes over all columns instead of many over each, and two
// more if columns are nearly dependent. Bits do not depend on the processor.
// Keeps its buffers. Not thread safe.
class Orthogonaliser {
 public:
  // Writes new floats into a column, other ones at every attempt.
  using Fill = std::function<void(std::int64_t column, int attempt)>;

  // In place, rows >= columns. Columns that depend on earlier ones, to the
  // precision of a float, become zero, or what `fill` makes of them. Columns
  // are divided by their length plus `epsilon`. False: something is not finite,
  // and all columns are NaN.
  bool apply(const Columns& columns, double epsilon = 0, const Fill& fill = {});

 private:
  enum class Pass { kDone, kAgain, kNotFinite };

  Pass pass(const Columns& columns, int attempt, const Fill& fill);
  bool measure(const Columns& columns);
  void combine(const Columns& columns);

  // The Gram matrix of the columns, and the factors that make the basis from
  // them: upper triangles, row by row.
  std::vector<double> gram_;
  std::vector<double> factors_;
  // Lengths of columns without the part that earlier ones explain, in the first
  // pass.
  std::vector<double> lengths_;
  // Squared lengths of the columns given.
  std::vector<double> wholes_;
  std::vector<double> row_;
};

}  // namespace gradwire::linalg
