#include "gradwire/hook/hook_state.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/gradients.h"
#include "tests/support/hostile_archive.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

using test::GivenGradients;
using test::run_threads;
using test::same_bits;
using test::TemporaryFolder;
using Sizes = std::vector<std::int64_t>;

const Sizes kSizes{4000, 300, 2500};

auto make(
    const Group& group, const std::string& hook, const Sizes& sizes = kSizes) {
  return DistributedDataParallel(
      std::make_shared<GivenGradients>(sizes),
      group,
      {.hook = hook, .bucket_cap_mb = 0.01, .first_bucket_cap_mb = 0.001});
}

template <class Ddp>
at::Tensor step(const Ddp& ddp, int number, int rank) {
  const auto net = ddp->module();
  ddp->zero_grad();
  ddp->forward(net->random(100 * number + rank)).backward();
  return net->flat_gradients();
}

// Saves after some steps of `world` ranks.
void save(int world, const std::string& hook, const std::string& folder) {
  run_threads(world, [&](const Group& group) {
    auto ddp = make(group, hook);
    for (int i = 0; i < 3; ++i) {
      step(ddp, i, group.rank());
    }
    ddp->save_hook_state(folder);
  });
}

TEST(HookState, ResumingIsBitIdentical) {
  for (const std::string hook : {"int8", "int4:rounding=stochastic"}) {
    const TemporaryFolder folder;
    run_threads(3, [&](const Group& group) {
      auto ddp = make(group, hook);
      for (int i = 0; i < 3; ++i) {
        step(ddp, i, group.rank());
      }
      ddp->save_hook_state(folder.path());
      auto resumed = make(group, hook);
      resumed->load_hook_state(folder.path());
      // Without the state it is another result.
      auto fresh = make(group, hook);
      for (int i = 3; i < 7; ++i) {
        const auto expected = step(ddp, i, group.rank());
        EXPECT_TRUE(same_bits(step(resumed, i, group.rank()), expected)) << i;
        EXPECT_FALSE(same_bits(step(fresh, i, group.rank()), expected)) << i;
      }
    });
  }
}

// Saved after the first step, when all parameters are in one bucket still.
TEST(HookState, SavedBeforeBucketsAreRebuilt) {
  const TemporaryFolder folder;
  run_threads(3, [&](const Group& group) {
    const Sizes sizes(8, 3000);
    auto ddp = make(group, "int8", sizes);
    step(ddp, 0, group.rank());
    ddp->save_hook_state(folder.path());
    const auto expected = step(ddp, 1, group.rank());
    step(ddp, 2, group.rank());
    ddp->load_hook_state(folder.path());
    EXPECT_TRUE(same_bits(step(ddp, 1, group.rank()), expected));
    auto resumed = make(group, "int8", sizes);
    resumed->load_hook_state(folder.path());
    EXPECT_TRUE(same_bits(step(resumed, 1, group.rank()), expected));
  });
}

// The Reducer remembers which parameters its own buckets had.
TEST(HookState, ADdpWithOtherBucketsTakesThoseOfTheSave) {
  const TemporaryFolder folder;
  save(2, "int8", folder.path());
  run_threads(2, [&](const Group& group) {
    auto saved = make(group, "int8");
    saved->load_hook_state(folder.path());
    auto other = DistributedDataParallel(
        std::make_shared<GivenGradients>(kSizes), group, {.hook = "int8"});
    for (int i = 0; i < 3; ++i) {
      step(other, i, group.rank());
    }
    other->load_hook_state(folder.path());
    for (int i = 3; i < 6; ++i) {
      const auto expected = step(saved, i, group.rank());
      EXPECT_TRUE(same_bits(step(other, i, group.rank()), expected)) << i;
    }
  });
}

