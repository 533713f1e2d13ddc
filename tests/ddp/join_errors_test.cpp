#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/ddp/join_net.h"
#include "tests/support/expect.h"

namespace gradwire::test {
namespace {

TEST(JoinErrors, EarlyTerminationIsAnErrorOnEveryRankWhereAsked) {
  run_threads(3, [](const Group& group) {
    const Ddp one(make_net(7), group);
    const Ddp two(make_net(7), group);
    const auto work = [&] {
      Join join({.throw_on_early_termination = true}, one, two);
      for (int step = 0; step < (group.rank() == 1 ? 1 : 3); ++step) {
        const auto x = input(group.rank(), step);
        (one->forward(x).sum() + two->forward(x).sum()).backward();
      }
      join.finish();
    };
    if (group.rank() == 1) {
      EXPECT_ERROR(
          Error,
          work(),
          "rank 1 has no more input while 2 of 3 ranks have, and "
          "throw_on_early_termination is set");
    } else {
      EXPECT_ERROR(
          Error,
          work(),
          "1 of 3 ranks have no more input, and throw_on_early_termination is "
          "set");
    }
    // Nothing is lost: the models go on together.
    train(one, group, {1, 1, 1});
    expect_equal_on_all_ranks(group, flat(one->parameters()));
  });
}

TEST(JoinErrors, RanksThatDoDifferentThingsAreTold) {
  run_threads(2, [](const Group& group) {
    const Ddp ddp(make_net(7), group);
    Join join(ddp);
    auto loss = ddp->forward(input(0, 0)).sum();
    if (group.rank() == 0) {
      EXPECT_ERROR(
          Error,
          loss.backward(),
          "ranks in a Join do different things: rank 0 begins a backward, rank "
          "1 a forward");
    } else {
      EXPECT_ERROR(
          Error,
          ddp->forward(input(0, 1)),
          "ranks in a Join do different things: rank 0 begins a backward, rank "
          "1 a forward");
    }
    join.finish();
    EXPECT_ERROR(Error, join.finish(), "the Join is finished already");
  });
}

TEST(JoinErrors, ABackwardThatLacksGradientsIsAnErrorNotAHang) {
  run_threads(2, [](const Group& group) {
    const Ddp ddp(make_net(7), group);
    const auto work = [&] {
      Join join(ddp);
      for (int step = 0; step < 2; ++step) {
        ddp->forward(input(group.rank(), step));
        ddp->module()->first(input(group.rank(), step)).sum().backward();
      }
      join.finish();
    };
    EXPECT_ERROR(
        Error,
        work(),
        "the last backward did not finish: 4 of 6 parameters got no gradient");
  });
}

// A hook that fails on all ranks at the same bucket costs a step, also when one
// of them has no input.
TEST(JoinErrors, GoesOnAfterAFailureOfTheHook) {
  for (const int inputs : {0, 2}) {
    run_threads(2, [&](const Group& group) {
      int calls = 0;
      const Ddp ddp(make_net(7), group, {.hook = [&, group](Bucket& bucket) {
                      if (++calls == 2) {
                        fail("test", "the second bucket of all");
                      }
                      return group.all_reduce(bucket.buffer());
                    }});
      torch::optim::SGD sgd(ddp->parameters(), 0.1);
      {
        const Join join(ddp);
        for (int step = 0; step < (group.rank() == 0 ? inputs : 4); ++step) {
          sgd.zero_grad();
          auto loss = ddp->forward(input(group.rank(), step)).square().sum();
          if (step == 1) {
            EXPECT_ERROR(Error, loss.backward(), "the second bucket of all");
          } else {
            loss.backward();
            sgd.step();
          }
        }
      }
      expect_equal_on_all_ranks(group, flat(ddp->parameters()));
    });
  }
}

TEST(JoinErrors, WhatRanksWithoutInputCannotDoIsRefused) {
  run_threads(2, [](const Group& group) {
    const Ddp one(make_net(7), group);
    const Ddp two(make_net(7), group);
    {
      const Join join(one);
      EXPECT_ERROR(
          Error,
          one->set_hook("int8"),
          "set_hook was called inside of a Join, expected it before or after");
      EXPECT_ERROR(
          Error,
          one->save_hook_state("/tmp/nowhere"),
          "save_hook_state was called inside of a Join");
      EXPECT_ERROR(
          Error, const Join again(one), "a DDP can be in one Join at a time");
      EXPECT_ERROR(Error, Join(two, two), "a DDP can be in one Join at a time");
    }
    one->set_hook("int8");
    EXPECT_ERROR(
        Error,
        group.rank() == 0 ? Join(one, two).finish() : Join(two, one).finish(),
        "ranks do not agree on Join: DDP is '");
  });
}

TEST(JoinErrors, OptionsMustAgree) {
  run_threads(2, [](const Group& group) {
    const Ddp ddp(make_net(7), group);
    EXPECT_ERROR(
        Error,
        Join({.divide_by_initial_world_size = group.rank() == 0}, ddp),
        "ranks do not agree on Join: divide_by_initial_world_size is '1' on "
        "rank 0 but '0' on rank 1");
  });
}

TEST(JoinErrors, RanksThatWaitLongWarn) {
  struct Lines : c10::WarningHandler {
    void process(const c10::Warning& warning) override {
      const std::lock_guard lock(mutex);
      text += warning.msg();
    }
    std::mutex mutex;
    std::string text;
  } lines;
  run_threads(2, [&](const Group& group) {
    const c10::WarningUtils::WarningHandlerGuard guard(&lines);
    const Ddp ddp(make_net(7), group);
    const Join join(ddp);
    const auto local = ddp->no_sync();
    for (int step = 0; step < 1001 * group.rank(); ++step) {
      ddp->forward(input(0, 0));
    }
  });
  EXPECT_NE(
      lines.text.find("rank 0 has had no input for 1000 forwards"),
      std::string::npos)
      << lines.text;
}

}  // namespace
}  // namespace gradwire::test
