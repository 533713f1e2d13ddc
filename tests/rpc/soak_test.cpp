#include <gtest/gtest.h>

#include <fstream>

#include "gradwire/rpc/context.h"
#include "tests/rpc/faults.h"

#ifdef __SANITIZE_ADDRESS__
// GCC comes without the header that declares it.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace gradwire::test {
namespace {

using autograd::Context;

// The address sanitizer keeps freed memory for a while: what the process has is
// not what it uses.
std::int64_t bytes_in_use() {
#ifdef __SANITIZE_ADDRESS__
  return static_cast<std::int64_t>(__sanitizer_get_current_allocated_bytes());
#else
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  file >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
#endif
}

// Ten thousand calls and a thousand contexts: memory stays, and so do threads.
TEST(RpcSoakProcesses, ASoakLeavesNothingBehind) {
  once<register_faults>();
  rpc::register_function("in_use", [] { return bytes_in_use(); });
  run_workers(
      2,
      [](const Group& group) {
        if (group.rank() == 1) {
          return;
        }
        const auto x = torch::ones({8, 2}).requires_grad_();
        const auto round = [&](int calls, int contexts) {
          for (int i = 0; i < calls; ++i) {
            rpc::call<at::Tensor>(
                "worker1", "times_weight", torch::ones({8, 2}));
          }
          for (int i = 0; i < contexts; ++i) {
            const Context context;
            autograd::backward(
                context,
                {rpc::call<at::Tensor>("worker1", "times_weight", x).sum()});
          }
        };
        round(2000, 200);  // what is allocated once
        const auto here = bytes_in_use();
        const auto there = rpc::call<std::int64_t>("worker1", "in_use");
        round(10000, 1000);
        // A leak of one tensor a call would be tens of MB.
        const std::int64_t slack = 4 << 20;
        EXPECT_LT(bytes_in_use() - here, slack);
        EXPECT_LT(rpc::call<std::int64_t>("worker1", "in_use") - there, slack);
      },
      // Worker 1 has left its body and waits for worker 0 all the while.
      {.ranks = {.timeout = std::chrono::seconds(120)}});
}

}  // namespace
}  // namespace gradwire::test
