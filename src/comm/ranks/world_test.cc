#include "comm/ranks/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "comm/ranks/node_list.h"
#include "support/ranks/store_test_support.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Values = std::map<std::string, std::string>;

World detect(const Values& values) {
  return detect_world([&](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

std::string refusal_of(const Values& values) {
  return error_of([&] { detect(values); });
}

Values with(Values values, const Values& changes) {
  for (const auto& [name, value] : changes) values[name] = value;
  return values;
}

const Values kTorchrun = {{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"GROUP_RANK", "1"},
                          {"MASTER_ADDR", "host0"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "job"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

// Set by DeepSpeed's launcher.
const Values kDeepSpeed = {
    {"RANK", "3"},       {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"},      {"LOCAL_SIZE", "2"},
    {"CROSS_RANK", "1"}, {"CROSS_SIZE", "2"}, {"MASTER_ADDR", "host0"}, {"MASTER_PORT", "29500"}};

const Values kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"OMPI_MCA_ess_base_jobid", "1234567"}};

const Values kMpich = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};

const Values kSlurm = {{"SLURM_JOB_ID", "77"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_PROCID", "3"},
                       {"SLURM_NTASKS", "4"},
                       {"SLURM_STEP_NUM_TASKS", "4"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "1"},
                       {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                       {"SLURM_STEP_NODELIST", "cn[09-10]"},
                       {"SLURM_JOB_NODELIST", "cn[08-11]"}};

TEST(World, RestartsOfTheJobCountWithThoseOfTheAgent) {
  EXPECT_EQ(detect(kTorchrun).num_restarts(), 2);
  EXPECT_EQ(detect(with(kTorchrun, {{"TESSERA_RESTART_ATTEMPT", ""}})).num_restarts(), 2) << "no label";
  const World world = detect(with(kTorchrun, {{"TESSERA_RESTART_ATTEMPT", "3"}}));
  EXPECT_EQ(world.num_restarts(), 5);
  EXPECT_EQ(world.restart_count, 2) << "it identifies a start of this launch";
  EXPECT_EQ(detect({{"TESSERA_RESTART_ATTEMPT", "4"}}).num_restarts(), 4) << "a single process";
  EXPECT_THAT(refusal_of({{"TESSERA_RESTART_ATTEMPT", "two"}}),
              HasSubstr("expected TESSERA_RESTART_ATTEMPT to be a whole number from 0"));
}

TEST(World, ReadsTheVariablesOfDeepSpeedsLauncher) {
  const World world = detect(kDeepSpeed);
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_world_size, 2);
  EXPECT_EQ(world.node_rank, 1);
  EXPECT_EQ(world.num_nodes, 2);
}

TEST(World, NothingSetIsASingleProcess) {
  const World world = detect({});
  EXPECT_TRUE(world.is_single());
  EXPECT_EQ(world.rank, 0);
  EXPECT_EQ(world.source, "");
  EXPECT_FALSE(world.host.empty());
  EXPECT_TRUE(detect({{"WORLD_SIZE", "1"}}).is_single());
}

TEST(World, APodOfSeveralWhoseRanksNobodyHasStartedIsRefused) {
  const auto refusal = [](const Values& values) {
    return error_of([&] {
      check_ranks_are_started([&](const std::string& name) -> std::optional<std::string> {
        const auto found = values.find(name);
        return found == values.end() ? std::nullopt : std::optional<std::string>(found->second);
      });
    });
  };
  for (const char* nodes : {"2", "1:4"}) {
    EXPECT_THAT(refusal({{"PET_NNODES", nodes}, {"PET_NODE_RANK", "1"}}), HasSubstr("tessera launch train"))
        << nodes;
    EXPECT_EQ(refusal({{"PET_NNODES", nodes}, {"RANK", "0"}, {"WORLD_SIZE", "1"}}), "") << nodes;
    EXPECT_EQ(refusal(with(kOpenMpi, {{"PET_NNODES", nodes}})), "") << nodes;
  }
  EXPECT_EQ(refusal({{"PET_NNODES", "1"}}), "");
  EXPECT_EQ(refusal({{"PET_NNODES", ""}}), "");
  EXPECT_EQ(refusal({}), "");
}

TEST(World, TorchrunsAgentOccupiesThePort) {
  const World world = detect(kTorchrun);
  EXPECT_EQ(world.source, "torchrun");
  EXPECT_EQ(world.rank, 5);
  EXPECT_EQ(world.world_size, 8);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_world_size, 4);
  EXPECT_EQ(world.node_rank, 1);
  EXPECT_EQ(world.num_nodes, 2);
  EXPECT_EQ(world.master_addr, "host0");
  EXPECT_EQ(world.master_port, 29501);
  EXPECT_FALSE(world.agent_has_store);
  EXPECT_EQ(world.run_id, "job");
  EXPECT_EQ(world.restart_count, 2);
}

TEST(World, OurAgentServesTheStore) {
  const World world = detect(with(kTorchrun, {{"TESSERA_AGENT_STORE", "1"}}));
  EXPECT_EQ(world.source, "tessera launch");
  EXPECT_EQ(world.master_port, 29500);
  EXPECT_TRUE(world.agent_has_store);
  EXPECT_EQ(world.rendezvous_timeout_s, 0);
  EXPECT_EQ(detect(with(kTorchrun, {{"TESSERA_RDZV_TIMEOUT_S", "30"}})).rendezvous_timeout_s, 30);
}

TEST(World, OurAgentsStoreMayHaveAPortOfItsOwn) {
  const World world =
      detect(with(kTorchrun, {{"TESSERA_AGENT_STORE", "1"}, {"TESSERA_STORE_PORT", "29501"}}));
  EXPECT_EQ(world.master_port, 29501);
}

TEST(World, SnapshotSlotsAreDescriptors) {
  const auto slots = [](const std::string& text) {
    return with(kTorchrun, {{"TESSERA_SNAPSHOT_SLOTS", text}});
  };
  EXPECT_THAT(detect(slots("7,8,19,110")).snapshot_slots, ElementsAre(7, 8, 19, 110));
  EXPECT_THAT(detect(slots("")).snapshot_slots, testing::IsEmpty());
  for (const char* bad :
       {"7", "7,8,9", "7,8,9,10,11", "7,8,9,", "7,8,,9", "7,8,9,x", "-7,8,9,10", "7 8 9 10"}) {
    EXPECT_THAT(refusal_of(slots(bad)), HasSubstr("TESSERA_SNAPSHOT_SLOTS")) << bad;
  }
}

TEST(World, RankAndWorldSizeAloneAreOneProcessPerNode) {
  const World world =
      detect({{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(world.node_rank, 2);
  EXPECT_EQ(world.num_nodes, 3);
  EXPECT_EQ(world.local_world_size, 1);
  EXPECT_EQ(world.master_port, 1234);
}

TEST(World, ContradictionsOfTorchrunAreRefused) {
  EXPECT_THAT(refusal_of(with(kTorchrun, {{"WORLD_SIZE", "2000000"}})),
              HasSubstr("WORLD_SIZE to be a whole number from 1 to 1048576, found '2000000'"));
  // Products of allowed values exceed 32 bits.
  EXPECT_THAT(refusal_of(with(
                  kTorchrun,
                  {{"WORLD_SIZE", "1048576"}, {"LOCAL_WORLD_SIZE", "1048576"}, {"GROUP_RANK", "1048576"}})),
              HasSubstr("local rank 1 of node 1048576 with 1048576 ranks each"));
  EXPECT_EQ(refusal_of({{"RANK", "0"}}), "environment: RANK is set, but WORLD_SIZE is not");
  EXPECT_EQ(refusal_of({{"WORLD_SIZE", "2"}}), "environment: WORLD_SIZE is set, but RANK is not");
  EXPECT_EQ(refusal_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}),
            "environment: LOCAL_RANK is set, but LOCAL_WORLD_SIZE is not");
  EXPECT_THAT(refusal_of(with(kTorchrun, {{"RANK", "8"}})), HasSubstr("torchrun: rank 8 of 8 ranks"));
  EXPECT_THAT(refusal_of(with(kTorchrun, {{"LOCAL_RANK", "4"}})), HasSubstr("local rank 4 of 4"));
  EXPECT_THAT(refusal_of(with(kTorchrun, {{"WORLD_SIZE", "7"}})),
              HasSubstr("7 ranks cannot be 4 on each node"));
  EXPECT_THAT(refusal_of(with(kTorchrun, {{"GROUP_RANK", "0"}})), HasSubstr("numbered node by node"));
  EXPECT_THAT(refusal_of(with(kTorchrun, {{"RANK", "5x"}})),
              HasSubstr("expected RANK to be a whole number from 0 to 1048576, found '5x'"));
  EXPECT_THAT(refusal_of(with(kTorchrun, {{"MASTER_PORT", "70000"}})), HasSubstr("MASTER_PORT"));
  EXPECT_THAT(refusal_of(with(kTorchrun, {{"MASTER_PORT", "65535"}})), HasSubstr("choose another"));
  EXPECT_THAT(refusal_of(with(kTorchrun, {{"MASTER_ADDR", ""}})), HasSubstr("export MASTER_ADDR"));
}

TEST(World, OpenMpiOnOneNodeNeedsNothingElse) {
  const World world = detect(kOpenMpi);
  EXPECT_EQ(world.source, "Open MPI");
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.num_nodes, 1);
  EXPECT_EQ(world.master_addr, "127.0.0.1");
  EXPECT_EQ(world.run_id, "1234567");
  EXPECT_FALSE(world.agent_has_store);
  // Below the ports of outgoing connections, the same for all ranks, different for another job.
  EXPECT_GE(world.master_port, 10'000);
  EXPECT_LT(world.master_port, 32'768);
  EXPECT_EQ(world.master_port,
            detect(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}))
                .master_port);
  EXPECT_NE(world.master_port, detect(with(kOpenMpi, {{"OMPI_MCA_ess_base_jobid", "1234568"}})).master_port);
}

TEST(World, OpenMpiOnSeveralNodesNeedsAnAddress) {
  const Values nodes =
      with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  EXPECT_THAT(refusal_of(nodes), HasSubstr("export MASTER_ADDR"));
  const World world = detect(with(nodes, {{"MASTER_ADDR", "10.0.0.1"}}));
  EXPECT_EQ(world.master_addr, "10.0.0.1");
  EXPECT_EQ(world.node_rank, 1);
  // Ranks dealt round-robin: rank 3 is local rank 0.
  EXPECT_THAT(refusal_of(with(nodes, {{"MASTER_ADDR", "10.0.0.1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}})),
              HasSubstr("--map-by slot"));
}

TEST(World, MpichAndIntelMpi) {
  const World world = detect(kMpich);
  EXPECT_EQ(world.source, "MPICH or Intel MPI");
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(world.world_size, 2);
  EXPECT_EQ(world.master_addr, "127.0.0.1");
  EXPECT_EQ(world.master_port,
            detect(with(kMpich, {{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}})).master_port);
  EXPECT_EQ(refusal_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}),
            "environment: PMI_RANK is set, but MPI_LOCALRANKID is not");
  const Values nodes = with(kMpich, {{"PMI_SIZE", "4"}, {"MASTER_ADDR", "a"}});
  EXPECT_THAT(refusal_of(nodes), HasSubstr("export MASTER_PORT"));
  EXPECT_EQ(detect(with(nodes, {{"MASTER_PORT", "4000"}})).num_nodes, 2);
}

TEST(World, SlurmTakesTheFirstNodeOfTheStep) {
  const World world = detect(kSlurm);
  EXPECT_EQ(world.source, "Slurm");
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.local_world_size, 2);
  EXPECT_EQ(world.node_rank, 1);
  EXPECT_EQ(world.num_nodes, 2);
  EXPECT_EQ(world.master_addr, "cn09");
  EXPECT_EQ(world.run_id, "77.0");
  EXPECT_GE(world.master_port, 10'000);
  EXPECT_EQ(detect(with(kSlurm, {{"MASTER_ADDR", "other"}})).master_addr, "other");
  Values no_list = kSlurm;
  no_list.erase("SLURM_STEP_NODELIST");
  no_list.erase("SLURM_JOB_NODELIST");
  no_list["SLURM_LAUNCH_NODE_IPADDR"] = "10.1.1.1";
  EXPECT_EQ(detect(no_list).master_addr, "10.1.1.1");
}

TEST(World, ContradictionsOfSlurmAreRefused) {
  EXPECT_THAT(refusal_of(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "3,1"}})),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE=3,1; all nodes must have the same number"));
  EXPECT_THAT(refusal_of(with(kSlurm, {{"SLURM_NODEID", "0"}})), HasSubstr("--distribution=block"));
  EXPECT_THAT(refusal_of(with(kSlurm, {{"SLURM_STEP_NODELIST", "cn[09-"}})),
              HasSubstr("SLURM_STEP_NODELIST='cn[09-': brackets do not match"));
}

TEST(World, ASlurmAllocationDoesNotMakeARank) {
  // In the shell of salloc and in a batch script, SLURM_NTASKS and SLURM_PROCID=0 are set.
  Values script = kSlurm;
  script["SLURM_PROCID"] = script["SLURM_LOCALID"] = script["SLURM_NODEID"] = "0";
  script.erase("SLURM_STEP_ID");
  script.erase("SLURM_STEP_NUM_TASKS");
  EXPECT_TRUE(detect(script).is_single());
  // salloc with an interactive step as its shell; batch steps that set their number.
  EXPECT_TRUE(detect(with(script, {{"SLURM_STEP_ID", "4294967290"}})).is_single());
  EXPECT_TRUE(detect(with(script, {{"SLURM_STEP_ID", "4294967291"}})).is_single());
  // srun --pty bash, and srun with one task.
  EXPECT_TRUE(detect(with(script, {{"SLURM_STEP_ID", "0"}, {"SLURM_PTY_PORT", "40000"}})).is_single());
  EXPECT_TRUE(detect(with(script, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}})).is_single());
  EXPECT_FALSE(detect(with(script, {{"SLURM_STEP_ID", "0"}})).is_single());
}

TEST(World, TheInnermostLauncherCounts) {
  EXPECT_EQ(detect(with(kTorchrun, kSlurm)).source, "torchrun");
  EXPECT_EQ(detect(with(kOpenMpi, kSlurm)).source, "Open MPI");
  // srun --mpi=pmi2 also sets PMI_RANK.
  EXPECT_EQ(detect(with(kSlurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})).source, "Slurm");
}

