#include "gradwire/hook/low_rank.h"

#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "gradwire/base/text.h"
#include "gradwire/comm/finite.h"

namespace gradwire {
namespace {

at::Tensor slice(
    const at::Tensor& flat, std::int64_t begin, std::int64_t elems) {
  return flat.defined() ? flat.narrow(0, begin, elems) : at::Tensor();
}

const float* floats_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

bool holds_floats(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
}

double largest_of(const at::Tensor& tensor) {
  return tensor.numel() == 0
             ? 0
             : at::linalg_vector_norm(
                   tensor, std::numeric_limits<double>::infinity())
                   .item<double>();
}

// That a type holds, or a product in fp32 on its way there.
double largest_number(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return std::numeric_limits<at::Half>::max();
    case at::kBFloat16:
      return std::numeric_limits<at::BFloat16>::max();
    default:
      return std::numeric_limits<float>::max();
  }
}

}  // namespace

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

float* LowRank::p(const Shape& shape, std::int64_t matrix) const {
  return left_.floats.data_ptr<float>() + shape.p_begin +
         matrix * shape.rows * shape.rank;
}

float* LowRank::q(const Shape& shape, std::int64_t matrix) const {
  return right_.floats.data_ptr<float>() + shape.q_begin +
         matrix * shape.columns * shape.rank;
}

linalg::Columns LowRank::columns_of(
    const Shape& shape, std::int64_t matrix, Side side) const {
  if (side == Side::kLeft) {
    return {p(shape, matrix), shape.rows, shape.rank, shape.rank, 1};
  }
  return {q(shape, matrix), shape.columns, shape.rank, 1, shape.columns};
}

template <class Work>
void LowRank::each_matrix(const Work& work) const {
  for (const Shape& shape : shapes_) {
    for (std::int64_t k = 0; k < shape.count(); ++k) {
      work(shape, k);
    }
  }
}

LowRank::Rows LowRank::rows_of(
    const Shape& shape,
    std::int64_t matrix,
    std::int64_t first,
    std::int64_t count) const {
  Rows rows{.first = first, .count = count, .columns = shape.columns};
  std::int64_t begin = first * shape.columns;
  rows.elems = count * shape.columns;
  if (matrices_ == Matrices::kBucket) {
    const at::Tensor& buffer = step_->bucket.buffer();
    begin = std::min(begin, buffer.numel());
    rows.elems = std::min(rows.elems, buffer.numel() - begin);
    rows.gradient = buffer.narrow(0, begin, rows.elems);
  } else {
    rows.gradient =
        step_->bucket.gradient(shape.members[matrix]).narrow(0, first, count);
  }
  const std::int64_t at =
      shape.m_begin + matrix * shape.rows * shape.columns + begin;
  rows.residual = {
      slice(step_->residual.before, at, rows.elems),
      slice(step_->residual.after, at, rows.elems)};
  if (matrices_ == Matrices::kParameters && !rows.gradient.is_contiguous()) {
    rows.residual = {
        strided_rows(step_->residual.before, shape, matrix, first, count),
        strided_rows(step_->residual.after, shape, matrix, first, count)};
  }
  rows.in_place =
      rows.elems == count * shape.columns && holds_floats(rows.gradient) &&
      (!rows.residual.before.defined() || holds_floats(rows.residual.before));
  return rows;
}

// Residuals lie in the order of the gradient's memory, whatever the strides, so
// that another hook can go on with them.
at::Tensor LowRank::strided_rows(
    const at::Tensor& flat,
    const Shape& shape,
    std::int64_t matrix,
    std::int64_t first,
    std::int64_t count) const {
  if (!flat.defined()) {
    return {};
  }
  const at::Tensor& like =
      step_->bucket.parameter(shape.members[matrix]).tensor;
  const std::int64_t begin =
      shape.m_begin + matrix * shape.rows * shape.columns;
  return flat
      .as_strided(like.sizes(), like.strides(), flat.storage_offset() + begin)
      .narrow(0, first, count);
}

template <class Work>
void LowRank::each_rows(
    const Shape& shape, std::int64_t matrix, const Work& work) const {
  const Rows all = rows_of(shape, matrix, 0, shape.rows);
  if (all.in_place) {
    work(all);
    return;
  }
  // The whole rows of a bucket that ends within a row.
  std::int64_t first = 0;
  const std::int64_t whole = all.elems / shape.columns;
  if (whole > 0 && whole < shape.rows) {
    const Rows most = rows_of(shape, matrix, 0, whole);
    if (most.in_place) {
      work(most);
      first = whole;
    }
  }
  const std::int64_t at_once =
      std::max<std::int64_t>(1, loaded_.numel() / shape.columns);
  for (; first < shape.rows; first += at_once) {
    work(rows_of(shape, matrix, first, std::min(at_once, shape.rows - first)));
  }
}

