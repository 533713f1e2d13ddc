#pragma once

// Private to gradwire: bases of what the columns of tall matrices span.

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
// By way of the Gram matrix in double precision: columns of floats are summed
// up without loss, and what would be many passes over a column are two over all
// of them, and two more for columns that are nearly dependent. Bits do not
// depend on the processor. Keeps its buffers. Not thread safe.
class Orthogonaliser {
 public:
  // Writes other floats to a column; asked once more, other ones again.
  using Fill = std::function<void(std::int64_t column, int attempt)>;

  // In place, rows >= columns. Columns that depend on those before them, up to
  // the precision of a float, become zero, or what `fill` makes of them. They
  // are divided by their length plus `epsilon`. False: something is not finite,
  // and all columns are NaN.
  bool apply(const Columns& columns, double epsilon = 0, const Fill& fill = {});

 private:
  enum class Pass { kDone, kAgain, kNotFinite };

  Pass pass(const Columns& columns, int attempt, const Fill& fill);
  bool measure(const Columns& columns);
  void combine(const Columns& columns);

  // Of the columns given, and how to make the basis from them: upper triangles,
  // row by row.
  std::vector<double> gram_;
  std::vector<double> factors_;
  // Of columns without what those before them explain, in the first pass.
  std::vector<double> lengths_;
  // Of the columns given, squared.
  std::vector<double> wholes_;
  std::vector<double> row_;
};

}  // namespace gradwire::linalg
