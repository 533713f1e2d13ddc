#pragma once

// Private to gradwire: bases of the column spaces of tall matrices.

#include <ATen/core/Tensor.h>

#include <functional>

namespace gradwire {

// Makes the columns of tall matrices orthonormal, as Gram-Schmidt would: column
// k stays in the span of columns 0 to k, with a positive factor.
//
// By way of the Gram matrix in double precision: columns of floats are summed
// up without loss, and what would be many passes over a column are a few over
// all of them. Columns that depend on those before them, up to the precision of
// a float, become zero, or whatever `fill` puts in their place. NaN and
// infinity make all columns of their matrix NaN. Keeps its buffers. Not thread
// safe.
class Orthogonaliser {
 public:
  // Gets the numbers of matrix and column, and a vector to write another one
  // to.
  using Fill = std::function<void(std::int64_t, std::int64_t, at::Tensor)>;

  // count x rows x columns of floats, in place, rows >= columns. Columns are
  // divided by their length plus `epsilon`.
  void apply(at::Tensor matrices, double epsilon = 0, const Fill& fill = {});

 private:
  // One Gram-Schmidt of all matrices, as far as it can be told from their Gram
  // matrices. False: it takes another one to be orthogonal.
  bool pass(double epsilon, const Fill& fill);

  at::Tensor columns_;
  at::Tensor next_;
  at::Tensor gram_;
  at::Tensor factors_;
};

}  // namespace gradwire
