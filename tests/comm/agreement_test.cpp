#include "gradwire/comm/agreement.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gradwire/comm/group_impl.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

using test::run_threads;

TEST(Agreement, EqualFactsPassManyTimes) {
  run_threads(3, [](const Group& group) {
    for (int i = 0; i < 20; ++i) {
      agree(group, "thing", {{"number", std::to_string(i)}});
    }
  });
}

TEST(Agreement, EveryRankGetsTheSameText) {
  run_threads(3, [](const Group& group) {
    // Rank 2 differs; ranks 0 and 1 agree with each other.
    EXPECT_ERROR(
        Error,
        agree(
            group,
            "thing",
            {{"shape", "4x4"}, {"hook", group.rank() == 2 ? "int4" : "int8"}}),
        "[gradwire.comm] ranks do not agree on thing: hook is 'int8' on rank 0 "
        "but 'int4' on rank 2");
    group.barrier().wait();
  });
}

TEST(Agreement, DifferentCallsAreToldApart) {
  run_threads(2, [](const Group& group) {
    EXPECT_ERROR(
        Error,
        agree(group, group.rank() == 0 ? "set_hook" : "subgroup", {}),
        "the call is 'set_hook' on rank 0 but 'subgroup' on rank 1");
  });
}

TEST(Agreement, MissingFactsAreNamed) {
  run_threads(2, [](const Group& group) {
    std::vector<Fact> facts{{"parameter 0", "weight"}};
    if (group.rank() == 1) {
      facts.push_back({"parameter 1", "bias"});
    }
    EXPECT_ERROR(
        Error,
        agree(group, "thing", facts),
        "rank 0 has (nothing) where rank 1 has parameter 1");
  });
}

TEST(Agreement, ARankThatDoesNotComeIsNamed) {
  run_threads(
      3,
      [](const Group& group) {
        if (group.rank() != 1) {
          EXPECT_ERROR(
              CommError,
              agree(group, "thing", {}),
              "thing: rank 1 did not arrive within 1 s",
              "s (rank ",
              ", group 'world')");
        }
      },
      {.timeout = std::chrono::seconds(1)});
}

TEST(Agreement, SharedIsWhatRankZeroHas) {
  run_threads(3, [](const Group& group) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(
          share(group, "number", concat(10 * i + group.rank())),
          concat(10 * i));
    }
  });
}

// What a peer has written may be anything.
TEST(Agreement, ADamagedTextOfAPeerIsAnErrorAndNoMore) {
  run_threads(2, [](const Group& group) {
    if (group.rank() == 0) {
      EXPECT_ERROR(
          Error,
          agree(group, "thing", {{"hook", "int8"}}),
          "ranks do not agree on thing: ",
          "has hook where rank 1 has (nothing)");
    } else {
      auto& store = *group.impl().store;
      store.set("agree/0/1/text", std::string("the call\x1fthing\x1f"));
      store.set("agree/0/1/print", std::string("1"));
      store.set("agree/0/1/left", std::string());
    }
  });
}

TEST(Agreement, ATextWithoutAnEndIsReadToItsEnd) {
  run_threads(2, [](const Group& group) {
    if (group.rank() == 0) {
      EXPECT_ERROR(
          Error,
          agree(group, "thing", {}),
          "the call is 'thing' on rank 0 but 'thin' on rank 1");
    } else {
      auto& store = *group.impl().store;
      store.set("agree/0/1/text", std::string("the call\x1fthin"));
      store.set("agree/0/1/print", std::string("1"));
      store.set("agree/0/1/left", std::string());
    }
  });
}

}  // namespace
}  // namespace gradwire
