#pragma once

// Private to gradwire: the arithmetic of PowerSGD on one bucket.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/hook/bucket.h"
#include "gradwire/hook/hook.h"
#include "gradwire/hook/parameter_memory.h"
#include "gradwire/hook/powersgd_options.h"
#include "gradwire/linalg/orthogonal.h"
#include "gradwire/linalg/thin_product.h"

namespace gradwire {

// The matrices of a bucket as products P Q, with as few columns of P and rows
// of Q as asked for, and the rest of the bucket. M is gradient + residual. A
// step is
//
//   project(kLeft)    P = M Q', where Q was made orthonormal
//   project(kRight)   Q = P' M, where P was made orthonormal
//   finish()          gradient = P Q, residual = M - P Q
//
// where the caller averages what project() returns before it goes on; or
// several such pairs, or only one of the two. The rest travels with what is
// sent first. M is computed again each time it is needed and takes no memory.
// Planned once for a bucket; buffers are kept. One step at a time. Not thread
// safe.
class LowRank {
 public:
  // What is taken for a matrix: every parameter, with its first dimension as
  // rows; or all of the bucket, filled up to a square. Either only if it
  // shrinks enough.
  enum class Matrices { kParameters, kBucket };
  enum class Side { kLeft, kRight };

  LowRank(
      const Bucket& bucket, const PowerSgdOptions& options, Matrices matrices);

  // What to remember of which parameter: the residual, and P or Q.
  ParameterMemory::Entries residual_entries() const;
  ParameterMemory::Entries basis_entries() const;
  bool fits(const Bucket& bucket) const;
  // Parameters that are sent in full, and so remember nothing.
  const std::vector<std::size_t>& in_full() const {
    return in_full_;
  }

  struct Step {
    Bucket bucket;
    // Undefined tensors where there is no error feedback.
    ParameterMemory::Floats residual = {};
    ParameterMemory::Floats basis = {};
    std::uint64_t number = 0;
    // What is drawn, and not taken from memory.
    bool fresh = false;
    // Whether finish() shall measure the residuals.
    bool measure = false;
  };
  // `world`: how many ranks; what is averaged is divided by it beforehand.
  void begin(Step step, int world);
  // What all ranks average, in the type of the gradients. May be empty.
  at::Tensor project(Side side);
  // False when something in it is not finite.
  bool finish();

  // Whether residuals have been measured.
  bool measured() const {
    return measured_;
  }
  // What the last step sent of which parameter.
  std::vector<ParameterReport> report() const;

 private:
  // Matrices of one shape.
  struct Shape {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::int64_t rank = 0;
    // Which parameters of the bucket.
    std::vector<std::size_t> members;
    // Where what they have begins among all residuals, P, Q, and memories.
    std::int64_t m_begin = 0;
    std::int64_t p_begin = 0;
    std::int64_t q_begin = 0;
    std::int64_t basis_begin = 0;
    std::int64_t basis_elems = 0;

    std::int64_t count() const {
      return static_cast<std::int64_t>(members.size());
    }
  };
  // Some rows of one matrix.
  struct Rows {
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::int64_t columns = 0;
    // The elements there are: fewer where a bucket ends within the last row.
    std::int64_t elems = 0;
    at::Tensor gradient = {};
    ParameterMemory::Floats residual = {};
    // Products can work where the elements lie.
    bool in_place = false;
  };
  // A run of the buffer that is sent in full.
  struct Rest {
    std::int64_t from = 0;
    std::int64_t elems = 0;
  };
  // Floats, and what travels: they themselves where gradients are floats, and
  // what goes with them behind.
  struct Message {
    at::Tensor floats;
    at::Tensor wire;

    void pack() const;
    void unpack() const;
  };

  void plan_parameters(const Bucket& bucket);
  void plan_bucket();
  bool shrinks(
      std::int64_t rows, std::int64_t columns, std::int64_t elems) const;
  std::int64_t rank_of(std::int64_t rows, std::int64_t columns) const;
  void add_matrix(std::size_t member, std::int64_t rows, std::int64_t columns);
  void plan_memory();
  Message make_message(std::int64_t elems, bool may_be_first) const;
  Message& message(Side side) {
    return side == Side::kLeft ? left_ : right_;
  }
  const std::string& name_of(const Shape& shape, std::int64_t matrix) const;

  float* p(const Shape& shape, std::int64_t matrix) const;
  float* q(const Shape& shape, std::int64_t matrix) const;
  linalg::Columns columns_of(
      const Shape& shape, std::int64_t matrix, Side side) const;

  template <class Work>
  void each_matrix(const Work& work) const;
  // Calls work(rows) for all rows of a matrix, some at a time.
  template <class Work>
  void each_rows(
      const Shape& shape, std::int64_t matrix, const Work& work) const;
  Rows rows_of(
      const Shape& shape,
      std::int64_t matrix,
      std::int64_t first,
      std::int64_t count) const;
  at::Tensor strided_rows(
      const at::Tensor& flat,
      const Shape& shape,
      std::int64_t matrix,
      std::int64_t first,
      std::int64_t count) const;
  linalg::Sum load(const Rows& rows);
  void store(
      const Rows& rows, const float* p, const float* q, std::int64_t rank);

  void recall(Side side);
  void remember();
  void make_basis(Side side, bool from_memory);
  void draw(
      const std::string& name,
      const linalg::Columns& columns,
      std::int64_t column,
      int attempt) const;
  void put_rest(const at::Tensor& wire);
  void take_rest(const at::Tensor& wire);
  bool may_overflow() const;
  double norm_of(const at::Tensor& flat);
  void measure();

  PowerSgdOptions options_;
  Matrices matrices_;
  std::vector<std::string> names_;
  std::vector<std::int64_t> elems_;
  // Type and device of the gradients.
  at::TensorOptions gradients_;
  std::vector<Shape> shapes_;
  std::vector<Rest> rest_;
  std::vector<std::size_t> in_full_;
  std::int64_t p_elems_ = 0;
  std::int64_t q_elems_ = 0;
  std::int64_t rest_elems_ = 0;
  // All P and all Q.
  Message left_;
  Message right_;
  // Rows that products cannot work on in place, and what was sent of them.
  at::Tensor loaded_;
  at::Tensor scratch_;
  // What Q of a whole bucket is remembered by.
  std::string bucket_name_;
  linalg::Orthogonaliser orthogonaliser_;

  std::optional<Step> step_;
  int world_ = 1;
  // What was sent first and last in this step.
  std::optional<Side> first_;
  Side last_ = Side::kLeft;
  bool finite_ = true;
  bool measured_ = false;
  // By parameter, as last measured.
  std::vector<double> residual_norms_;
};

}  // namespace gradwire
