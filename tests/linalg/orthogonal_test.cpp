#include "gradwire/linalg/orthogonal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/golden.h"

namespace gradwire::linalg {
namespace {

// A tall matrix by columns.
struct Tall {
  std::int64_t rows;
  std::int64_t count;
  std::vector<float> data;

  Tall(std::int64_t rows, std::int64_t count, unsigned seed)
      : rows(rows), count(count), data(rows * count) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& value : data) {
      value = normal(random);
    }
  }
  Columns columns() {
    return {data.data(), rows, count, 1, rows};
  }
  float& at(std::int64_t row, std::int64_t column) {
    return data[column * rows + row];
  }
  double product(std::int64_t a, std::int64_t b) {
    double sum = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      sum += static_cast<double>(at(i, a)) * at(i, b);
    }
    return sum;
  }
  void scale(std::int64_t column, float by) {
    for (std::int64_t i = 0; i < rows; ++i) {
      at(i, column) *= by;
    }
  }
  void expect_orthonormal(double tolerance = 2e-6) {
    for (std::int64_t a = 0; a < count; ++a) {
      for (std::int64_t b = a; b < count; ++b) {
        EXPECT_NEAR(product(a, b), a == b ? 1 : 0, tolerance) << a << " " << b;
      }
    }
  }
};

TEST(Orthogonal, ColumnsSpanTheSameSpaceInOrder) {
  for (const auto& [rows, count] :
       std::vector<std::pair<int, int>>{{1, 1}, {7, 7}, {50, 3}, {3000, 8}}) {
    Tall matrix(rows, count, rows);
    Tall given = matrix;
    EXPECT_TRUE(Orthogonaliser().apply(matrix.columns()));
    matrix.expect_orthonormal();
    for (int k = 0; k < count; ++k) {
      // Column k of what was given, from columns 0 to k of the basis.
      double explained = 0;
      for (int i = 0; i <= k; ++i) {
        double part = 0;
        for (int row = 0; row < rows; ++row) {
          part += static_cast<double>(given.at(row, k)) * matrix.at(row, i);
        }
        explained += part * part;
        EXPECT_TRUE(i < k || part > 0);
      }
      EXPECT_NEAR(explained / given.product(k, k), 1, 1e-5);
    }
  }
}

TEST(Orthogonal, RowsMayComeFirst) {
  Tall by_columns(40, 3, 5);
  std::vector<float> by_rows(40 * 3);
  for (int i = 0; i < 40; ++i) {
    for (int k = 0; k < 3; ++k) {
      by_rows[3 * i + k] = by_columns.at(i, k);
    }
  }
  Orthogonaliser().apply(by_columns.columns());
  Orthogonaliser().apply({by_rows.data(), 40, 3, 3, 1});
  for (int i = 0; i < 40; ++i) {
    for (int k = 0; k < 3; ++k) {
      EXPECT_EQ(by_rows[3 * i + k], by_columns.at(i, k));
    }
  }
}

TEST(Orthogonal, ScaleDoesNotMatter) {
  for (const float scale : {1e-30f, 1e-40f, 1e30f}) {
    Tall matrix(100, 4, 3);
    for (int k = 0; k < 4; ++k) {
      matrix.scale(k, k % 2 == 0 ? scale : 1.0f);
    }
    EXPECT_TRUE(Orthogonaliser().apply(matrix.columns()));
    // Subnormal floats have few digits, but they are a direction.
    matrix.expect_orthonormal();
  }
}

TEST(Orthogonal, NearlyDependentColumnsBecomeOrthogonal) {
  for (const float share : {1e-1f, 1e-3f, 1e-4f, 1e-5f}) {
    Tall matrix(500, 4, 9);
    for (int k = 1; k < 4; ++k) {
      for (int i = 0; i < 500; ++i) {
        matrix.at(i, k) = matrix.at(i, 0) + share * matrix.at(i, k);
      }
    }
    EXPECT_TRUE(Orthogonaliser().apply(matrix.columns()));
    matrix.expect_orthonormal();
  }
}

TEST(Orthogonal, DependentColumnsBecomeZero) {
  Tall matrix(60, 4, 2);
  for (int i = 0; i < 60; ++i) {
    matrix.at(i, 1) = -3 * matrix.at(i, 0);
    matrix.at(i, 3) = 0;
  }
  EXPECT_TRUE(Orthogonaliser().apply(matrix.columns()));
  EXPECT_EQ(matrix.product(1, 1), 0);
  EXPECT_EQ(matrix.product(3, 3), 0);
  EXPECT_NEAR(matrix.product(0, 0), 1, 1e-6);
  EXPECT_NEAR(matrix.product(2, 2), 1, 1e-6);
  EXPECT_NEAR(matrix.product(0, 2), 0, 1e-6);
}

TEST(Orthogonal, GapsAreFilled) {
  Tall matrix(60, 4, 2);
  for (int i = 0; i < 60; ++i) {
    matrix.at(i, 1) = matrix.at(i, 0);
    matrix.at(i, 2) = 0;
  }
  std::vector<int> attempts;
  EXPECT_TRUE(Orthogonaliser().apply(
      matrix.columns(), 0, [&](std::int64_t column, int attempt) {
        // The first try is of no use: it is what column 0 is already.
        const Tall other(60, 1, attempt == 0 ? 2 : 70 + column);
        std::ranges::copy(other.data, &matrix.at(0, column));
        attempts.push_back(attempt);
      }));
  matrix.expect_orthonormal();
  EXPECT_EQ(attempts, (std::vector<int>{0, 0, 1, 1}));
}

TEST(Orthogonal, WhatIsNotFiniteMakesAllNaN) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    Tall matrix(20, 3, 1);
    matrix.at(5, 1) = bad;
    EXPECT_FALSE(Orthogonaliser().apply(matrix.columns()));
    for (const float value : matrix.data) {
      EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(Orthogonal, EpsilonShortensSmallColumns) {
  for (const bool dependent : {false, true}) {
    Tall matrix(100, 2, 4);
    Orthogonaliser().apply(matrix.columns());
    // Lengths 3 and 0.001 without what the first explains, the second time
    // hidden in a larger one, which takes two passes.
    for (int i = 0; i < 100; ++i) {
      matrix.at(i, 1) = 0.001f * matrix.at(i, 1) +
                        (dependent ? 2.0f * matrix.at(i, 0) : 0.0f);
      matrix.at(i, 0) *= 3;
    }
    EXPECT_TRUE(Orthogonaliser().apply(matrix.columns(), 0.001));
    EXPECT_NEAR(std::sqrt(matrix.product(0, 0)), 3 / 3.001, 1e-5);
    EXPECT_NEAR(std::sqrt(matrix.product(1, 1)), 0.5, 1e-3);
  }
}

// Independent columns, and columns that take two passes.
TEST(Orthogonal, SameBitsOnEveryProcessor) {
  gradwire::test::Golden golden;
  for (const auto& [rows, count] :
       std::vector<std::pair<int, int>>{{1, 1}, {7, 7}, {50, 3}, {1000, 16}}) {
    Tall matrix(rows, count, 0);
    matrix.data = gradwire::test::golden_floats(rows * count, rows);
    for (int i = 0; i < rows && count == 3; ++i) {
      matrix.at(i, 2) = matrix.at(i, 1) + matrix.at(i, 2) / 65536;
    }
    EXPECT_TRUE(Orthogonaliser().apply(matrix.columns(), 1e-3));
    golden.add(matrix.data);
  }
  EXPECT_EQ(golden.text(), "599b1c36079611fe");
}

}  // namespace
}  // namespace gradwire::linalg
