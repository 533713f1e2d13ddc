#pragma once

#include <c10/core/Allocator.h>
#include <torch/torch.h>

#include <atomic>
#include <memory>

namespace gradwire::test {

// Counts what the CPU allocator hands out in large pieces.
struct LargeAllocations : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(
      void*,
      std::int64_t bytes,
      std::size_t,
      std::size_t,
      c10::Device) override {
    count += bytes >= 1 << 20;
  }
  bool memoryProfilingEnabled() const override {
    return true;
  }
  std::atomic<int> count = 0;
};

// Of step() on this thread, and on those that autograd runs it on.
template <class Step>
int large_allocations_of(const Step& step) {
  const auto counter = std::make_shared<LargeAllocations>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  step();
  return counter->count;
}

}  // namespace gradwire::test
