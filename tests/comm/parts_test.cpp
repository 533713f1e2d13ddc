#include "gradwire/comm/parts.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace gradwire {
namespace {

using test::run_threads;

const test::RankOptions kPartsLocal{
    .timeout = std::chrono::seconds(20), .transport = "local"};

Environment variables(std::map<std::string, std::string> values) {
  return [values](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

// As torchrun says it.
Environment seat(int rank, int world, int local_rank, int local_world) {
  return variables(
      {{"RANK", concat(rank)},
       {"WORLD_SIZE", concat(world)},
       {"LOCAL_RANK", concat(local_rank)},
       {"LOCAL_WORLD_SIZE", concat(local_world)}});
}

TEST(Parts, BlocksAreNeighbours) {
  run_threads(
      6,
      [](const Group& group) {
        EXPECT_EQ(
            blocks_of(group, 2, "subgroup"), (Parts{{0, 1}, {2, 3}, {4, 5}}));
        EXPECT_EQ(
            blocks_of(group, 1, "subgroup"),
            (Parts{{0}, {1}, {2}, {3}, {4}, {5}}));
        EXPECT_EQ(blocks_of(group, 6, "subgroup"), (Parts{{0, 1, 2, 3, 4, 5}}));
      },
      kPartsLocal);
}

TEST(Parts, BlocksThatDoNotComeOutEvenAreErrorsEverywhere) {
  run_threads(
      4,
      [](const Group& group) {
        for (const std::int64_t size : {-2, 0, 3, 5}) {
          EXPECT_ERROR(
              Error,
              blocks_of(group, size, "subgroup"),
              concat("subgroup is ", size, " for 4 ranks"),
              "expected a number that divides them");
        }
        EXPECT_ERROR(
            Error,
            blocks_of(group, group.rank() == 2 ? 4 : 2, "subgroup"),
            "ranks do not agree on subgroup",
            "number of ranks is '2' on rank 0 but '4' on rank 2");
        // One bad rank, and the others neither hang nor go on.
        EXPECT_ERROR(
            Error,
            blocks_of(group, group.rank() == 1 ? 3 : 2, "subgroup"),
            "subgroup is 3 for 4 ranks");
      },
      kPartsLocal);
}

TEST(Parts, MachinesAreWhatTheLauncherSays) {
  run_threads(
      4,
      [](const Group& group) {
        const int rank = group.rank();
        EXPECT_EQ(
            machines_of(group, seat(rank, 4, rank % 2, 2)),
            (Parts{{0, 1}, {2, 3}}));
        EXPECT_EQ(
            machines_of(group, seat(rank, 4, rank, 4)), (Parts{{0, 1, 2, 3}}));
        // Machines of one and of three, and a launcher that does not say how
        // many there are.
        const bool alone = rank == 0;
        EXPECT_EQ(
            machines_of(
                group, seat(rank, 4, alone ? 0 : rank - 1, alone ? 1 : 3)),
            (Parts{{0}, {1, 2, 3}}));
        EXPECT_EQ(
            machines_of(
                group,
                variables(
                    {{"OMPI_COMM_WORLD_RANK", concat(rank)},
                     {"OMPI_COMM_WORLD_SIZE", "4"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", concat(rank % 2)}})),
            (Parts{{0, 1}, {2, 3}}));
      },
      kPartsLocal);
}

// Trainers of a job that has other workers too.
TEST(Parts, MachinesOfAPartOfTheJob) {
  run_threads(
      3,
      [](const Group& group) {
        const int in_job = group.rank() + 5;
        EXPECT_EQ(
            machines_of(group, seat(in_job, 8, in_job % 4, 4)),
            (Parts{{0, 1, 2}}));
      },
      kPartsLocal);
}

TEST(Parts, MachinesThatNobodyKnowsAreErrorsEverywhere) {
  run_threads(
      4,
      [](const Group& group) {
        const int rank = group.rank();
        EXPECT_ERROR(
            Error,
            machines_of(
                group, rank == 3 ? variables({}) : seat(rank, 4, rank % 2, 2)),
            "no launcher says which ranks share a machine",
            "on rank 3");
        EXPECT_ERROR(
            Error,
            machines_of(group, variables({})),
            "[gradwire.comm] no launcher says which ranks share a machine, "
            "expected a number of ranks instead");
        // Ranks dealt out to two machines in turn.
        for (const int places : {2, 0}) {
          EXPECT_ERROR(
              Error,
              machines_of(
                  group,
                  variables(
                      {{"OMPI_COMM_WORLD_RANK", concat(rank)},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", concat(rank / 2)},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE",
                        places > 0 ? concat(places) : ""}})),
              "expected neighbours there: give a number of ranks instead");
        }
      },
      kPartsLocal);
}

TEST(Parts, APartIsAGroupWhoseBytesCountAsTheParents) {
  run_threads(4, [](const Group& group) {
    const Group part = part_of(group, blocks_of(group, 2, "subgroup"));
    EXPECT_EQ(part.size(), 2);
    EXPECT_EQ(part.rank(), group.rank() % 2);
    const auto before = group.bytes_sent();
    auto sum = torch::full({100}, static_cast<float>(group.rank()));
    part.all_reduce(sum).wait();
    const float expected = group.rank() < 2 ? 1 : 5;
    EXPECT_TRUE(test::same_bits(sum, torch::full({100}, expected)));
    EXPECT_EQ((group.bytes_sent() - before).payload, 400);
    // All ranks are the group itself.
    const Group all = part_of(group, blocks_of(group, 4, "subgroup"));
    EXPECT_EQ(all.name(), group.name());
  });
}

TEST(Parts, RanksThatDisagreeAreErrorsEverywhere) {
  run_threads(
      4,
      [](const Group& group) {
        EXPECT_ERROR(
            Error,
            part_of(
                group,
                group.rank() == 3 ? Parts{{0, 2}, {1, 3}}
                                  : Parts{{0, 1}, {2, 3}}),
            "ranks do not agree on the parts of a group",
            "on rank 3");
      },
      kPartsLocal);
}

}  // namespace
}  // namespace gradwire
