#pragma once

// Private to gradwire: a parameter of a ZeroRedundancyOptimizer on one rank.

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/comm/spread.h"
#include "gradwire/optim/optimizer_state.h"
#include "gradwire/plan/shards.h"

namespace gradwire {

// The memory of a tensor whose elements are dense, as one dimension.
at::Tensor flat_memory(const at::Tensor& tensor);

class ZeroParameter {
 public:
  // Throws Error for a parameter that cannot be sliced.
  ZeroParameter(std::string name, at::Tensor tensor, std::size_t group);

  const std::string& name() const {
    return name_;
  }
  const at::Tensor& tensor() const {
    return tensor_;
  }
  // The parameter group that it is in.
  std::size_t group() const {
    return group_;
  }
  const std::shared_ptr<SpreadTarget>& target() const {
    return target_;
  }

  // This rank steps that run of it. `whole`: in the parameter's own shape.
  // `full`: in memory of its own, the parameter being what all ranks have of
  // it.
  void own(const plan::Run& run, bool whole, bool full);
  const std::optional<plan::Run>& run() const {
    return run_;
  }
  // What the optimizer of the slices has as its parameter; undefined where this
  // rank owns nothing of it.
  const at::Tensor& slice() const {
    return slice_;
  }
  bool keeps_full() const {
    return full_;
  }
  // What is kept in full is what all ranks have.
  void reset_full();

  // Before a step: the program may have given it other memory or values. Throws
  // Error where it has other sizes.
  void follow();
  // The slice has been written by this rank or has come from the others.
  void note_written();

  // Throws Error for a gradient that cannot be sliced.
  void check_gradient() const;
  // The slice gets its part of `gradient`, which has the parameter's sizes;
  // undefined: none.
  void set_gradient(const at::Tensor& gradient);

  // The state of the slice, or of the whole parameter, as it is kept: what has
  // a number for each element as one dimension, in the order of the parameter's
  // memory.
  ParameterState kept_of_slice(const ParameterState& state) const;
  ParameterState kept_of_whole(const ParameterState& state) const;
  // The reverse, in memory of its own.
  ParameterState for_slice(const ParameterState& kept) const;
  ParameterState for_whole(const ParameterState& kept) const;

 private:
  void attach();
  static at::Tensor laid_out(
      const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);
  static ParameterState shaped(
      const ParameterState& kept,
      at::IntArrayRef sizes,
      at::IntArrayRef strides);

  std::string name_;
  at::Tensor tensor_;
  std::size_t group_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  std::shared_ptr<SpreadTarget> target_;
  const void* data_ = nullptr;
  std::int64_t version_ = 0;

  std::optional<plan::Run> run_;
  bool whole_ = false;
  bool full_ = false;
  at::Tensor slice_;
};

}  // namespace gradwire
