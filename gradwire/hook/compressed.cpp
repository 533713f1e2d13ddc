#include "gradwire/hook/compressed.h"

#include <ATen/ops/isfinite.h>
#include <c10/core/ScalarType.h>

#include "gradwire/base/error.h"
#include "gradwire/codec/codec.h"
#include "gradwire/comm/exchange.h"
#include "gradwire/comm/lane.h"
#include "gradwire/hook/error_feedback.h"

namespace gradwire {
namespace {

// A bucket that is not worth compressing, averaged in full on the same lane.
class PlainJob : public Lane::Job {
 public:
  PlainJob(
      at::Tensor values,
      int world,
      std::shared_ptr<std::atomic<bool>> not_finite)
      : values_(std::move(values)),
        world_(world),
        not_finite_(std::move(not_finite)),
        result_(
            c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get())) {}

  Future future() const {
    return Future(result_);
  }
  void wait() override {
    sum_.wait();
  }
  void run(std::size_t phase, const Lane::Groups& groups) override {
    if (phase == 0) {
      values_.mul_(1.0 / world_);
      sum_ = groups[0].all_reduce(values_);
    } else if (phase == 1) {
      const at::Tensor sum = sum_.wait();
      const at::Tensor dense = sum.is_sparse() ? sum._values() : sum;
      if (!dense.isfinite().all().item<bool>()) {
        *not_finite_ = true;
      }
      result_->markCompleted(c10::IValue(sum));
    }
  }
  void fail(const std::exception_ptr& error) noexcept override {
    if (!result_->completed()) {
      result_->setError(error);
    }
  }

 private:
  at::Tensor values_;
  int world_;
  std::shared_ptr<std::atomic<bool>> not_finite_;
  Future::Raw result_;
  Future sum_;
};

codec::Segments segments_of(const Bucket& bucket) {
  codec::Segments segments;
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    segments.push_back(
        {bucket.elems(i), fingerprint(bucket.parameter(i).name), 0});
  }
  return segments;
}