TEST(NodeList, BracketsAreExpandedInOrder) {
  EXPECT_THAT(expand_node_list("a", "V"), ElementsAre("a"));
  EXPECT_THAT(expand_node_list("cn[08-10,12],gpu-a", "V"),
              ElementsAre("cn08", "cn09", "cn10", "cn12", "gpu-a"));
  EXPECT_THAT(expand_node_list("r[1-2]n[1-2]x", "V"), ElementsAre("r1n1x", "r1n2x", "r2n1x", "r2n2x"));
  EXPECT_THAT(expand_node_list("n[9-10]", "V"), ElementsAre("n9", "n10"));
}

TEST(NodeList, OddListsAreRefused) {
  for (const char* list :
       {"", "a,", "a[", "a]", "a[1", "a[]", "a[1-]", "a[2-1]", "a[x]", "a[1,,2]", "a[[1]]", "a[0-99999999]",
        "a[0-9999]b[0-9999]", "a[99999999999999999999]", "a[0-65535,0]", "a[0000000000000000001]"}) {
    EXPECT_THAT(error_of([&] { expand_node_list(list, "V"); }), HasSubstr("V='")) << list;
  }
  EXPECT_THAT(expand_tasks_per_node("2(x3),1", "V"), ElementsAre(2, 2, 2, 1));
  for (const char* list : {"", "2(x", "2(x0)", "0", "x", "2(x3", "2(x99999999)", "-1"}) {
    EXPECT_THAT(error_of([&] { expand_tasks_per_node(list, "V"); }), HasSubstr("V='")) << list;
  }
}

TEST(FormatRanks, RunsAreJoined) {
  EXPECT_EQ(format_ranks({}), "");
  EXPECT_EQ(format_ranks({3}), "3");
  EXPECT_EQ(format_ranks({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

}  // namespace
}  // namespace tessera