TEST(HookState, OfComplexParameters) {
  struct Net : torch::nn::Module {
    Net() {
      w = register_parameter("w", torch::ones({300}, torch::kComplexFloat));
    }
    at::Tensor forward(const at::Tensor& x) {
      return torch::real(w * x).sum();
    }
    at::Tensor w;
  };
  const TemporaryFolder folder;
  run_threads(2, [&](const Group& group) {
    const auto gradient = [&](auto& ddp, int i) {
      ddp->zero_grad();
      ddp->forward(torch::complex(
                       test::random_tensor({300}, 2 * i + group.rank()),
                       test::random_tensor({300}, 70 + 2 * i + group.rank())))
          .backward();
      return torch::view_as_real(ddp->parameters()[0].grad()).clone();
    };
    auto ddp = DistributedDataParallel(
        std::make_shared<Net>(), group, {.hook = "int4"});
    gradient(ddp, 0);
    ddp->save_hook_state(folder.path());
    auto resumed = DistributedDataParallel(
        std::make_shared<Net>(), group, {.hook = "int4"});
    resumed->load_hook_state(folder.path());
    const auto expected = gradient(ddp, 1);
    EXPECT_TRUE(same_bits(gradient(resumed, 1), expected));
  });
}

TEST(HookState, AnotherWorldInheritsTheSum) {
  for (const auto& [before, after] :
       std::vector<std::pair<int, int>>{{4, 2}, {2, 3}, {3, 2}}) {
    const TemporaryFolder folder;
    at::Tensor owed;
    run_threads(before, [&](const Group& group) {
      auto ddp = make(group, "int4");
      step(ddp, 0, group.rank());
      ddp->save_hook_state(folder.path());
      const auto sum = ddp->module()->residuals(group, *ddp);
      if (group.rank() == 0) {
        owed = sum;
      }
    });
    run_threads(after, [&](const Group& group) {
      auto ddp = make(group, "int4");
      ddp->load_hook_state(folder.path());
      const auto sum = ddp->module()->residuals(group, *ddp);
      EXPECT_TRUE(torch::allclose(sum, owed, 1e-6, 1e-6));
      EXPECT_GT(owed.abs().max().item<double>(), 0.01);
      EXPECT_ERROR(
          Error,
          ddp->load_hook_state(folder.path(), {.strict = true}),
          concat("is of a world of ", before, ", expected ", after));
    });
  }
}

// A hook of a user's, which remembers in the shape it likes.
struct Remembering : Hook {
  Future reduce(Bucket& bucket) override {
    return Future::ready(bucket.buffer());
  }
  void save(HookState& state) override {
    state.residuals["p0"] = remembered;
  }
  void load(const HookState& state) override {
    remembered = state.residuals.at("p0");
  }
  at::Tensor remembered = torch::zeros({40, 100});
};

TEST(HookState, AHookOfAUsersKeepsItsShapes) {
  const TemporaryFolder folder;
  run_threads(2, [&](const Group& group) {
    const auto net = std::make_shared<GivenGradients>(kSizes);
    ASSERT_EQ(net->named_parameters()[0].key(), "p0");
    const auto hook = std::make_shared<Remembering>();
    hook->remembered.fill_(1.0 + group.rank());
    auto ddp = DistributedDataParallel(net, group, {.hook = hook});
    ddp->save_hook_state(folder.path());
    hook->remembered = torch::zeros({40, 100});
    ddp->load_hook_state(folder.path());
    EXPECT_TRUE(same_bits(
        hook->remembered, torch::full({40, 100}, 1.0 + group.rank())));
  });
}

TEST(HookState, WhatDoesNotBelongIsRefusedOnEveryRank) {
  const TemporaryFolder folder;
  save(2, "int8", folder.path());
  run_threads(2, [&](const Group& group) {
    auto other_hook = make(group, "int4");
    EXPECT_ERROR(
        Error,
        other_hook->load_hook_state(folder.path()),
        "is of hook 'int8', expected 'int4'");
    auto other_size = make(group, "int8", {4000, 300, 2501});
    EXPECT_ERROR(
        Error,
        other_size->load_hook_state(folder.path()),
        "another model: parameter 'p2' has 2500 elements there, expected 2501");
    auto more = make(group, "int8", {4000, 300, 2500, 7});
    EXPECT_ERROR(
        Error,
        more->load_hook_state(folder.path()),
        "parameter 'p3' is missing there");
    auto same = make(group, "int8");
    EXPECT_ERROR(
        Error,
        same->load_hook_state(folder / "nowhere"),
        "hook-state.rank0' does not exist");
    auto loss = same->forward(same->module()->random(1));
    EXPECT_ERROR(
        Error,
        same->save_hook_state(folder.path()),
        "between forward and backward");
    loss.backward();
  });
}

struct Matrix : torch::nn::Module {
  explicit Matrix(at::IntArrayRef sizes) {
    weight = register_parameter("weight", torch::zeros(sizes));
  }
  at::Tensor forward(const at::Tensor& gradient) {
    return (weight * gradient).sum();
  }
  at::Tensor weight;
};

