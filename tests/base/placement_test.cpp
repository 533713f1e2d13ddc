#include "gradwire/base/placement.h"

#include <gtest/gtest.h>

#include <map>

#include "gradwire/base/launchers.h"
#include "tests/support/expect.h"

namespace gradwire {
namespace {

Placement place(std::map<std::string, std::string> variables) {
  return detect_placement(
      [variables](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt
                                        : std::optional(found->second);
      });
}

TEST(Placement, NoLauncherIsAWorldOfOne) {
  const Placement p = place({});
  EXPECT_EQ(p.launcher, "none");
  EXPECT_EQ(p.rank, 0);
  EXPECT_EQ(p.world, 1);
}

// A launcher's own variables are enough, whichever of several it sets.
TEST(Placement, EveryLauncherIsRecognised) {
  for (const Launcher& launcher : launchers()) {
    for (const auto& world : launcher.world) {
      const Placement p = place({{launcher.rank.front(), "1"}, {world, "3"}});
      EXPECT_EQ(p.launcher, launcher.name);
      EXPECT_EQ(p.rank, 1);
      EXPECT_EQ(p.world, 3);
      EXPECT_EQ(p.local_rank, 1);
      EXPECT_EQ(p.local_world, 0);
    }
    EXPECT_NE(launcher.meets, "");
  }
}

TEST(Placement, Torchrun) {
  const Placement p = place(
      {{"RANK", "3"},
       {"WORLD_SIZE", "4"},
       {"LOCAL_RANK", "1"},
       {"LOCAL_WORLD_SIZE", "2"},
       {"MASTER_ADDR", "node1"},
       {"MASTER_PORT", "1234"},
       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
       {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(p.launcher, "torchrun");
  EXPECT_EQ(p.rank, 3);
  EXPECT_EQ(p.world, 4);
  EXPECT_EQ(p.local_rank, 1);
  EXPECT_EQ(p.local_world, 2);
  EXPECT_EQ(p.host, "node1");
  EXPECT_EQ(p.port, 1234);
  EXPECT_TRUE(p.agent_store);
  EXPECT_EQ(p.attempt, 2);
}

TEST(Placement, OpenMpiInsideSlurm) {
  const Placement p = place(
      {{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
       {"SLURM_PROCID", "0"},
       {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(p.launcher, "Open MPI");
  EXPECT_EQ(p.rank, 1);
  EXPECT_EQ(p.world, 2);
  EXPECT_EQ(p.host, "");
  EXPECT_NE(p.job, "");
}

TEST(Placement, Mpich) {
  const Placement p =
      place({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}});
  EXPECT_EQ(p.launcher, "MPICH");
  EXPECT_EQ(p.rank, 2);
  EXPECT_EQ(p.world, 3);
}

TEST(Placement, SlurmMeetsAtItsFirstNode) {
  std::map<std::string, std::string> variables{
      {"SLURM_PROCID", "5"},
      {"SLURM_NTASKS", "8"},
      {"SLURM_LOCALID", "1"},
      {"SLURM_TASKS_PER_NODE", "4(x2)"},
      {"SLURM_JOB_ID", "77"},
      {"SLURM_JOB_NODELIST", "gpu[03-04]"}};
  const Placement p = place(variables);
  EXPECT_EQ(p.launcher, "Slurm");
  EXPECT_EQ(p.rank, 5);
  EXPECT_EQ(p.world, 8);
  EXPECT_EQ(p.local_world, 4);
  EXPECT_EQ(p.host, "gpu03");
  EXPECT_GT(p.port, 1024);
  variables["SLURM_PROCID"] = "6";
  EXPECT_EQ(place(variables).port, p.port);
  variables["SLURM_JOB_ID"] = "78";
  EXPECT_NE(place(variables).port, p.port);
  variables["MASTER_ADDR"] = "10.0.0.1";
  variables["MASTER_PORT"] = "5";
  EXPECT_EQ(place(variables).host, "10.0.0.1");
  EXPECT_EQ(place(variables).port, 5);
}

TEST(Placement, SrunWithAPmiPluginIsSlurm) {
  const Placement p = place(
      {{"PMI_RANK", "1"},
       {"PMI_SIZE", "2"},
       {"SLURM_PROCID", "1"},
       {"SLURM_STEP_NUM_TASKS", "2"},
       {"SLURM_STEP_NODELIST", "n1,n2"}});
  EXPECT_EQ(p.launcher, "Slurm");
  EXPECT_EQ(p.host, "n1");
  EXPECT_EQ(p.local_world, 0);
}

TEST(Placement, ABatchScriptWithoutTasksIsNoLauncher) {
  EXPECT_EQ(place({{"SLURM_PROCID", "0"}}).launcher, "none");
}

TEST(Placement, SlurmNodeLists) {
  EXPECT_EQ(first_slurm_host("a1"), "a1");
  EXPECT_EQ(first_slurm_host("a1,b2"), "a1");
  EXPECT_EQ(first_slurm_host("gpu[07-09,12],login1"), "gpu07");
  EXPECT_EQ(first_slurm_host("gpu[7,12]-ib"), "gpu7-ib");
  EXPECT_ERROR(Error, first_slurm_host("gpu[7"), "gpu[7");
}

TEST(Placement, ContradictionsAreErrors) {
  EXPECT_ERROR(
      Error, place({{"RANK", "0"}}), "torchrun set RANK but not WORLD_SIZE");
  EXPECT_ERROR(
      Error,
      place({{"WORLD_SIZE", "2"}}),
      "torchrun set WORLD_SIZE but not RANK");
  EXPECT_ERROR(
      Error,
      place({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
      "RANK is 2",
      "0 <= rank < world");
  EXPECT_ERROR(
      Error,
      place({{"RANK", "x"}, {"WORLD_SIZE", "2"}}),
      "RANK is 'x', expected an integer");
  EXPECT_ERROR(
      Error,
      place({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "99999"}}),
      "MASTER_PORT is 99999");
}

}  // namespace
}  // namespace gradwire
