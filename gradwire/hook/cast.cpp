#include "gradwire/hook/cast.h"

#include <ATen/ops/empty.h>

#include <map>

#include "gradwire/codec/codec.h"
#include "gradwire/hook/wrapper.h"

namespace gradwire {
namespace {

// Hands the bucket on in another type. What drives the hook takes the result in
// any type of floats.
class CastWrapper : public HookWrapper {
 public:
  CastWrapper(at::ScalarType narrow, std::unique_ptr<Hook> inner)
      : HookWrapper(std::move(inner)), narrow_(narrow) {}

  Future reduce(Bucket& bucket) override {
    if (bucket.is_sparse()) {
      return inner().reduce(bucket);
    }
    at::Tensor& narrow = buffers_[bucket.index()];
    if (!narrow.defined() || narrow.numel() != bucket.buffer().numel()) {
      narrow = at::empty(
          {bucket.buffer().numel()}, bucket.buffer().options().dtype(narrow_));
    }
    narrow.copy_(bucket.buffer());
    Bucket cast = bucket.with_buffer(narrow);
    return inner().reduce(cast);
  }
  void rebuild() override {
    buffers_.clear();
    HookWrapper::rebuild();
  }

 private:
  at::ScalarType narrow_;
  std::map<std::size_t, at::Tensor> buffers_;
};

}  // namespace

std::unique_ptr<Hook> cast_for(
    const std::string& codec, const HookContext& context) {
  auto inner = context.make_inner(context.group);
  // Alone there is nothing to send, and nothing to round.
  if (context.group.size() == 1) {
    return inner;
  }
  const bool half =
      codec::find_codec(codec).floats == codec::CodecInfo::Floats::kHalf;
  return std::make_unique<CastWrapper>(
      half ? at::kHalf : at::kBFloat16, std::move(inner));
}

}  // namespace gradwire
