#include "gradwire/linalg/thin_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/linalg/thin_product.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace gradwire::linalg::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Floats = hn::Vec<Tag>;

// Rows at a time: they share what is loaded of the thin matrix.
constexpr std::int64_t kRows = 4;
// Columns of the thin matrix at a time: sums that fit into registers.
constexpr std::int64_t kRanks = 4;
// Remainders of at least this many elements are written past the caches.
constexpr std::int64_t kStreamElems = std::int64_t{1} << 20;

// Some consecutive rows of a sum.
template <bool kOwed>
struct Rows {
  const float* values;
  const float* owed;
  std::int64_t columns;

  HWY_INLINE Rows(const Sum& m, std::int64_t first)
      : values(m.values + first * m.columns),
        owed(kOwed ? m.owed + first * m.columns : nullptr),
        columns(m.columns) {}

  HWY_INLINE Floats vector(std::int64_t row, std::int64_t column) const {
    const Tag d;
    const std::int64_t at = row * columns + column;
    const Floats v = hn::LoadU(d, values + at);
    if constexpr (kOwed) {
      return hn::Add(v, hn::LoadU(d, owed + at));
    }
    return v;
  }
  HWY_INLINE float one(std::int64_t row, std::int64_t column) const {
    const std::int64_t at = row * columns + column;
    return kOwed ? values[at] + owed[at] : values[at];
  }
};

HWY_INLINE std::int64_t whole_vectors(std::int64_t columns) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Tag()));
  return columns / lanes * lanes;
}

// Both overloads work on kCount rows of m and of p, and on kSums columns of p,
// which are rows of q.
template <bool kOwed, std::int64_t kCount, std::int64_t kSums>
HWY_INLINE void product_tile(
    const Rows<kOwed>& m, float* p, const float* q, std::int64_t rank) {
  const Tag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  Floats sums[kCount][kSums];
  for (std::int64_t i = 0; i < kCount; ++i) {
    for (std::int64_t k = 0; k < kSums; ++k) {
      sums[i][k] = hn::Zero(d);
    }
  }
  const std::int64_t whole = whole_vectors(m.columns);
  for (std::int64_t j = 0; j < whole; j += lanes) {
    Floats basis[kSums];
    for (std::int64_t k = 0; k < kSums; ++k) {
      basis[k] = hn::LoadU(d, q + k * m.columns + j);
    }
    for (std::int64_t i = 0; i < kCount; ++i) {
      const Floats v = m.vector(i, j);
      for (std::int64_t k = 0; k < kSums; ++k) {
        sums[i][k] = hn::MulAdd(v, basis[k], sums[i][k]);
      }
    }
  }
  for (std::int64_t i = 0; i < kCount; ++i) {
    for (std::int64_t k = 0; k < kSums; ++k) {
      float sum = hn::GetLane(hn::SumOfLanes(d, sums[i][k]));
      for (std::int64_t j = whole; j < m.columns; ++j) {
        sum += m.one(i, j) * q[k * m.columns + j];
      }
      p[i * rank + k] = sum;
    }
  }
}

template <bool kOwed, std::int64_t kCount, std::int64_t kSums>
HWY_INLINE void product_tile(
    const Rows<kOwed>& m, const float* p, float* q, std::int64_t rank) {
  const Tag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = whole_vectors(m.columns);
  for (std::int64_t j = 0; j < whole; j += lanes) {
    Floats sums[kSums];
    for (std::int64_t k = 0; k < kSums; ++k) {
      sums[k] = hn::LoadU(d, q + k * m.columns + j);
    }
    for (std::int64_t i = 0; i < kCount; ++i) {
      const Floats v = m.vector(i, j);
      for (std::int64_t k = 0; k < kSums; ++k) {
        sums[k] = hn::MulAdd(hn::Set(d, p[i * rank + k]), v, sums[k]);
      }
    }
    for (std::int64_t k = 0; k < kSums; ++k) {
      hn::StoreU(sums[k], d, q + k * m.columns + j);
    }
  }
  for (std::int64_t j = whole; j < m.columns; ++j) {
    for (std::int64_t i = 0; i < kCount; ++i) {
      const float v = m.one(i, j);
      for (std::int64_t k = 0; k < kSums; ++k) {
        q[k * m.columns + j] += p[i * rank + k] * v;
      }
    }
  }
}

// What an expansion writes.
struct Output {
  float* product;
  float* left;
};

template <bool kOwed, bool kLeft, bool kStream, std::int64_t kCount>
HWY_INLINE void expand_tile(
    const Rows<kOwed>& m,
    const float* p,
    const float* q,
    std::int64_t rank,
    Output to) {
  const Tag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = whole_vectors(m.columns);
  for (std::int64_t j = 0; j < whole; j += lanes) {
    Floats sums[kCount];
    for (std::int64_t i = 0; i < kCount; ++i) {
      sums[i] = hn::Zero(d);
    }
    for (std::int64_t k = 0; k < rank; ++k) {
      const Floats basis = hn::LoadU(d, q + k * m.columns + j);
      for (std::int64_t i = 0; i < kCount; ++i) {
        // Not fused, so that every processor rounds the same way.
        const Floats part = hn::Mul(hn::Set(d, p[i * rank + k]), basis);
        sums[i] = hn::Add(sums[i], part);
      }
    }
    for (std::int64_t i = 0; i < kCount; ++i) {
      const std::int64_t at = i * m.columns + j;
      if constexpr (kLeft) {
        const Floats left = hn::Sub(m.vector(i, j), sums[i]);
        if constexpr (kStream) {
          hn::Stream(left, d, to.left + at);
        } else {
          hn::StoreU(left, d, to.left + at);
        }
      }
      hn::StoreU(sums[i], d, to.product + at);
    }
  }
  for (std::int64_t i = 0; i < kCount; ++i) {
    for (std::int64_t j = whole; j < m.columns; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < rank; ++k) {
        sum += p[i * rank + k] * q[k * m.columns + j];
      }
      const std::int64_t at = i * m.columns + j;
      if constexpr (kLeft) {
        to.left[at] = m.one(i, j) - sum;
      }
      to.product[at] = sum;
    }
  }
}

