// What every hook in the registry must do, whatever it is. A hook's own test
// file holds only what is special about it.

#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include "gradwire/ddp/ddp.h"
#include "gradwire/hook/registry.h"
#include "tests/support/expect.h"
#include "tests/support/hook_step.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::random_tensor;
using test::same_bits;
using test::same_on_all_ranks;

bool averages(const HookInfo& info) {
  return info.result == HookInfo::Result::kAverage;
}

// Under which it does from the first step on what it is for.
std::string spec_of(const HookInfo& info) {
  return info.trial.empty() ? info.name : concat(info.name, ":", info.trial);
}

// Lossy beyond what can be said without knowing the gradients.
bool has_no_bound(const HookInfo& info) {
  return std::isinf(info.tolerance);
}

// The same elements as a matrix, as nearly square as can be.
at::Tensor as_matrix(const at::Tensor& flat) {
  auto rows =
      static_cast<std::int64_t>(std::sqrt(static_cast<double>(flat.numel())));
  while (rows > 1 && flat.numel() % rows != 0) {
    --rows;
  }
  return flat.view({std::max<std::int64_t>(1, rows), -1});
}

// One backward's worth of buckets through the hook.
std::vector<at::Tensor> reduce(
    Hook& hook, const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> results;
  const test::HookStep step(hook);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    // Another size is another parameter.
    const auto name = concat("p", i, "of", gradients[i].numel());
    auto parameter = std::make_shared<const Parameter>(
        Parameter{name, as_matrix(torch::zeros_like(gradients[i]))});
    Bucket bucket(
        i, i + 1 == gradients.size(), gradients[i].clone(), {parameter});
    results.push_back(hook.reduce(bucket).wait());
  }
  return results;
}

// Against the exact mean of `mine` over ranks; the tolerance is relative to the
// largest element that any rank brought.
void expect_mean(
    const Group& group,
    const at::Tensor& got,
    const at::Tensor& mine,
    double tolerance) {
  if (mine.numel() == 0) {
    EXPECT_EQ(got.numel(), 0);
    return;
  }
  const auto expected = test::exact_mean(group, mine);
  auto largest = mine.abs().max().to(torch::kDouble);
  group.all_reduce(largest, ReduceOp::kMax).wait();
  const double bound =
      std::max(tolerance, 1e-6) * std::max(1e-30, largest.item<double>());
  EXPECT_LE((got - expected).abs().max().item<double>(), bound);
}

using Check = void (*)(const HookInfo&, const Group&);

void averages_within_its_tolerance(const HookInfo& info, const Group& group) {
  const auto hook = make_hook(spec_of(info), group);
  for (const std::int64_t elems : {0, 1, 7, 512, 513, 10000}) {
    const auto mine = random_tensor({elems}, 100 * elems + group.rank());
    const auto result = reduce(*hook, {mine}).at(0);
    const bool is_exact = group.size() == 1 && !has_no_bound(info);
    if (!averages(info) || is_exact) {
      EXPECT_TRUE(same_bits(result, mine)) << elems;
      continue;
    }
    expect_mean(group, result, mine, info.tolerance);
    EXPECT_TRUE(same_on_all_ranks(group, result)) << elems;
  }
}

void zeros_stay_zero(const HookInfo& info, const Group& group) {
  const auto hook = make_hook(spec_of(info), group);
  const auto result = reduce(*hook, {torch::zeros({1000})}).at(0);
  EXPECT_EQ(result.count_nonzero().item<std::int64_t>(), 0);
}

void repeats_itself(const HookInfo& info, const Group& group) {
  std::vector<at::Tensor> gradients;
  for (int i = 0; i < 5; ++i) {
    gradients.push_back(random_tensor({997}, 10 * i + group.rank()));
  }
  const auto once = reduce(*make_hook(spec_of(info), group), gradients);
  const auto again = reduce(*make_hook(spec_of(info), group), gradients);
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_TRUE(same_bits(once[i], again[i]));
  }
}

void non_finite_values_reach_every_rank(
    const HookInfo& info, const Group& group) {
  const auto hook = make_hook(spec_of(info), group);
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(),
        std::numeric_limits<double>::infinity()}) {
    auto mine = random_tensor({600}, group.rank());
    const int last = group.size() - 1;
    if (group.rank() == last) {
      mine[17] = bad;
    }
    const auto result = reduce(*hook, {mine}).at(0);
    const bool expected = averages(info) || group.rank() == last;
    EXPECT_EQ(result[17].isfinite().item<bool>(), !expected);
  }
}

