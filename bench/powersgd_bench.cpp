// PowerSGD against its floor: 24 bytes an element (gradient and residual, read
// and written, and read again in between) at the speed of memcpy in the same
// run. 25 M parameters in six buckets, one thread a rank.
//
//   build/release/bench/gradwire_powersgd_bench
//   gradwire run --nproc 2 -- build/release/bench/gradwire_powersgd_bench
//
// The three products stand beside those of ATen's BLAS, the orthogonal basis
// beside thin QR.

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <cstring>
#include <iostream>

#include "gradwire/comm/init.h"
#include "gradwire/hook/registry.h"
#include "gradwire/linalg/orthogonal.h"
#include "gradwire/linalg/thin_product.h"

namespace {

constexpr std::int64_t kSide = 2048;
constexpr int kMatrices = 6;
// Ranks must take as many steps as each other.
constexpr int kSteps = 20;

using gradwire::Group;

void copy(benchmark::State& state, const Group& group) {
  const auto from = torch::ones({kMatrices * kSide * kSide});
  auto to = torch::zeros_like(from);
  for (auto _ : state) {
    state.PauseTiming();
    group.barrier().wait();
    state.ResumeTiming();
    // 8 bytes an element each time.
    for (int i = 0; i < 3; ++i) {
      std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
      benchmark::ClobberMemory();
    }
  }
}

std::vector<gradwire::Bucket> make_buckets() {
  std::vector<gradwire::Bucket> buckets;
  for (int i = 0; i < kMatrices; ++i) {
    buckets.emplace_back(
        i,
        i + 1 == kMatrices,
        torch::randn({kSide * kSide}),
        std::vector{
            std::make_shared<const gradwire::Parameter>(gradwire::Parameter{
                "w" + std::to_string(i), torch::zeros({kSide, kSide})})});
  }
  return buckets;
}

void hook(
    benchmark::State& state, const Group& group, const std::string& spec) {
  const auto hook = gradwire::make_hook(spec, group);
  auto buckets = make_buckets();
  const auto step = [&] {
    gradwire::Step step{.outcome = gradwire::Step::Outcome::kApplied};
    std::vector<gradwire::Future> done;
    hook->begin_step(step);
    for (auto& bucket : buckets) {
      done.push_back(hook->reduce(bucket));
    }
    for (const auto& future : done) {
      future.wait();
    }
    hook->end_step(step);
  };
  // The first one makes buffers, the second one touches the other residuals.
  step();
  step();
  for (auto _ : state) {
    state.PauseTiming();
    group.barrier().wait();
    state.ResumeTiming();
    step();
  }
}

struct Factors {
  explicit Factors(std::int64_t rank)
      : m(torch::randn({kSide, kSide})),
        p(torch::randn({kSide, rank})),
        q(torch::randn({rank, kSide})),
        product(torch::zeros({kSide, kSide})) {}
  at::Tensor m;
  at::Tensor p;
  at::Tensor q;
  at::Tensor product;
};

void own_products(benchmark::State& state) {
  Factors f(state.range(0));
  const auto rank = f.q.size(0);
  const gradwire::linalg::Sum m{
      f.m.const_data_ptr<float>(), nullptr, kSide, kSide};
  float* p = f.p.data_ptr<float>();
  float* q = f.q.data_ptr<float>();
  for (auto _ : state) {
    gradwire::linalg::times_transposed(m, q, rank, p);
    gradwire::linalg::add_transposed_times(m, p, rank, q);
    gradwire::linalg::expand(
        m, p, q, rank, f.product.data_ptr<float>(), nullptr);
    // Sums of sums grow without bound otherwise.
    f.p.fill_(1);
    f.q.fill_(1);
  }
}

void blas_products(benchmark::State& state) {
  Factors f(state.range(0));
  for (auto _ : state) {
    at::mm_out(f.p, f.m, f.q.t());
    at::mm_out(f.q, f.p.t(), f.m);
    at::mm_out(f.product, f.p, f.q);
    f.p.fill_(1);
    f.q.fill_(1);
  }
}

void own_basis(benchmark::State& state) {
  const Factors f(state.range(0));
  gradwire::linalg::Orthogonaliser orthogonaliser;
  auto columns = f.p.clone();
  for (auto _ : state) {
    columns.copy_(f.p);
    orthogonaliser.apply(
        {columns.data_ptr<float>(), kSide, f.p.size(1), f.p.size(1), 1});
  }
}

void thin_qr(benchmark::State& state) {
  const Factors f(state.range(0));
  auto columns = f.p.clone();
  for (auto _ : state) {
    columns.copy_(std::get<0>(at::linalg_qr(f.p)));
  }
}

void add_hooks(const Group& group) {
  const auto add = [&](const std::string& name, auto run) {
    benchmark::RegisterBenchmark(name.c_str(), run)
        ->Iterations(kSteps)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  add("floor", [&](benchmark::State& state) { copy(state, group); });
  for (const std::string spec :
       {"powersgd:rank=1,start=0",
        "powersgd:rank=2,start=0",
        "powersgd:rank=4,start=0",
        "powersgd:rank=8,start=0",
        "powersgd:rank=4,start=0,ef=off",
        "powersgd:rank=4,start=0,alternate=on",
        "powersgd:rank=4,start=0,iterations=2",
        "powersgd:rank=4,start=0,memory=bf16",
        "batched_powersgd:rank=4,start=0"}) {
    add(spec,
        [&group, spec](benchmark::State& state) { hook(state, group, spec); });
  }
}

void add_products() {
  for (const std::int64_t rank : {1, 2, 4, 8, 32}) {
    const auto add = [&](const char* name, auto run) {
      benchmark::RegisterBenchmark(name, run)->Arg(rank)->Unit(
          benchmark::kMicrosecond);
    };
    add("products", own_products);
    add("products/BLAS", blas_products);
    add("basis", own_basis);
    add("basis/QR", thin_qr);
  }
}

// Of ranks other than the first.
struct Silent : benchmark::BenchmarkReporter {
  bool ReportContext(const Context&) override {
    return true;
  }
  void ReportRuns(const std::vector<Run>&) override {}
};

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const auto group = gradwire::init();
  benchmark::Initialize(&argc, argv);
  add_hooks(group);
  if (group.size() == 1) {
    add_products();
  }
  if (group.rank() == 0) {
    benchmark::RunSpecifiedBenchmarks();
  } else {
    Silent silent;
    benchmark::RunSpecifiedBenchmarks(&silent);
  }
  benchmark::Shutdown();
  group.barrier().wait();
  return 0;
}
