#include "gradwire/hook/cast.h"

#include <ATen/ops/empty.h>

#include <map>

#include "gradwire/hook/compressed.h"

namespace gradwire {
namespace {

// Hands the bucket on in another type. The result stays in that type: the
// Reducer converts while it copies.
class CastWrapper : public Hook {
 public:
  CastWrapper(at::ScalarType narrow, std::unique_ptr<Hook> inner)
      : narrow_(narrow), inner_(std::move(inner)) {}

  Future reduce(Bucket& bucket) override {
    if (bucket.is_sparse()) {
      return inner_->reduce(bucket);
    }
    at::Tensor& narrow = buffers_[bucket.index()];
    if (!narrow.defined() || narrow.numel() != bucket.buffer().numel()) {
      narrow = at::empty(
          {bucket.buffer().numel()}, at::TensorOptions().dtype(narrow_));
    }
    narrow.copy_(bucket.buffer());
    Bucket cast = bucket.with_buffer(narrow);
    return inner_->reduce(cast);
  }
  void rebuild() override {
    buffers_.clear();
    inner_->rebuild();
  }
  void save(HookState& state) override {
    inner_->save(state);
  }
  void load(const HookState& state) override {
    inner_->load(state);
  }
  std::vector<ParameterReport> report() const override {
    return inner_->report();
  }

 private:
  at::ScalarType narrow_;
  std::map<std::size_t, at::Tensor> buffers_;
  std::unique_ptr<Hook> inner_;
};

}  // namespace

HookInfo cast_hook(const std::string& codec, at::ScalarType narrow) {
  HookInfo info = compressed_hook(codec, false);
  info.wraps = HookInfo::Wraps::kOptionally;
  info.make = [narrow,
               make = info.make](HookContext context) -> std::unique_ptr<Hook> {
    if (!context.inner) {
      return make(std::move(context));
    }
    // Alone there is nothing to send, and nothing to round.
    if (context.group.size() == 1) {
      return std::move(context.inner);
    }
    return std::make_unique<CastWrapper>(narrow, std::move(context.inner));
  };
  return info;
}

}  // namespace gradwire