// What a hook did not send it must still have, or have declared as lost.
void nothing_is_lost_by_feedback(const HookInfo& info, const Group& group) {
  const auto hook = make_hook(spec_of(info), group);
  const auto mine = random_tensor({3000}, group.rank());
  const auto average = reduce(*hook, {mine}).at(0);
  HookState state;
  hook->save(state);
  if (state.residuals.empty()) {
    return;
  }
  auto owed = state.residuals.at("p0of3000").clone();
  group.all_reduce(owed).wait();
  const auto sum = test::exact_mean(group, mine) * group.size();
  const auto sent = average * group.size();
  EXPECT_LE((sent + owed - sum).abs().max().item<double>(), 1e-5);
}

void a_saved_hook_goes_on_exactly(const HookInfo& info, const Group& group) {
  const auto gradient = [&](int step, int i) {
    return random_tensor({1500 + 1000 * i}, 100 * step + 10 * i + group.rank());
  };
  const auto hook = make_hook(spec_of(info), group);
  reduce(*hook, {gradient(0, 0), gradient(0, 1)});
  HookState state;
  hook->save(state);
  const auto expected = reduce(*hook, {gradient(1, 0), gradient(1, 1)});
  const auto resumed = make_hook(spec_of(info), group);
  resumed->load(state);
  const auto got = reduce(*resumed, {gradient(1, 0), gradient(1, 1)});
  EXPECT_TRUE(same_bits(got[0], expected[0]));
  EXPECT_TRUE(same_bits(got[1], expected[1]));
}

void a_skipped_step_leaves_no_trace(const HookInfo& info, const Group& group) {
  const auto hook = make_hook(spec_of(info), group);
  const auto first = random_tensor({2000}, group.rank());
  reduce(*hook, {first, first});
  HookState before;
  hook->save(before);
  // Not in the bucket that has the residual in question.
  auto bad = first.clone();
  if (group.rank() == 0) {
    bad[5] = std::numeric_limits<float>::quiet_NaN();
  }
  reduce(*hook, {first * 2, bad});
  HookState after;
  hook->save(after);
  ASSERT_EQ(before.residuals.size(), after.residuals.size());
  for (const auto& [name, residual] : before.residuals) {
    EXPECT_TRUE(same_bits(residual, after.residuals.at(name))) << name;
  }
}

void handles_other_types(const HookInfo& info, const Group& group) {
  const auto hook = make_hook(spec_of(info), group);
  for (const auto type : {torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    const auto mine = random_tensor({100}, group.rank()).to(type);
    const auto result = reduce(*hook, {mine}).at(0);
    if (averages(info)) {
      // The type itself rounds at every addition.
      const double rounding = type == torch::kDouble ? 0
                              : type == torch::kHalf ? 4.0 / 2048
                                                     : 4.0 / 256;
      expect_mean(
          group,
          result.to(torch::kDouble),
          mine.to(torch::kDouble),
          info.tolerance + rounding);
      EXPECT_TRUE(same_on_all_ranks(group, result));
    }
  }
}

// Through DDP: several buckets, rebuilt after the first iteration. `swapped`:
// the hook replaces another one, so that it is the adapter that calls it, also
// where the Reducer could do without.
void train_through_a_rebuild(
    const HookInfo& info, const Group& group, bool swapped) {
  torch::nn::Sequential net(
      torch::nn::Linear(16, 64),
      torch::nn::ReLU(),
      torch::nn::Linear(64, 64),
      torch::nn::Linear(64, 4));
  test::fill_parameters(*net, 7);
  torch::nn::Sequential alone =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  auto ddp = DistributedDataParallel(
      net,
      group,
      {.hook = swapped ? HookChoice("noop") : HookChoice(spec_of(info)),
       .bucket_cap_mb = 0.01,
       .first_bucket_cap_mb = 0.001});
  if (swapped) {
    ddp->set_hook(spec_of(info));
  }
  for (int step = 0; step < 4; ++step) {
    const auto input = random_tensor({8, 16}, 50 * step + group.rank());
    ddp->zero_grad();
    alone->zero_grad();
    ddp->forward(input).square().mean().backward();
    alone->forward(input).square().mean().backward();
    const auto expected = alone->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto got = ddp->parameters()[i].grad();
      if (!averages(info)) {
        EXPECT_TRUE(same_bits(got, expected[i].grad()));
        continue;
      }
      // The tolerance is relative to a bucket's largest element.
      EXPECT_TRUE(same_on_all_ranks(group, got));
      expect_mean(
          group, got, expected[i].grad(), std::max(2e-6, 10 * info.tolerance));
    }
  }
  EXPECT_TRUE(ddp->stats().rebuilt);
  EXPECT_GT(ddp->stats().bucket_bytes.size(), 1u);
}

