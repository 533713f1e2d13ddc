// PyTorch's names of hooks are one table; Python and the benchmark agree with
// it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "apps/gradwire/bench/peer.h"
#include "gradwire/base/text.h"
#include "gradwire/ddp/comm_hook_type.h"
#include "gradwire/hook/registry.h"

namespace gradwire::apps {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(TorchNames, PythonHasTheSameNames) {
  std::ifstream file(GRADWIRE_SOURCE
                     "/python/gradwire/ddp_comm_hooks/__init__.py");
  const std::string python(std::istreambuf_iterator<char>(file), {});
  for (const auto& row : comm_hook_names()) {
    EXPECT_THAT(python, HasSubstr(concat("\n    ", row.name, " = ")));
  }
}

TEST(TorchNames, TheBenchmarkMeasuresThemOrSaysWhyNot) {
  EXPECT_EQ(peer_hook("none").torch_name, "none");
  EXPECT_EQ(peer_hook("fp16:ef=on").torch_name, "FP16_COMPRESS");
  EXPECT_EQ(peer_hook("int4").why_not, "PyTorch has no such hook");
  for (const auto& row : comm_hook_names()) {
    EXPECT_EQ(hook_spec(row.type), row.spec);
    EXPECT_NO_THROW(check_hook_spec(row.spec));
    const auto peer = peer_hook(row.spec);
    EXPECT_THAT(peer.torch_name, AnyOf("", row.name));
    if (!peer.why_not.empty()) {
      EXPECT_THAT(
          peer.why_not,
          AnyOf(
              StartsWith("QUANTIZE_PER_TENSOR "),
              StartsWith("BF16_COMPRESS "),
              StartsWith("POWER_SGD "),
              StartsWith("BATCHED_POWER_SGD ")));
    }
  }
}

}  // namespace
}  // namespace gradwire::apps
