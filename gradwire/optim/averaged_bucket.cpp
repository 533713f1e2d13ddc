#include "gradwire/optim/averaged_bucket.h"

#include "gradwire/hook/result.h"

namespace gradwire {

AveragedBucket::AveragedBucket(const Bucket& bucket, const at::Tensor& result)
    : buffer_(bucket.buffer()),
      average_(bucket.with_buffer(result_for(buffer_, result))) {}

void AveragedBucket::make_writable() {
  if (!value().is_sparse() && !value().is_alias_of(buffer_)) {
    buffer_.copy_(value());
    average_ = average_.with_buffer(buffer_);
  }
}

}  // namespace gradwire