void trains_through_a_rebuild(const HookInfo& info, const Group& group) {
  train_through_a_rebuild(info, group, false);
  train_through_a_rebuild(info, group, true);
}

struct NamedCheck {
  const char* name;
  Check check;
};
const std::vector<NamedCheck> kChecks{
    {"Averages", averages_within_its_tolerance},
    {"ZerosStayZero", zeros_stay_zero},
    {"Repeats", repeats_itself},
    {"NonFinite", non_finite_values_reach_every_rank},
    {"Feedback", nothing_is_lost_by_feedback},
    {"SaveAndLoad", a_saved_hook_goes_on_exactly},
    {"SkippedStep", a_skipped_step_leaves_no_trace},
    {"OtherTypes", handles_other_types},
    {"Rebuild", trains_through_a_rebuild}};

struct Case {
  HookInfo info;
  int world;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.info.name << " on " << c.world;
}

std::vector<Case> cases(const std::vector<int>& worlds = {1, 2, 3, 4}) {
  std::vector<Case> result;
  for (const auto& info : hooks()) {
    for (const int world : worlds) {
      if (info.wraps != HookInfo::Wraps::kAlways) {
        result.push_back({info, world});
      }
    }
  }
  return result;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return concat(info.param.info.name, "_W", info.param.world);
}

class Conformance : public testing::TestWithParam<Case> {
 public:
  static void run_all(test::Runner run, const test::RankOptions& options = {}) {
    const Case& c = GetParam();
    run(
        c.world,
        [&](const Group& group) {
          for (const auto& [name, check] : kChecks) {
            const testing::ScopedTrace trace(__FILE__, __LINE__, name);
            check(c.info, group);
          }
        },
        options);
  }
};
INSTANTIATE_TEST_SUITE_P(
    Hooks, Conformance, testing::ValuesIn(cases()), case_name);
TEST_P(Conformance, OnThreads) {
  run_all(test::run_threads);
}

// Ranks of one process without sockets: the same checks, and more ranks than
// sockets would allow.
std::vector<int> local_worlds() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return {2, 4};
#else
  return {2, 8, 64};
#endif
}

class ConformanceLocal : public Conformance {};
INSTANTIATE_TEST_SUITE_P(
    Hooks,
    ConformanceLocal,
    testing::ValuesIn(cases(local_worlds())),
    case_name);
TEST_P(ConformanceLocal, OnThreads) {
  run_all(
      test::run_threads,
      {.timeout = std::chrono::seconds(120), .transport = "local"});
}

class ConformanceProcesses : public Conformance {};
INSTANTIATE_TEST_SUITE_P(
    Hooks, ConformanceProcesses, testing::ValuesIn(cases()), case_name);
TEST_P(ConformanceProcesses, OnProcesses) {
  run_all(test::run_processes);
}

// With somebody to lose and a hook that would notice.
std::vector<Case> cases_with_peers() {
  auto result = cases();
  std::erase_if(
      result, [](const Case& c) { return c.world < 2 || !averages(c.info); });
  return result;
}

class PeerLossProcesses : public Conformance {};
INSTANTIATE_TEST_SUITE_P(
    Hooks, PeerLossProcesses, testing::ValuesIn(cases_with_peers()), case_name);
TEST_P(PeerLossProcesses, APeersDeathSurfacesInBackward) {
  const Case& c = GetParam();
  test::run_processes(
      c.world,
      [&](const Group& group) {
        torch::nn::Linear net(8, 8);
        auto ddp = DistributedDataParallel(net, group, {.hook = "noop"});
        ddp->set_hook(spec_of(c.info));
        ddp->forward(torch::ones({2, 8})).sum().backward();
        auto loss = ddp->forward(torch::ones({2, 8})).sum();
        if (group.rank() == group.size() - 1) {
          raise(SIGKILL);
        }
        EXPECT_ERROR(
            CommError,
            loss.backward(),
            concat("rank ", group.rank()),
            "bucket 0",
            concat("hook ", c.info.name));
      },
      {.timeout = std::chrono::seconds(10), .may_die = {c.world - 1}});
}

}  // namespace
}  // namespace gradwire
