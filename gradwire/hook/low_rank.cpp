#include "gradwire/hook/low_rank.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/add.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "gradwire/base/text.h"

namespace gradwire {
namespace {

at::Tensor slice(
    const at::Tensor& flat, std::int64_t begin, at::IntArrayRef sizes) {
  return flat.narrow(0, begin, c10::multiply_integers(sizes)).view(sizes);
}

bool all_finite(const at::Tensor& tensor) {
  return tensor.isfinite().all().item<bool>();
}

}  // namespace

LowRank::LowRank(
    const Bucket& bucket, const PowerSgdOptions& options, Matrices matrices)
    : options_(options),
      matrices_(matrices),
      type_(bucket.buffer().scalar_type()) {
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    names_.push_back(bucket.parameter(i).name);
    elems_.push_back(bucket.elems(i));
  }
  if (matrices == Matrices::kParameters) {
    plan_parameters(bucket);
  } else {
    plan_bucket();
  }
  const auto wire_type = at::TensorOptions().dtype(type_);
  first_.wire = at::zeros({p_elems_ + rest_elems_}, wire_type);
  first_.floats = type_ == at::kFloat ? first_.wire.narrow(0, 0, p_elems_)
                                      : at::zeros({p_elems_}, at::kFloat);
  if (type_ != at::kFloat) {
    second_.wire = at::zeros({q_elems_}, wire_type);
  }
  if (!options_.error_feedback || matrices == Matrices::kBucket) {
    own_m_ = at::zeros({m_elems_}, at::kFloat);
  }
}

void LowRank::plan_parameters(const Bucket& bucket) {
  std::int64_t from = 0;
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    const at::Tensor& tensor = bucket.parameter(i).tensor;
    const std::int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 0;
    const std::int64_t columns = rows > 0 ? tensor.numel() / rows : 0;
    const std::int64_t rank = std::min({rows, columns, options_.rank});
    const bool shrinks = static_cast<double>((rows + columns) * rank) *
                             options_.min_compression_rate <
                         static_cast<double>(rows * columns);
    if (shrinks && !tensor.is_complex()) {
      add_matrix(i, rows, columns, rank);
    } else {
      rest_.push_back({from, elems_[i]});
      rest_elems_ += elems_[i];
    }
    from += elems_[i];
  }
  for (Shape& shape : shapes_) {
    shape.m_begin = m_elems_;
    shape.p_begin = p_elems_;
    shape.q_begin = q_elems_;
    m_elems_ += shape.count() * shape.rows * shape.columns;
    p_elems_ += shape.count() * shape.rows * shape.rank;
    q_elems_ += shape.count() * shape.columns * shape.rank;
  }
}

void LowRank::add_matrix(
    std::size_t member,
    std::int64_t rows,
    std::int64_t columns,
    std::int64_t rank) {
  const auto known = std::ranges::find_if(shapes_, [&](const Shape& shape) {
    return options_.batch && shape.rows == rows && shape.columns == columns;
  });
  if (known != shapes_.end()) {
    known->members.push_back(member);
  } else {
    shapes_.push_back(
        {.rows = rows, .columns = columns, .rank = rank, .members = {member}});
  }
}

void LowRank::plan_bucket() {
  std::int64_t elems = 0;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    elems += elems_[i];
    bucket_name_ += names_[i] + " ";
  }
  auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(elems)));
  side += side * side < elems;
  if (side == 0) {
    return;
  }
  const std::int64_t rank = std::min(side, options_.rank);
  shapes_.push_back(
      {.rows = side, .columns = side, .rank = rank, .members = {0}});
  m_elems_ = side * side;
  p_elems_ = q_elems_ = side * rank;
}

bool LowRank::fits(const Bucket& bucket) const {
  if (bucket.size() != names_.size() ||
      bucket.buffer().scalar_type() != type_) {
    return false;
  }
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    if (bucket.parameter(i).name != names_[i] || bucket.elems(i) != elems_[i]) {
      return false;
    }
  }
  return true;
}

ParameterMemory::Entries LowRank::residual_entries() const {
  ParameterMemory::Entries entries;
  if (matrices_ == Matrices::kBucket) {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      entries.push_back({names_[i], elems_[i]});
    }
    return entries;
  }
  for (const Shape& shape : shapes_) {
    for (const std::size_t member : shape.members) {
      entries.push_back({names_[member], elems_[member]});
    }
  }
  return entries;
}

ParameterMemory::Entries LowRank::basis_entries() const {
  ParameterMemory::Entries entries;
  for (const Shape& shape : shapes_) {
    for (const std::size_t member : shape.members) {
      const bool whole = matrices_ == Matrices::kBucket;
      entries.push_back(
          {whole ? bucket_name_ : names_[member], shape.columns * shape.rank});
    }
  }
  return entries;
}

void LowRank::Message::pack() const {
  if (wire.scalar_type() != at::kFloat) {
    wire.narrow(0, 0, floats.numel()).copy_(floats);
  }
}

void LowRank::Message::unpack() const {
  if (wire.scalar_type() != at::kFloat) {
    floats.copy_(wire.narrow(0, 0, floats.numel()));
  }
}

at::Tensor LowRank::m(const Shape& shape) const {
  const at::Tensor& all = own_m_.defined() ? own_m_ : step_->residual.after;
  return slice(all, shape.m_begin, {shape.count(), shape.rows, shape.columns});
}