auto make_matrix(const Group& group, at::IntArrayRef sizes) {
  return DistributedDataParallel(
      std::make_shared<Matrix>(sizes),
      group,
      {.hook = "powersgd:rank=2,start=0"});
}

// A matrix of as many elements, whose basis has another shape.
TEST(HookState, OfAnotherShapeIsRefusedOnEveryRankAndNothingIsLost) {
  const TemporaryFolder folder;
  run_threads(2, [&](const Group& group) {
    const auto one_step = [&](auto& ddp, std::uint64_t seed) {
      ddp->zero_grad();
      ddp->forward(test::random_tensor(
                       ddp->module()->weight.sizes(), 2 * seed + group.rank()))
          .backward();
      return ddp->module()->weight.grad().clone();
    };
    auto saved = make_matrix(group, {40, 80});
    one_step(saved, 0);
    saved->save_hook_state(folder.path());
    auto other = make_matrix(group, {80, 40});
    auto untouched = make_matrix(group, {80, 40});
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(same_bits(one_step(other, i), one_step(untouched, i)));
      EXPECT_ERROR(
          Error,
          other->load_hook_state(folder.path()),
          "of parameter 'weight' has 160 elements, expected 80");
    }
  });
}

// Damaged in a way that only a hook sees, and on one rank only.
TEST(HookState, OfAnotherTypeIsRefusedOnEveryRankAndNothingIsLost) {
  const TemporaryFolder folder;
  save(2, "int8", folder.path());
  const std::string file = folder / "hook-state.rank1";
  HookRecord record = read_record(file);
  for (auto& [name, residual] : record.state.residuals) {
    residual = residual.to(torch::kDouble);
  }
  std::ofstream(file, std::ios::binary) << encode_record(record);
  run_threads(2, [&](const Group& group) {
    auto ddp = make(group, "int8");
    auto untouched = make(group, "int8");
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(same_bits(
          step(ddp, i, group.rank()), step(untouched, i, group.rank())));
      EXPECT_ERROR(
          Error,
          ddp->load_hook_state(folder.path()),
          "is no dense tensor of type Float on the cpu");
    }
  });
}

TEST(HookState, DamagedAndMixedFilesAreRefused) {
  const TemporaryFolder folder;
  const TemporaryFolder older;
  save(2, "int8", folder.path());
  save(2, "int8", older.path());
  // As if saving had been broken off between two ranks, after as many steps as
  // the time before.
  std::filesystem::copy(
      older / "hook-state.rank1",
      folder / "hook-state.rank1",
      std::filesystem::copy_options::overwrite_existing);
  run_threads(2, [&](const Group& group) {
    auto ddp = make(group, "int8");
    EXPECT_ERROR(
        Error, ddp->load_hook_state(folder.path()), "saving was broken off");
  });
  std::ofstream(folder / "hook-state.rank1") << "something else";
  run_threads(2, [&](const Group& group) {
    auto ddp = make(group, "int8");
    EXPECT_ERROR(
        Error,
        ddp->load_hook_state(folder.path()),
        "hook-state.rank1' is damaged");
    // Nothing was lost: the DDP goes on.
    step(ddp, 0, group.rank());
  });
}

// Whatever such an archive says is done while it is loaded.
TEST(HookState, ArchivesOfTorchScriptAreRefused) {
  const TemporaryFolder folder;
  const std::string made = folder / "made";
  std::ofstream(folder / "hook-state.rank0") << test::archive_that_makes(made);
  run_threads(1, [&](const Group& group) {
    auto ddp = make(group, "int8");
    EXPECT_ERROR(
        Error,
        ddp->load_hook_state(folder.path()),
        "hook-state.rank0' is a zip archive",
        "version 2");
    EXPECT_FALSE(std::filesystem::exists(made));
  });
}

TEST(HookState, AFolderThatCannotBeWrittenIsAnErrorOnEveryRank) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  run_threads(2, [&](const Group& group) {
    auto ddp = make(group, "int8");
    const std::string where = group.rank() == 1 ? "file" : "good";
    EXPECT_ERROR(
        Error, ddp->save_hook_state(folder / where), "cannot make the folder");
  });
}

}  // namespace
}  // namespace gradwire
