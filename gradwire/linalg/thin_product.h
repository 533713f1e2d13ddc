#pragma once

// Private to gradwire: products of large matrices with thin ones, at the speed
// of memory. A BLAS packs the large matrix first, which costs more than the
// product (docs/design/decisions.md).

#include <cstdint>

namespace gradwire::linalg {

// The sum of two matrices, each row by row without gaps.
struct Sum {
  const float* values = nullptr;
  // Null: nothing.
  const float* owed = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// All matrices are stored row by row without gaps. One thread; nothing is
// allocated.

// p (rows x rank) = m q', where q is rank x columns.
void times_transposed(
    const Sum& m, const float* q, std::int64_t rank, float* p);

// q (rank x columns) += p' m, where p is rows x rank.
void add_transposed_times(
    const Sum& m, const float* p, std::int64_t rank, float* q);

// product = p q, and left = m - product where `left` is not null. The product
// may take the place of m.values. Bits do not depend on the processor.
void expand(
    const Sum& m,
    const float* p,
    const float* q,
    std::int64_t rank,
    float* product,
    float* left);

}  // namespace gradwire::linalg