// A backward that was broken off may have left buckets under way.
bool succeeded(const Future& result) {
  try {
    result.wait();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

class CompressedHook : public Hook {
 public:
  CompressedHook(const std::string& codec, const HookContext& context)
      : name_(codec),
        codec_(std::make_shared<const codec::Codec>(
            codec::find_codec(codec).make(context.options))),
        rank_(context.group.rank()),
        world_(context.group.size()),
        feedback_on_(context.options.flag("ef")),
        pass_sparse_(context.options.word("sparse") == "pass"),
        min_elems_(context.options.integer("min_elems")) {
    if (world_ > 1) {
      lane_ =
          std::make_unique<Lane>(context.group, codec, exchange_phases(world_));
    }
  }

  Future reduce(Bucket& bucket) override {
    if (world_ == 1) {
      return Future::ready(bucket.buffer());
    }
    check(bucket);
    if (bucket.index() == 0) {
      end_step();
      not_finite_ = std::make_shared<std::atomic<bool>>(false);
    }
    try {
      const bool plain =
          bucket.is_sparse() || bucket.buffer().numel() < min_elems_;
      results_.push_back(plain ? pass(bucket) : compress(bucket));
    } catch (...) {
      // On this rank alone, as all ranks have passed the checks.
      lane_->fail(std::current_exception());
      throw;
    }
    complete_ = bucket.is_last();
    return results_.back();
  }

  void rebuild() override {
    end_step();
    feedback_.rebuild();
    exchanges_.clear();
  }

  void save(HookState& state) override {
    end_step();
    state.numbers["step"] = static_cast<std::int64_t>(step_);
    if (feedback_on_) {
      feedback_.save(state);
    }
  }

  void load(const HookState& state) override {
    end_step();
    step_ = static_cast<std::uint64_t>(state.numbers.at("step"));
    if (feedback_on_) {
      feedback_.load(state);
    }
  }

 private:
  struct Planned {
    codec::Segments segments;
    std::unique_ptr<Exchange> exchange;
  };

  void check(const Bucket& bucket) const {
    if (bucket.is_sparse() && !pass_sparse_) {
      fail(
          "hook",
          "'",
          name_,
          "' cannot compress the sparse gradient of '",
          bucket.parameter(0).name,
          "', expected dense ones; ",
          name_,
          ":sparse=pass sends sparse gradients as they are");
    }
    const auto type = bucket.buffer().scalar_type();
    if (!at::isFloatingType(type)) {
      fail(
          "hook", "'", name_, "' got gradients of ", type, ", expected floats");
    }
  }

  // Uncompressed; what is owed from compressed steps is paid in full.
  Future pass(const Bucket& bucket) {
    if (feedback_on_ && !bucket.is_sparse()) {
      const auto& residuals = feedback_.of(bucket);
      at::Tensor buffer = bucket.buffer();
      buffer.add_(residuals.before);
      at::Tensor after = residuals.after;
      after.zero_();
    }
    auto job = std::make_shared<PlainJob>(bucket.buffer(), world_, not_finite_);
    lane_->submit(job);
    return job->future();
  }

  Future compress(const Bucket& bucket) {
    Exchange::Use use{
        .values = bucket.buffer(),
        .divisor = static_cast<float>(world_),
        .noise = codec::Noise::make({step_, static_cast<unsigned>(rank_ + 1)}),
        .owner_noise = codec::Noise::make({step_, 0}),
        .not_finite = not_finite_};
    if (feedback_on_) {
      const auto& residuals = feedback_.of(bucket);
      use.feedback = {
          residuals.before.data_ptr<float>(),
          residuals.after.data_ptr<float>()};
    }
    return exchange_for(bucket).start(*lane_, std::move(use));
  }

  Exchange& exchange_for(const Bucket& bucket) {
    Planned& planned = exchanges_[bucket.index()];
    auto segments = segments_of(bucket);
    if (!planned.exchange || planned.segments != segments) {
      planned.exchange = std::make_unique<Exchange>(
          codec_, Exchange::Layout{rank_, world_, segments});
      planned.segments = std::move(segments);
    }
    return *planned.exchange;
  }

  // A step whose average is not finite, or that failed, will not be taken: its
  // losses are none.
  void end_step() {
    if (results_.empty()) {
      return;
    }
    bool good = std::exchange(complete_, false);
    for (const Future& result : results_) {
      good = succeeded(result) && good;
    }
    good = good && !*not_finite_;
    results_.clear();
    ++step_;
    if (good) {
      feedback_.commit();
    } else {
      feedback_.rollback();
    }
  }

  std::string name_;
  std::shared_ptr<const codec::Codec> codec_;
  int rank_;
  int world_;
  bool feedback_on_;
  bool pass_sparse_;
  std::int64_t min_elems_;

  std::uint64_t step_ = 0;
  ErrorFeedback feedback_;
  std::map<std::size_t, Planned> exchanges_;
  // Of the step under way or just ended.
  std::vector<Future> results_;
  // With the last bucket among them.
  bool complete_ = false;
  std::shared_ptr<std::atomic<bool>> not_finite_;
  // Last, so that its threads end before what they work on.
  std::unique_ptr<Lane> lane_;
};

}  // namespace

HookInfo compressed_hook(const std::string& codec, bool feedback) {
  const auto& codec_info = codec::find_codec(codec);
  HookInfo info{
      .name = codec,
      .summary = codec_info.summary,
      .make = [codec](HookContext context) -> std::unique_ptr<Hook> {
        return std::make_unique<CompressedHook>(codec, context);
      },
      .options = codec_info.options,
      // Two encodings, with as much again left over from the step before.
      .tolerance = 4 * codec_info.tolerance};
  info.options.push_back(
      {.name = "ef",
       .fallback = feedback,
       .help = "error feedback: what is lost is sent with the next step"});
  info.options.push_back(
      {.name = "min_elems",
       .fallback = std::int64_t{0},
       .help = "buckets of fewer elements are not compressed",
       .least = 0});
  info.options.push_back(
      {.name = "sparse",
       .fallback = "error",
       .help = "pass: sparse gradients are sent as they are",
       .choices = {"error", "pass"}});
  return info;
}

}  // namespace gradwire