// Calls work.run<count>(first) for all of them, kAtOnce at a time.
template <std::int64_t kAtOnce, class Work>
HWY_INLINE void in_tiles(std::int64_t all, const Work& work) {
  std::int64_t first = 0;
  for (; first + kAtOnce <= all; first += kAtOnce) {
    work.template run<kAtOnce>(first);
  }
  for (; first < all; ++first) {
    work.template run<1>(first);
  }
}

// Of P and Q, the one that is not const is written: this selects the product.
template <bool kOwed, std::int64_t kCount, class P, class Q>
struct ProductOfRows {
  Rows<kOwed> m;
  P* p;
  Q* q;
  std::int64_t rank;

  template <std::int64_t kSums>
  HWY_INLINE void run(std::int64_t first) const {
    product_tile<kOwed, kCount, kSums>(
        m, p + first, q + first * m.columns, rank);
  }
};

template <bool kOwed, class P, class Q>
struct Product {
  const Sum& m;
  P* p;
  Q* q;
  std::int64_t rank;

  template <std::int64_t kCount>
  HWY_INLINE void run(std::int64_t first) const {
    in_tiles<kRanks>(
        rank,
        ProductOfRows<kOwed, kCount, P, Q>{
            Rows<kOwed>(m, first), p + first * rank, q, rank});
  }
};

template <bool kOwed, bool kLeft, bool kStream>
struct Expand {
  const Sum& m;
  const float* p;
  const float* q;
  std::int64_t rank;
  Output to;

  template <std::int64_t kCount>
  HWY_INLINE void run(std::int64_t first) const {
    const std::int64_t at = first * m.columns;
    expand_tile<kOwed, kLeft, kStream, kCount>(
        Rows<kOwed>(m, first),
        p + first * rank,
        q,
        rank,
        {to.product + at, kLeft ? to.left + at : nullptr});
  }
};

template <class P, class Q>
HWY_INLINE void multiply(const Sum& m, P* p, Q* q, std::int64_t rank) {
  if (m.owed != nullptr) {
    in_tiles<kRows>(m.rows, Product<true, P, Q>{m, p, q, rank});
  } else {
    in_tiles<kRows>(m.rows, Product<false, P, Q>{m, p, q, rank});
  }
}

void find_p(const Sum& m, const float* q, std::int64_t rank, float* p) {
  multiply<float, const float>(m, p, q, rank);
}

void add_to_q(const Sum& m, const float* p, std::int64_t rank, float* q) {
  multiply<const float, float>(m, p, q, rank);
}

// Streamed vectors must be aligned to their size.
HWY_INLINE bool can_stream(const Sum& m, const float* left) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Tag()));
  return m.rows * m.columns >= kStreamElems && m.columns % lanes == 0 &&
         reinterpret_cast<std::uintptr_t>(left) % (lanes * sizeof(float)) == 0;
}

template <bool kOwed>
HWY_INLINE void expand_sum(
    const Sum& m,
    const float* p,
    const float* q,
    std::int64_t rank,
    Output to) {
  if (to.left == nullptr) {
    in_tiles<kRows>(m.rows, Expand<kOwed, false, false>{m, p, q, rank, to});
  } else if (can_stream(m, to.left)) {
    in_tiles<kRows>(m.rows, Expand<kOwed, true, true>{m, p, q, rank, to});
    hwy::FlushStream();
  } else {
    in_tiles<kRows>(m.rows, Expand<kOwed, true, false>{m, p, q, rank, to});
  }
}

void expand_all(
    const Sum& m,
    const float* p,
    const float* q,
    std::int64_t rank,
    float* product,
    float* left) {
  if (m.owed != nullptr) {
    expand_sum<true>(m, p, q, rank, {product, left});
  } else {
    expand_sum<false>(m, p, q, rank, {product, left});
  }
}

}  // namespace gradwire::linalg::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::linalg {
HWY_EXPORT(find_p);
HWY_EXPORT(add_to_q);
HWY_EXPORT(expand_all);

void times_transposed(
    const Sum& m, const float* q, std::int64_t rank, float* p) {
  HWY_DYNAMIC_DISPATCH(find_p)(m, q, rank, p);
}

void add_transposed_times(
    const Sum& m, const float* p, std::int64_t rank, float* q) {
  HWY_DYNAMIC_DISPATCH(add_to_q)(m, p, rank, q);
}

void expand(
    const Sum& m,
    const float* p,
    const float* q,
    std::int64_t rank,
    float* product,
    float* left) {
  HWY_DYNAMIC_DISPATCH(expand_all)(m, p, q, rank, product, left);
}
}  // namespace gradwire::linalg
#endif
