// What becomes of which part of a bucket.

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "gradwire/hook/low_rank.h"

namespace gradwire {
namespace {

// Rows that are not worked on in place pass through the second-level cache.
constexpr std::int64_t kScratchElems = std::int64_t{1} << 16;

}  // namespace

LowRank::LowRank(
    const Bucket& bucket, const PowerSgdOptions& options, Matrices matrices)
    : options_(options),
      matrices_(matrices),
      gradients_(bucket.buffer().options()) {
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    names_.push_back(bucket.parameter(i).name);
    elems_.push_back(bucket.elems(i));
  }
  if (matrices == Matrices::kParameters) {
    plan_parameters(bucket);
  } else {
    plan_bucket();
  }
  plan_memory();
  left_ = make_message(p_elems_, true);
  right_ = make_message(q_elems_, options_.alternate);
  std::int64_t scratch = 0;
  for (const Shape& shape : shapes_) {
    scratch = std::max(
        {scratch,
         shape.columns,
         std::min(kScratchElems, shape.rows * shape.columns)});
  }
  loaded_ = at::zeros({scratch}, gradients_.dtype(at::kFloat));
  scratch_ = at::zeros({scratch}, gradients_.dtype(at::kFloat));
  residual_norms_.assign(
      names_.size(), std::numeric_limits<double>::quiet_NaN());
}

std::int64_t LowRank::rank_of(std::int64_t rows, std::int64_t columns) const {
  return std::min({rows, columns, options_.rank});
}

bool LowRank::shrinks(
    std::int64_t rows, std::int64_t columns, std::int64_t elems) const {
  const auto sent =
      static_cast<double>((rows + columns) * rank_of(rows, columns));
  return sent * options_.min_compression_rate < static_cast<double>(elems);
}

void LowRank::plan_parameters(const Bucket& bucket) {
  std::int64_t from = 0;
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    const at::Tensor& tensor = bucket.parameter(i).tensor;
    const std::int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 0;
    const std::int64_t columns = rows > 0 ? tensor.numel() / rows : 0;
    if (shrinks(rows, columns, rows * columns) && !tensor.is_complex()) {
      add_matrix(i, rows, columns);
    } else {
      rest_.push_back({from, elems_[i]});
      rest_elems_ += elems_[i];
      in_full_.push_back(i);
    }
    from += elems_[i];
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
  if (shrinks(side, side, elems)) {
    add_matrix(0, side, side);
  } else {
    rest_.push_back({0, elems});
    rest_elems_ = elems;
    in_full_.resize(names_.size());
    std::iota(in_full_.begin(), in_full_.end(), std::size_t{0});
  }
}

void LowRank::add_matrix(
    std::size_t member, std::int64_t rows, std::int64_t columns) {
  const auto known = std::ranges::find_if(shapes_, [&](const Shape& shape) {
    return options_.batch && shape.rows == rows && shape.columns == columns;
  });
  if (known != shapes_.end()) {
    known->members.push_back(member);
    return;
  }
  const std::int64_t rank = rank_of(rows, columns);
  shapes_.push_back(
      {.rows = rows,
       .columns = columns,
       .rank = rank,
       .members = {member},
       .basis_elems =
           rank * (options_.alternate ? std::max(rows, columns) : columns)});
}

void LowRank::plan_memory() {
  std::int64_t m_elems = 0;
  std::int64_t basis_elems = 0;
  for (Shape& shape : shapes_) {
    shape.m_begin = m_elems;
    shape.p_begin = p_elems_;
    shape.q_begin = q_elems_;
    shape.basis_begin = basis_elems;
    m_elems += shape.count() * shape.rows * shape.columns;
    p_elems_ += shape.count() * shape.rows * shape.rank;
    q_elems_ += shape.count() * shape.columns * shape.rank;
    basis_elems += shape.count() * shape.basis_elems;
  }
}

LowRank::Message LowRank::make_message(
    std::int64_t elems, bool may_be_first) const {
  Message message;
  message.wire =
      at::zeros({elems + (may_be_first ? rest_elems_ : 0)}, gradients_);
  message.floats = message.wire.scalar_type() == at::kFloat
                       ? message.wire.narrow(0, 0, elems)
                       : at::zeros({elems}, gradients_.dtype(at::kFloat));
  return message;
}

bool LowRank::fits(const Bucket& bucket) const {
  if (bucket.size() != names_.size() ||
      bucket.buffer().dtype() != gradients_.dtype()) {
    return false;
  }
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    if (bucket.parameter(i).name != names_[i] || bucket.elems(i) != elems_[i]) {
      return false;
    }
  }
  return true;
}

const std::string& LowRank::name_of(
    const Shape& shape, std::int64_t matrix) const {
  return matrices_ == Matrices::kBucket ? bucket_name_
                                        : names_[shape.members[matrix]];
}

ParameterMemory::Entries LowRank::residual_entries() const {
  ParameterMemory::Entries entries;
  for (const Shape& shape : shapes_) {
    if (matrices_ == Matrices::kBucket) {
      for (std::size_t i = 0; i < names_.size(); ++i) {
        entries.push_back({names_[i], elems_[i]});
      }
      continue;
    }
    for (const std::size_t member : shape.members) {
      entries.push_back({names_[member], elems_[member]});
    }
  }
  return entries;
}

ParameterMemory::Entries LowRank::basis_entries() const {
  ParameterMemory::Entries entries;
  for (const Shape& shape : shapes_) {
    for (std::int64_t k = 0; k < shape.count(); ++k) {
      entries.push_back({name_of(shape, k), shape.basis_elems});
    }
  }
  return entries;
}

std::vector<ParameterReport> LowRank::report() const {
  std::vector<ParameterReport> reports;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    reports.push_back(
        {.name = names_[i],
         .elems = elems_[i],
         .sent_elems = elems_[i],
         .residual_norm = residual_norms_[i]});
  }
  const bool pair = !options_.alternate;
  for (const Shape& shape : shapes_) {
    const std::int64_t sides =
        pair ? shape.rows + shape.columns
             : (last_ == Side::kLeft ? shape.rows : shape.columns);
    for (const std::size_t member : shape.members) {
      reports[member].rank = shape.rank;
      reports[member].sent_elems = options_.iterations * sides * shape.rank;
    }
    if (matrices_ == Matrices::kBucket) {
      // All of them in one: the first one stands for what they cost together.
      for (std::size_t i = 1; i < reports.size(); ++i) {
        reports[i].rank = shape.rank;
        reports[i].sent_elems = 0;
      }
    }
  }
  return reports;
}

}  // namespace gradwire
