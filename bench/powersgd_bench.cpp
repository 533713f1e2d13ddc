// PowerSGD of one rank against its floor: every element of a gradient is read
// three times and written once, its residual is read and written, 24 bytes, at
// the speed of memcpy in the same run. One thread.

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <cstring>

#include "gradwire/comm/init.h"
#include "gradwire/hook/registry.h"

namespace {

constexpr std::int64_t kSide = 2048;
constexpr int kMatrices = 6;

void copy(benchmark::State& state) {
  const auto from = torch::ones({kMatrices * kSide * kSide});
  auto to = torch::zeros_like(from);
  for (auto _ : state) {
    // 8 bytes an element each time.
    for (int i = 0; i < 3; ++i) {
      std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
      benchmark::ClobberMemory();
    }
  }
}

void powersgd(benchmark::State& state, const std::string& options) {
  const auto hook =
      gradwire::make_hook("powersgd:start=0," + options, gradwire::init());
  const auto parameter = torch::zeros({kSide, kSide});
  std::vector<at::Tensor> gradients;
  for (int i = 0; i < kMatrices; ++i) {
    gradients.push_back(torch::randn({kSide * kSide}));
  }
  for (auto _ : state) {
    for (int i = 0; i < kMatrices; ++i) {
      gradwire::Bucket bucket(
          i,
          i + 1 == kMatrices,
          gradients[i],
          {std::make_shared<const gradwire::Parameter>(
              gradwire::Parameter{"w" + std::to_string(i), parameter})});
      hook->reduce(bucket).wait();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  benchmark::RegisterBenchmark("floor", copy);
  for (const std::string options :
       {"rank=1", "rank=2", "rank=4", "rank=8", "rank=4,ef=off"}) {
    benchmark::RegisterBenchmark(
        ("powersgd/" + options).c_str(),
        [options](benchmark::State& state) { powersgd(state, options); });
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