linalg::Sum LowRank::load(const Rows& rows) {
  if (rows.in_place) {
    return {
        floats_of(rows.gradient),
        floats_of(rows.residual.before),
        rows.count,
        rows.columns};
  }
  at::Tensor to = loaded_.narrow(0, 0, rows.elems);
  const std::int64_t lacking = rows.count * rows.columns - rows.elems;
  loaded_.narrow(0, rows.elems, lacking).zero_();
  to.view(rows.gradient.sizes()).copy_(rows.gradient);
  if (rows.residual.before.defined()) {
    const at::Tensor owed = scratch_.narrow(0, 0, rows.elems);
    owed.view(rows.residual.before.sizes()).copy_(rows.residual.before);
    to.add_(owed);
  }
  return {floats_of(loaded_), nullptr, rows.count, rows.columns};
}

// What is lost is counted from what was stored, in the type of the gradients.
void LowRank::store(
    const Rows& rows, const float* p, const float* q, std::int64_t rank) {
  const linalg::Sum m = load(rows);
  at::Tensor gradient = rows.gradient;
  at::Tensor lost = rows.residual.after;
  if (rows.in_place) {
    linalg::expand(
        m,
        p,
        q,
        rank,
        gradient.data_ptr<float>(),
        lost.defined() ? lost.data_ptr<float>() : nullptr);
    return;
  }
  linalg::expand(m, p, q, rank, scratch_.data_ptr<float>(), nullptr);
  at::Tensor sent = scratch_.narrow(0, 0, rows.elems);
  gradient.copy_(sent.view(gradient.sizes()));
  if (lost.defined()) {
    sent.view(gradient.sizes()).copy_(gradient);
    // A memory that holds less forgets; infinity it would never forget.
    const double most = largest_number(lost.scalar_type());
    lost.copy_(loaded_.narrow(0, 0, rows.elems)
                   .sub_(sent)
                   .clamp_(-most, most)
                   .view(lost.sizes()));
  }
}

void LowRank::begin(Step step, int world) {
  step_ = std::move(step);
  world_ = world;
  first_.reset();
  finite_ = true;
}

at::Tensor LowRank::project(Side side) {
  const Side other = side == Side::kLeft ? Side::kRight : Side::kLeft;
  const bool is_first = !first_;
  if (is_first) {
    first_ = side;
    recall(other);
  } else {
    message(other).unpack();
  }
  last_ = side;
  make_basis(other, is_first);
  if (side == Side::kRight) {
    right_.floats.zero_();
  }
  each_matrix([&](const Shape& shape, std::int64_t matrix) {
    float* left = p(shape, matrix);
    float* right = q(shape, matrix);
    each_rows(shape, matrix, [&](const Rows& rows) {
      float* part = left + rows.first * shape.rank;
      if (side == Side::kLeft) {
        linalg::times_transposed(load(rows), right, shape.rank, part);
      } else {
        linalg::add_transposed_times(load(rows), part, shape.rank, right);
      }
    });
  });
  Message& sent = message(side);
  sent.floats.mul_(1.0 / world_);
  sent.pack();
  if (!is_first) {
    return sent.wire.narrow(0, 0, sent.floats.numel());
  }
  put_rest(sent.wire);
  return sent.wire;
}

void LowRank::recall(Side side) {
  const at::Tensor& before = step_->basis.before;
  if (step_->fresh) {
    message(side).floats.zero_();
    return;
  }
  each_matrix([&](const Shape& shape, std::int64_t matrix) {
    const linalg::Columns columns = columns_of(shape, matrix, side);
    const float* from = before.const_data_ptr<float>() + shape.basis_begin +
                        matrix * shape.basis_elems;
    std::copy_n(from, columns.rows * columns.count, columns.data);
  });
}

void LowRank::remember() {
  const at::Tensor& after = step_->basis.after;
  each_matrix([&](const Shape& shape, std::int64_t matrix) {
    const linalg::Columns columns = columns_of(shape, matrix, last_);
    float* to = after.data_ptr<float>() + shape.basis_begin +
                matrix * shape.basis_elems;
    std::copy_n(columns.data, columns.rows * columns.count, to);
  });
}

