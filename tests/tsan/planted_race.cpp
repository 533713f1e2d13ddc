// Two ranks as threads share a counter in their hook without a lock.

#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "tests/support/ranks.h"

int main() {
  long shared = 0;
  gradwire::test::run_threads(2, [&](const gradwire::Group& group) {
    auto ddp = gradwire::DistributedDataParallel(
        torch::nn::Linear(4, 4),
        group,
        {.hook = [&shared, group](gradwire::Bucket& bucket) {
          ++shared;
          return group.all_reduce(bucket.buffer());
        }});
    for (int step = 0; step < 400; ++step) {
      ddp->forward(torch::ones({1, 4})).sum().backward();
    }
  });
  return shared > 0 ? 0 : 1;
}