at::Tensor LowRank::p(const Shape& shape) const {
  return slice(
      first_.floats, shape.p_begin, {shape.count(), shape.rows, shape.rank});
}

at::Tensor LowRank::q(const Shape& shape) const {
  return slice(
      second_.floats,
      shape.q_begin,
      {shape.count(), shape.columns, shape.rank});
}

void LowRank::begin(Step step, int world) {
  step_ = std::move(step);
  world_ = world;
  second_.floats = step_->basis.after;
  if (type_ == at::kFloat) {
    second_.wire = second_.floats;
  }
  if (options_.warm_start) {
    second_.floats.copy_(step_->basis.before);
  } else {
    second_.floats.zero_();
  }
  for (const Shape& shape : shapes_) {
    draw_basis(shape);
    load(shape);
    at::Tensor product = p(shape);
    at::bmm_out(product, m(shape), q(shape));
  }
  first_.floats.mul_(1.0 / world_);
  first_.pack();
  const at::Tensor& buffer = step_->bucket.buffer();
  std::int64_t to = p_elems_;
  for (const Rest& rest : rest_) {
    first_.wire.narrow(0, to, rest.elems)
        .copy_(buffer.narrow(0, rest.from, rest.elems))
        .mul_(1.0 / world_);
    to += rest.elems;
  }
}

// Q orthonormal. Columns that it lacks are drawn: all of them at first, and
// what a gradient of lower rank has left empty. The same numbers on all ranks,
// and nobody else's generator moves.
void LowRank::draw_basis(const Shape& shape) {
  orthogonaliser_.apply(
      q(shape), 0, [&](std::int64_t matrix, std::int64_t k, at::Tensor column) {
        const bool whole = matrices_ == Matrices::kBucket;
        const std::string& name =
            whole ? bucket_name_ : names_[shape.members[matrix]];
        const auto key = fingerprint(
            concat(options_.seed, " ", step_->number, " ", k, " ", name));
        const auto generator = at::make_generator<at::CPUGeneratorImpl>(key);
        column.copy_(at::randn({shape.columns}, generator, at::kDouble));
      });
}

void LowRank::load(const Shape& shape) {
  const at::Tensor& before = step_->residual.before;
  at::Tensor all = m(shape);
  if (matrices_ == Matrices::kBucket) {
    const at::Tensor& buffer = step_->bucket.buffer();
    at::Tensor to = own_m_.narrow(0, 0, buffer.numel());
    to.copy_(buffer);
    if (before.defined()) {
      to.add_(before);
    }
    return;
  }
  for (std::int64_t k = 0; k < shape.count(); ++k) {
    const at::Tensor gradient = step_->bucket.gradient(shape.members[k]);
    at::Tensor to = all[k].view(gradient.sizes());
    if (!before.defined()) {
      to.copy_(gradient);
      continue;
    }
    const at::Tensor owed = slice(
        before,
        shape.m_begin + k * shape.rows * shape.columns,
        gradient.sizes());
    if (gradient.scalar_type() == at::kFloat) {
      at::add_out(to, gradient, owed);
    } else {
      to.copy_(gradient).add_(owed);
    }
  }
}

void LowRank::turn() {
  first_.unpack();
  for (const Shape& shape : shapes_) {
    orthogonaliser_.apply(p(shape), options_.epsilon / world_);
    at::Tensor product = q(shape);
    at::bmm_out(product, m(shape).transpose(1, 2), p(shape));
  }
  second_.floats.mul_(1.0 / world_);
  second_.pack();
}

bool LowRank::finish() {
  second_.unpack();
  for (const Shape& shape : shapes_) {
    store(shape);
  }
  const at::Tensor& buffer = step_->bucket.buffer();
  std::int64_t from = p_elems_;
  for (const Rest& rest : rest_) {
    buffer.narrow(0, rest.from, rest.elems)
        .copy_(first_.wire.narrow(0, from, rest.elems));
    from += rest.elems;
  }
  const bool finite = all_finite(first_.wire) && all_finite(second_.floats);
  step_.reset();
  return finite;
}

// What is lost is counted from what was stored, in the type of the gradients.
void LowRank::store(const Shape& shape) {
  const at::Tensor& after = step_->residual.after;
  const at::Tensor left = p(shape);
  const at::Tensor right = q(shape).transpose(1, 2);
  if (matrices_ == Matrices::kBucket) {
    const at::Tensor& buffer = step_->bucket.buffer();
    at::Tensor sent =
        at::bmm(left, right).flatten().narrow(0, 0, buffer.numel());
    buffer.copy_(sent);
    if (after.defined()) {
      at::Tensor lost = after;
      at::sub_out(lost, own_m_.narrow(0, 0, buffer.numel()), buffer);
    }
    return;
  }
  for (std::int64_t k = 0; k < shape.count(); ++k) {
    at::Tensor gradient = step_->bucket.gradient(shape.members[k]);
    if (gradient.scalar_type() == at::kFloat && gradient.is_contiguous()) {
      at::Tensor matrix = gradient.view({shape.rows, shape.columns});
      at::mm_out(matrix, left[k], right[k]);
    } else {
      gradient.copy_(at::mm(left[k], right[k]).view(gradient.sizes()));
    }
    if (after.defined()) {
      m(shape)[k].view(gradient.sizes()).sub_(gradient);
    }
  }
}

}  // namespace gradwire