// What a step begins with lacks columns at first, and where the gradient was of
// lower rank: these are drawn. What a gradient leaves empty within a step stays
// so.
void LowRank::make_basis(Side side, bool from_memory) {
  each_matrix([&](const Shape& shape, std::int64_t matrix) {
    const linalg::Columns columns = columns_of(shape, matrix, side);
    linalg::Orthogonaliser::Fill fill;
    if (from_memory) {
      fill = [&](std::int64_t column, int attempt) {
        draw(name_of(shape, matrix), columns, column, attempt);
      };
    }
    // Lengths of averages: the paper's are those of sums.
    const double epsilon = from_memory ? 0 : options_.epsilon / world_;
    finite_ &= orthogonaliser_.apply(columns, epsilon, fill);
  });
}

// The same numbers on all ranks, and nobody else's generator moves.
void LowRank::draw(
    const std::string& name,
    const linalg::Columns& columns,
    std::int64_t column,
    int attempt) const {
  const auto key = fingerprint(concat(
      options_.seed, " ", step_->number, " ", attempt, " ", column, " ", name));
  std::mt19937_64 random(key);
  for (std::int64_t i = 0; i < columns.rows; ++i) {
    // From -1 to 1, made of integers: the same on every processor.
    const auto number = static_cast<std::int32_t>(random() >> 32);
    columns.data[i * columns.row_step + column * columns.column_step] =
        static_cast<float>(number) * 0x1p-31f;
  }
}

void LowRank::put_rest(const at::Tensor& wire) {
  std::int64_t to = wire.numel() - rest_elems_;
  for (const Rest& rest : rest_) {
    wire.narrow(0, to, rest.elems)
        .copy_(step_->bucket.buffer().narrow(0, rest.from, rest.elems))
        .mul_(1.0 / world_);
    to += rest.elems;
  }
}

void LowRank::take_rest(const at::Tensor& wire) {
  std::int64_t from = wire.numel() - rest_elems_;
  for (const Rest& rest : rest_) {
    step_->bucket.buffer()
        .narrow(0, rest.from, rest.elems)
        .copy_(wire.narrow(0, from, rest.elems));
    from += rest.elems;
  }
}

bool LowRank::finish() {
  message(last_).unpack();
  finite_ &=
      all_finite(message(last_).floats) && all_finite(message(*first_).wire);
  each_matrix([&](const Shape& shape, std::int64_t matrix) {
    each_rows(shape, matrix, [&](const Rows& rows) {
      store(
          rows,
          p(shape, matrix) + rows.first * shape.rank,
          q(shape, matrix),
          shape.rank);
    });
  });
  take_rest(message(*first_).wire);
  if (finite_ && may_overflow()) {
    finite_ = all_finite(step_->bucket.buffer());
  }
  remember();
  if (step_->measure) {
    measure();
  }
  step_.reset();
  return finite_;
}

// Whether a product can be larger than its type holds.
bool LowRank::may_overflow() const {
  const double bound = largest_of(left_.floats) * largest_of(right_.floats);
  std::int64_t rank = 0;
  for (const Shape& shape : shapes_) {
    rank = std::max(rank, shape.rank);
  }
  return bound * static_cast<double>(rank) >=
         largest_number(c10::typeMetaToScalarType(gradients_.dtype()));
}

// In parts, whatever the type.
double LowRank::norm_of(const at::Tensor& flat) {
  double squares = 0;
  for (std::int64_t from = 0; from < flat.numel(); from += scratch_.numel()) {
    const std::int64_t elems = std::min(scratch_.numel(), flat.numel() - from);
    const at::Tensor part =
        scratch_.narrow(0, 0, elems).copy_(flat.narrow(0, from, elems));
    const auto norm = at::linalg_vector_norm(part).item<double>();
    squares += norm * norm;
  }
  return std::sqrt(squares);
}

void LowRank::measure() {
  measured_ = true;
  const at::Tensor& after = step_->residual.after;
  if (!after.defined()) {
    return;
  }
  std::int64_t begin = 0;
  const auto measure_next = [&](std::size_t member) {
    residual_norms_[member] = norm_of(after.narrow(0, begin, elems_[member]));
    begin += elems_[member];
  };
  for (const Shape& shape : shapes_) {
    if (matrices_ == Matrices::kBucket) {
      for (std::size_t i = 0; i < names_.size(); ++i) {
        measure_next(i);
      }
    } else {
      std::ranges::for_each(shape.members, measure_next);
    }
  }
}

}  // namespace gradwire
