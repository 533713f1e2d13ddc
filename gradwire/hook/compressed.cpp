#include "gradwire/hook/compressed.h"

#include "gradwire/base/text.h"
#include "gradwire/codec/codec.h"
#include "gradwire/comm/exchanges.h"
#include "gradwire/hook/cast.h"
#include "gradwire/hook/dense.h"
#include "gradwire/hook/stateful_hook.h"

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

class CompressedHook : public StatefulHook {
 public:
  CompressedHook(
      const std::string& codec,
      const std::string& spec,
      const HookContext& context)
      : StatefulHook(
            {.name = codec,
             .spec = spec,
             .feedback = context.options.flag("ef"),
             .pass_sparse = passes_sparse(context.options)},
            context.group,
            exchange_phases(context.group.size())),
        codec_(std::make_shared<const codec::Codec>(
            codec::find_codec(codec).make(context.options))),
        min_elems_(context.options.integer("min_elems")),
        exchanges_(context.group) {}

  ~CompressedHook() override {
    stop_lane();
  }

 private:
  bool passes(const Bucket& bucket) const override {
    return bucket.buffer().numel() < min_elems_;
  }

  // What is owed from compressed steps is paid in full.
  Future pass(const Bucket& bucket) override {
    if (has_feedback() && !bucket.is_sparse()) {
      const auto& owed = residuals().of(bucket.index(), entries_of(bucket));
      bucket.buffer().add_(owed.before);
      at::Tensor after = owed.after;
      after.zero_();
    }
    return StatefulHook::pass(bucket);
  }

  Future compress(const Bucket& bucket) override {
    Exchange::Use use{
        .values = bucket.buffer(),
        .divisor = static_cast<float>(world()),
        .not_finite = not_finite()};
    if (has_feedback()) {
      const auto& owed = residuals().of(bucket.index(), entries_of(bucket));
      use.feedback = {
          owed.before.data_ptr<float>(), owed.after.data_ptr<float>()};
    }
    return exchanges_.start(
        *lane(), {codec_, segments_of(bucket), steps()}, std::move(use));
  }

  void settle(bool) override {}
  void forget_buckets() override {
    exchanges_.clear();
  }

  std::shared_ptr<const codec::Codec> codec_;
  std::int64_t min_elems_;
  Exchanges exchanges_;
};

}  // namespace

HookInfo codec_hook(const codec::CodecInfo& codec) {
  HookInfo info{
      .name = codec.name,
      .summary = codec.summary,
      .make = {},
      .options = codec.options,
      // Two encodings, with as much again left over from the step before.
      .tolerance = 4 * codec.tolerance,
      .wraps = codec.floats == codec::CodecInfo::Floats::kNone
                   ? HookInfo::Wraps::kNever
                   : HookInfo::Wraps::kOptionally,
      .plain_around = true};
  info.options.push_back(
      {.name = "ef",
       .fallback = codec.feedback,
       .help = "error feedback: what is lost is added to the next gradient"});
  info.options.push_back(
      {.name = "min_elems",
       .fallback = std::int64_t{0},
       .help = "buckets of fewer elements are not compressed",
       .least = 0});
  info.options.push_back(sparse_option());
  info.make = [name = codec.name, options = info.options](
                  const HookContext& context) -> std::unique_ptr<Hook> {
    if (context.make_inner) {
      return cast_for(name, context);
    }
    return std::make_unique<CompressedHook>(
        name, to_spec(name, options, context.options), context);
  };
  return info;
}

}  // namespace gradwire
