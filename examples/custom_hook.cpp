// Your own hooks: a registered class that spec strings can name, and a lambda
// for something quick.
//
//   gradwire run --nproc 2 -- build/release/examples/custom_hook

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <iostream>

// Clips the norm of each bucket before averaging it.
class Clip : public gradwire::Hook {
 public:
  explicit Clip(gradwire::HookContext context)
      : group_(context.group), most_(context.options.number("norm")) {}

  gradwire::Future reduce(gradwire::Bucket& bucket) override {
    auto buffer = bucket.buffer();
    const double norm = buffer.norm().item<double>();
    buffer.mul_(std::min(1.0, most_ / (norm + 1e-12)) / group_.size());
    return group_.all_reduce(buffer);
  }

 private:
  gradwire::Group group_;
  double most_;
};

int main() {
  auto group = gradwire::init();
  gradwire::register_hook(
      {.name = "clip",
       .summary = "average of gradients clipped per bucket",
       .make = [](gradwire::HookContext context)
           -> std::unique_ptr<gradwire::Hook> {
         return std::make_unique<Clip>(std::move(context));
       },
       .options = {
           {.name = "norm",
            .fallback = 1.0,
            .help = "largest norm of a bucket",
            .least = 0}}});

  torch::nn::Linear net(16, 16);
  auto ddp =
      gradwire::DistributedDataParallel(net, group, {.hook = "clip:norm=0.5"});
  ddp->forward(torch::randn({4, 16}) * 100).sum().backward();
  const double clipped = net->weight.grad().norm().item<double>();

  // From the next iteration on another hook, which only counts buckets.
  int buckets = 0;
  ddp->set_hook([&buckets](gradwire::Bucket& bucket) {
    ++buckets;
    return gradwire::Future::ready(bucket.buffer());
  });
  ddp->forward(torch::randn({4, 16})).sum().backward();

  if (group.rank() == 0) {
    std::cout << "norm after clip:norm=0.5 is " << clipped << ", then "
              << buckets << " bucket(s) counted" << std::endl;
  }
  group.barrier().wait();
  return clipped <= 0.5 && buckets > 0 ? 0 : 1;
}
