#include "gradwire/linalg/thin_product.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <functional>
#include <random>
#include <vector>

#include "tests/support/golden.h"

namespace gradwire::linalg {
namespace {

using Floats = std::vector<float>;

Floats random_floats(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats floats(count);
  for (float& value : floats) {
    value = normal(random);
  }
  return floats;
}

struct Shape {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t rank;
};

// Tails of rows, columns and ranks; one large enough to be streamed.
const std::vector<Shape> kShapes{
    {0, 5, 2},
    {1, 1, 1},
    {3, 7, 2},
    {4, 16, 4},
    {9, 33, 5},
    {17, 100, 7},
    {100, 3, 3},
    {64, 64, 32},
    {1024, 1040, 4}};

struct Case {
  explicit Case(const Shape& shape)
      : shape(shape),
        values(random_floats(shape.rows * shape.columns, 1)),
        owed(random_floats(shape.rows * shape.columns, 2)),
        p(random_floats(shape.rows * shape.rank, 3)),
        q(random_floats(shape.columns * shape.rank, 4)) {}

  Sum sum(bool with_owed) const {
    return {
        values.data(),
        with_owed ? owed.data() : nullptr,
        shape.rows,
        shape.columns};
  }
  double m(std::int64_t i, std::int64_t j, bool with_owed) const {
    const std::int64_t at = i * shape.columns + j;
    return static_cast<double>(values[at]) + (with_owed ? owed[at] : 0);
  }

  Shape shape;
  Floats values;
  Floats owed;
  Floats p;
  Floats q;
};

void on_every_kind_of_vectors(const std::function<void()>& check) {
  hwy::SetSupportedTargetsForTest(0);
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
}

void for_all_cases(const std::function<void(const Case&, bool)>& check) {
  for (const Shape& shape : kShapes) {
    const Case c(shape);
    for (const bool with_owed : {false, true}) {
      SCOPED_TRACE(
          testing::Message()
          << shape.rows << " x " << shape.columns << ", rank " << shape.rank
          << (with_owed ? ", owed" : ""));
      check(c, with_owed);
    }
  }
}

// Of sums of so many products of numbers about as large as 1: partial sums grow
// with the root, and so do the roundings of each; the worst of many sums is
// some times as far off as the typical one.
double tolerance(std::int64_t terms) {
  constexpr double kRounding = 6e-8;
  constexpr double kWorstOfMany = 8;
  return kWorstOfMany * kRounding * static_cast<double>(terms + 4);
}

TEST(ThinProduct, TimesTransposed) {
  on_every_kind_of_vectors([] {
    for_all_cases([](const Case& c, bool with_owed) {
      const auto [rows, columns, rank] = c.shape;
      Floats p(rows * rank, -1);
      times_transposed(c.sum(with_owed), c.q.data(), rank, p.data());
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t k = 0; k < rank; ++k) {
          double sum = 0;
          for (std::int64_t j = 0; j < columns; ++j) {
            sum += c.m(i, j, with_owed) * c.q[k * columns + j];
          }
          ASSERT_NEAR(p[i * rank + k], sum, tolerance(columns));
        }
      }
    });
  });
}

TEST(ThinProduct, AddTransposedTimes) {
  on_every_kind_of_vectors([] {
    for_all_cases([](const Case& c, bool with_owed) {
      const auto [rows, columns, rank] = c.shape;
      Floats q = c.q;
      add_transposed_times(c.sum(with_owed), c.p.data(), rank, q.data());
      std::vector<double> expected(c.q.begin(), c.q.end());
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t k = 0; k < rank; ++k) {
          for (std::int64_t j = 0; j < columns; ++j) {
            expected[k * columns + j] +=
                c.p[i * rank + k] * c.m(i, j, with_owed);
          }
        }
      }
      for (std::size_t at = 0; at < q.size(); ++at) {
        ASSERT_NEAR(q[at], expected[at], tolerance(rows + 1));
      }
    });
  });
}

// Bit for bit, in place or not: products added up in order.
TEST(ThinProduct, Expand) {
  on_every_kind_of_vectors([] {
    for_all_cases([](const Case& c, bool with_owed) {
      const auto [rows, columns, rank] = c.shape;
      Floats product(rows * columns);
      Floats expected_left(rows * columns);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
          float sum = 0;
          for (std::int64_t k = 0; k < rank; ++k) {
            sum += c.p[i * rank + k] * c.q[k * columns + j];
          }
          const std::int64_t at = i * columns + j;
          product[at] = sum;
          const float m = with_owed ? c.values[at] + c.owed[at] : c.values[at];
          expected_left[at] = m - sum;
        }
      }
      Floats values = c.values;
      Floats left(rows * columns);
      Sum m = c.sum(with_owed);
      m.values = values.data();
      expand(m, c.p.data(), c.q.data(), rank, values.data(), left.data());
      EXPECT_EQ(values, product);
      EXPECT_EQ(left, expected_left);
      Floats elsewhere(rows * columns);
      expand(
          c.sum(with_owed),
          c.p.data(),
          c.q.data(),
          rank,
          elsewhere.data(),
          nullptr);
      EXPECT_EQ(elsewhere, product);
    });
  });
}

TEST(ThinProduct, SameBitsOnEveryProcessor) {
  on_every_kind_of_vectors([] {
    gradwire::test::Golden golden;
    for (const auto& [rows, columns, rank] : kShapes) {
      const Floats values = gradwire::test::golden_floats(rows * columns, 1);
      const Floats p = gradwire::test::golden_floats(rows * rank, 2);
      const Floats q = gradwire::test::golden_floats(columns * rank, 3);
      Floats product(values.size());
      Floats left(values.size());
      const Sum sum{values.data(), nullptr, rows, columns};
      expand(sum, p.data(), q.data(), rank, product.data(), left.data());
      golden.add(product);
      golden.add(left);
    }
    EXPECT_EQ(golden.text(), "65958501a02c12df");
  });
}

}  // namespace
}  // namespace gradwire::linalg
