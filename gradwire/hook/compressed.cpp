#include "gradwire/hook/compressed.h"

#include "gradwire/base/text.h"
#include "gradwire/codec/codec.h"
#include "gradwire/comm/exchange.h"
#include "gradwire/comm/lane.h"
#include "gradwire/hook/dense.h"
#include "gradwire/hook/parameter_memory.h"
#include "gradwire/hook/plain_job.h"
#include "gradwire/hook/step_results.h"

namespace gradwire {
namespace {

codec::Segments segments_of(const Bucket& bucket) {
  codec::Segments segments;
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    segments.push_back(
        {bucket.elems(i), fingerprint(bucket.parameter(i).name), 0});
  }
  return segments;
}

ParameterMemory::Entries entries_of(const Bucket& bucket) {
  ParameterMemory::Entries entries;
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    entries.push_back({bucket.parameter(i).name, bucket.elems(i)});
  }
  return entries;
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
        pass_sparse_(passes_sparse(context.options)),
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
    check_dense_floats(name_, bucket, pass_sparse_);
    if (bucket.index() == 0) {
      end_step();
      results_.begin();
    }
    try {
      const bool plain =
          bucket.is_sparse() || bucket.buffer().numel() < min_elems_;
      const Future result = plain ? pass(bucket) : compress(bucket);
      results_.add(result, bucket.is_last());
      return result;
    } catch (...) {
      lane_->fail(std::current_exception());
    }
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
      state.residuals = feedback_.save();
    }
  }

  void load(const HookState& state) override {
    end_step();
    step_ = static_cast<std::uint64_t>(state.numbers.at("step"));
    if (feedback_on_) {
      feedback_.load(state.residuals);
    }
  }

 private:
  struct Planned {
    codec::Segments segments;
    std::unique_ptr<Exchange> exchange;
  };

  // Uncompressed; what is owed from compressed steps is paid in full.
  Future pass(const Bucket& bucket) {
    if (feedback_on_ && !bucket.is_sparse()) {
      const auto& residuals = feedback_.of(bucket.index(), entries_of(bucket));
      at::Tensor buffer = bucket.buffer();
      buffer.add_(residuals.before);
      at::Tensor after = residuals.after;
      after.zero_();
    }
    auto job = std::make_shared<PlainJob>(
        bucket.buffer(), world_, results_.not_finite());
    lane_->submit(job);
    return job->future();
  }

  Future compress(const Bucket& bucket) {
    Exchange::Use use{
        .values = bucket.buffer(),
        .divisor = static_cast<float>(world_),
        .noise = codec::Noise::make({step_, static_cast<unsigned>(rank_ + 1)}),
        .owner_noise = codec::Noise::make({step_, 0}),
        .not_finite = results_.not_finite()};
    if (feedback_on_) {
      const auto& residuals = feedback_.of(bucket.index(), entries_of(bucket));
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
    const auto good = results_.end();
    if (!good) {
      return;
    }
    ++step_;
    if (*good) {
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
  ParameterMemory feedback_{"residual"};
  std::map<std::size_t, Planned> exchanges_;
  StepResults results_;
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
  info.options.push_back(sparse_option());
  return info;
}

}  // namespace gradwire
