#pragma once

// Private to gradwire: the arithmetic of PowerSGD on one bucket.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/hook/bucket.h"
#include "gradwire/hook/orthogonal.h"
#include "gradwire/hook/parameter_memory.h"
#include "gradwire/hook/powersgd_options.h"

namespace gradwire {

// The matrices of a bucket as products P Q', with as few columns as asked for,
// and the rest of it. A step is
//
//   begin()   M = gradient + residual, P = M Q          first() is averaged
//   turn()    P made orthonormal, Q = M' P              second() is averaged
//   finish()  gradient = P Q', residual = M - P Q'
//
// where averaging is the caller's. Planned once for a bucket; buffers are kept.
// One step at a time. Not thread safe.
class LowRank {
 public:
  // What is taken for a matrix: every parameter, with its first dimension as
  // rows, if it shrinks enough; or all of the bucket, filled up to a square.
  enum class Matrices { kParameters, kBucket };

  LowRank(
      const Bucket& bucket, const PowerSgdOptions& options, Matrices matrices);

  // What to remember of which parameter: M's residual, and Q.
  ParameterMemory::Entries residual_entries() const;
  ParameterMemory::Entries basis_entries() const;
  bool fits(const Bucket& bucket) const;

  struct Step {
    Bucket bucket;
    // Undefined tensors where there is no error feedback.
    ParameterMemory::Floats residual = {};
    ParameterMemory::Floats basis = {};
    std::uint64_t number = 0;
  };
  // `world`: how many ranks; what is averaged is divided by it beforehand.
  void begin(Step step, int world);
  void turn();
  // False when something in it is not finite.
  bool finish();

  // What all ranks average, in the type of the gradients. May be empty.
  const at::Tensor& first() const {
    return first_.wire;
  }
  const at::Tensor& second() const {
    return second_.wire;
  }

 private:
  // Matrices of one shape.
  struct Shape {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::int64_t rank = 0;
    // Which parameters of the bucket.
    std::vector<std::size_t> members;
    // Where their floats begin among all M, P and Q.
    std::int64_t m_begin = 0;
    std::int64_t p_begin = 0;
    std::int64_t q_begin = 0;

    std::int64_t count() const {
      return static_cast<std::int64_t>(members.size());
    }
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
  void add_matrix(
      std::size_t member,
      std::int64_t rows,
      std::int64_t columns,
      std::int64_t rank);
  void load(const Shape& shape);
  void store(const Shape& shape);
  void draw_basis(const Shape& shape);
  at::Tensor m(const Shape& shape) const;
  at::Tensor p(const Shape& shape) const;
  at::Tensor q(const Shape& shape) const;

  PowerSgdOptions options_;
  Matrices matrices_;
  std::vector<std::string> names_;
  std::vector<std::int64_t> elems_;
  at::ScalarType type_;
  std::vector<Shape> shapes_;
  std::vector<Rest> rest_;
  std::int64_t m_elems_ = 0;
  std::int64_t p_elems_ = 0;
  std::int64_t q_elems_ = 0;
  std::int64_t rest_elems_ = 0;
  // All P, with the rest behind; all Q.
  Message first_;
  Message second_;
  // M, where it is not the residual to be.
  at::Tensor own_m_;
  // What Q of a whole bucket is remembered by.
  std::string bucket_name_;
  Orthogonaliser orthogonaliser_;
  std::optional<Step> step_;
  int world_ = 1;
};

}  // namespace gradwire
