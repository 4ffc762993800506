// Tests an agent's interpretation of flags, variables and the machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

#include "base/error.h"
#include "launch/job/launch_plan.h"
#include "launch/job/rank_environment.h"
#include "launch/job/stream_choice.h"
#include "support/web/two_sockets.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Launch {
  LaunchArguments arguments;
  FlagTable table;
  std::map<std::string, std::string> variables;
  NodeProcessors node = two_sockets(8, false);

  Launch() { declare_launch_flags(&table, &arguments); }
  Environment environment() const {
    return [this](const std::string& name) {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
    };
  }
  Launch& set(const std::string& flag, const std::string& value) {
    table.set(*table.find(flag), {value}, "command line");
    return *this;
  }
  LaunchPlan plan() {
    apply_pet_variables(environment(), &table, &arguments);
    if (arguments.command.empty()) arguments.command = {"train", "--model", "m"};
    return plan_launch(arguments, table, environment(), node);
  }
  std::string error(ExitCode code) {
    try {
      plan();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }
};

TEST(LaunchPlan, OneRankWithoutFlags) {
  Launch launch;
  const LaunchPlan plan = launch.plan();
  EXPECT_EQ(plan.world_size(), 1);
  EXPECT_FALSE(plan.serves_store());
  EXPECT_EQ(plan.processors[0].cpus, range(0, 15));
  EXPECT_EQ(plan.processors[0].num_threads, 16);
  EXPECT_THAT(plan.program, ElementsAre("/proc/self/exe", "tessera", "train", "--model", "m"));
  EXPECT_THAT(plan.notes, IsEmpty());
  EXPECT_THAT(plan.warnings, IsEmpty());
}

TEST(LaunchPlan, AutoIsOneRankPerNumaNodeWithinTheMask) {
  Launch launch;
  launch.set("nproc-per-node", "auto");
  EXPECT_EQ(launch.plan().local_world_size, 2);
  launch.node.limits = {range(8, 15), {}, cores_of(range(8, 15), "/nowhere")};
  EXPECT_EQ(launch.plan().local_world_size, 1);
  launch.node.numa_nodes.clear();
  launch.set("nproc_per_node", "cpu");
  EXPECT_EQ(launch.plan().local_world_size, 1);
}

// torchrun's words for the cards of a machine.
TEST(LaunchPlan, GpuIsOneRankPerVisibleCard) {
  Launch launch;
  launch.node.num_cards = 4;
  launch.set("nproc_per_node", "gpu");
  EXPECT_EQ(launch.plan().local_world_size, 4);
  const std::pair<const char*, int> kListed[] = {{"0,2", 2}, {"1", 1}, {"0,-1,2", 1}, {"0,1,2,3,4,5", 4}};
  for (const auto& [listed, num_cards] : kListed) {
    launch.variables = {{"CUDA_VISIBLE_DEVICES", listed}};
    EXPECT_EQ(launch.plan().local_world_size, num_cards) << listed;
  }
  launch.variables = {{"CUDA_VISIBLE_DEVICES", ""}};
  EXPECT_THAT(launch.error(ExitCode::kUsage),
              HasSubstr("--nproc_per_node gpu: this machine has no NVIDIA card"));

  Launch of_cards;
  of_cards.node.num_cards = 4;
  of_cards.set("nproc_per_node", "auto");
  EXPECT_EQ(of_cards.plan().local_world_size, 2) << "a rank per NUMA node";
  of_cards.arguments.command = {"train", "--device", "cuda"};
  EXPECT_EQ(of_cards.plan().local_world_size, 4);
  of_cards.node.num_cards = 0;
  EXPECT_EQ(of_cards.plan().local_world_size, 2);
}

TEST(LaunchPlan, SingleNodeNeedsNoPort) {
  Launch launch;
  launch.set("nproc_per_node", "2");
  const LaunchPlan plan = launch.plan();
  EXPECT_EQ(plan.master_addr, "127.0.0.1");
  EXPECT_EQ(plan.master_port, 0);
  EXPECT_TRUE(plan.serves_store());
  EXPECT_NE(plan.run_id, "none") << "two launches on one machine are two jobs";
  launch.set("master_port", "12345");
  EXPECT_EQ(launch.plan().master_port, 12345);
  launch.set("rdzv_endpoint", "localhost:0").set("rdzv_id", "job");
  EXPECT_EQ(launch.plan().master_port, 0);
  EXPECT_EQ(launch.plan().run_id, "job");
}

TEST(LaunchPlan, StandaloneWinsOverWhatNamesSeveralNodes) {
  Launch launch;
  launch.variables = {{"PET_NNODES", "4"}, {"PET_NODE_RANK", "2"}, {"PET_MASTER_ADDR", "far"}};
  launch.set("standalone", "true").set("nproc_per_node", "2");
  const LaunchPlan plan = launch.plan();
  EXPECT_EQ(plan.world_size(), 2);
  EXPECT_EQ(plan.master_addr, "127.0.0.1");
  EXPECT_EQ(plan.first_rank(), 0);
}

// srun --ntasks-per-node=1 tessera launch --nnodes 2 --rdzv_endpoint ...
TEST(LaunchPlan, AgentsThatALauncherHasStartedAreNumbered) {
  Launch launch;
  launch.variables = {{"SLURM_JOB_ID", "5"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEP_NUM_TASKS", "2"},
                      {"SLURM_PROCID", "1"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_STEP_NODELIST", "n[1-2]"},
                      {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
  EXPECT_THAT(launch.error(ExitCode::kUsage), HasSubstr("Slurm has started 2 agents: expected --nnodes 2"));
  launch.set("nnodes", "2").set("rdzv_endpoint", "n1:29500");
  EXPECT_EQ(launch.plan().node_rank, 1);
  launch.set("node_rank", "0");
  EXPECT_EQ(launch.plan().node_rank, 0);
  launch.variables["SLURM_STEP_TASKS_PER_NODE"] = "2";
  launch.variables["SLURM_LOCALID"] = "1";
  launch.variables["SLURM_NODEID"] = "0";
  EXPECT_FALSE(agents_of_launcher(launch.environment())) << "two on one node";
  launch.variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  EXPECT_EQ(agents_of_launcher(launch.environment())->node_rank, 1);
}

TEST(LaunchPlan, EndpointHasHostAndPort) {
  Launch launch;
  launch.set("nnodes", "2:2").set("node_rank", "1").set("nproc_per_node", "3");
  const auto at = [&](const std::string& endpoint) {
    const LaunchPlan plan = launch.set("rdzv_endpoint", endpoint).plan();
    return plan.master_addr + " " + std::to_string(plan.master_port);
  };
  EXPECT_EQ(at("host0"), "host0 29500");
  EXPECT_EQ(at("host0:4"), "host0 4");
  EXPECT_EQ(at("[fe80::1]:4"), "fe80::1 4");
  EXPECT_EQ(at("[fe80::1]"), "fe80::1 29500");
  EXPECT_EQ(at("fe80::1"), "fe80::1 29500");
  EXPECT_EQ(launch.plan().first_rank(), 3);
  for (const char* bad : {":4", "host0:", "host0:x", "host0:0", "host0:65536", "[]:4", "::1:29611",
                          "fe80::1%lo:4", "[::1:4", "[host0]:4x", "host0:1:2", "a host:4"}) {
    launch.set("rdzv_endpoint", bad);
    EXPECT_THAT(launch.error(ExitCode::kUsage), HasSubstr("--rdzv_endpoint")) << bad;
  }
  launch.set("rdzv_endpoint", "host0");
  for (const char* bad : {"0", "65536"}) {
    launch.set("master_port", bad);
    EXPECT_THAT(launch.error(ExitCode::kUsage), HasSubstr("--master_port")) << bad;
  }
}

TEST(LaunchPlan, WrongFlagsNameTheFlag) {
  const auto error = [](const char* flag, const char* value) {
    return Launch().set(flag, value).error(ExitCode::kUsage);
  };
  EXPECT_THAT(error("nnodes", "1:4"), HasSubstr("--node_rank"));
  EXPECT_THAT(error("nnodes", "1:2:3"), HasSubstr("--nnodes"));
  EXPECT_THAT(error("nnodes", "0"), HasSubstr("--nnodes"));
  EXPECT_THAT(error("nnodes", "4:1"), HasSubstr("--nnodes"));
  EXPECT_THAT(error("nnodes", "two"), HasSubstr("found 'two'"));
  EXPECT_THAT(error("nnodes", "2"), HasSubstr("--node_rank"));
  EXPECT_THAT(error("node_rank", "1"), HasSubstr("from 0 to 0"));
  EXPECT_THAT(error("nproc_per_node", "xpu"), HasSubstr("processors and NVIDIA cards"));
  EXPECT_THAT(error("nproc_per_node", "0"), HasSubstr("--nproc_per_node"));
  EXPECT_THAT(error("rdzv_conf", "timeout"), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(error("rdzv_conf", "timeout=soon"), HasSubstr("found 'soon'"));
  EXPECT_THAT(error("rdzv_conf", "timeuot=3"), HasSubstr("unknown key 'timeuot'"));
  EXPECT_THAT(error("redirects", "4"), HasSubstr("--redirects"));
  EXPECT_THAT(error("tee", "7:3"), HasSubstr("local rank 7"));
  EXPECT_THAT(error("local_ranks_filter", "1"), HasSubstr("--local_ranks_filter"));
  EXPECT_THAT(error("master_port", "70000"), HasSubstr("--master_port"));
  EXPECT_THAT(error("max_restarts", "-1"), HasSubstr("--max_restarts"));
  EXPECT_THAT(error("max_idle_restarts", "-1"), HasSubstr("--max_idle_restarts: expected a number from 0"));
  EXPECT_THAT(error("termination_grace_s", "nan"), HasSubstr("--termination_grace_s"));
  EXPECT_THAT(Launch()
                  .set("nnodes", "65536")
                  .set("node_rank", "1")
                  .set("nproc_per_node", "17")
                  .error(ExitCode::kUsage),
              HasSubstr("at most 1048576 ranks"));
  EXPECT_THAT(Launch().set("nnodes", "2").set("node_rank", "1").error(ExitCode::kUsage),
              HasSubstr("--rdzv_endpoint"));
}

TEST(LaunchPlan, NodesMayBeARange) {
  Launch launch;
  launch.set("nnodes", "2:4").set("node_rank", "3").set("rdzv_endpoint", "host0").set("nproc_per_node", "2");
  const LaunchPlan plan = launch.plan();
  EXPECT_EQ(plan.min_nodes, 2);
  EXPECT_EQ(plan.max_nodes, 4);
  EXPECT_TRUE(plan.is_elastic() && plan.has_meetings());
  EXPECT_EQ(plan.wanted_rank, 3);
  Launch fixed;
  fixed.set("nnodes", "2").set("node_rank", "0").set("rdzv_endpoint", "host0");
  EXPECT_TRUE(fixed.plan().has_meetings());
  EXPECT_FALSE(fixed.plan().is_elastic());
  EXPECT_FALSE(Launch().plan().has_meetings());
}

TEST(LaunchPlan, TimesOfTheRendezvous) {
  Launch launch;
  EXPECT_EQ(launch.plan().heartbeat_timeout, std::chrono::seconds(5));
  EXPECT_FALSE(launch.plan().last_call);
  launch.set("rdzv_conf", "last_call_timeout=0.25,heartbeat_timeout=0.5");
  EXPECT_EQ(launch.plan().last_call, std::chrono::milliseconds(250));
  EXPECT_EQ(launch.plan().heartbeat_timeout, std::chrono::milliseconds(500));
  launch.set("rdzv_conf", "heartbeat_timeout=0.4");
  EXPECT_THAT(launch.error(ExitCode::kUsage),
              HasSubstr("expected a number of seconds from 0.5, found '0.4'"));
}

TEST(LaunchPlan, RendezvousTimeoutIsTorchruns) {
  Launch launch;
  EXPECT_EQ(launch.plan().rendezvous_timeout, std::chrono::seconds(900));
  launch.set("rdzv_conf", "read_timeout=5,timeout=20");
  EXPECT_EQ(launch.plan().rendezvous_timeout, std::chrono::seconds(20));
  launch.set("rdzv_conf", "join_timeout=30");
  EXPECT_EQ(launch.plan().rendezvous_timeout, std::chrono::seconds(30));
}

TEST(LaunchPlan, SecretIsReadOrMadeUpOrMissed) {
  Launch one;
  EXPECT_EQ(one.plan().secret.size(), 64u);
  EXPECT_NE(one.plan().secret, one.plan().secret) << "a new one each time";
  Launch two;
  two.set("nnodes", "2").set("node_rank", "0").set("rdzv_endpoint", "host0");
  EXPECT_EQ(two.plan().secret, "");
  EXPECT_THAT(two.plan().warnings, testing::Contains(HasSubstr("the job has no secret")));
  two.variables = {{"TESSERA_RDZV_SECRET", "of the environment"}};
  EXPECT_EQ(two.plan().secret, "of the environment");
  EXPECT_THAT(two.plan().warnings, testing::Not(testing::Contains(HasSubstr("secret"))));
  const std::string path = testing::TempDir() + "/secret";
  const auto from_file = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    two.set("rdzv_secret_file", path);
  };
  from_file("of the file, 23 letters\r\n");
  EXPECT_EQ(two.plan().secret, "of the file, 23 letters");
  for (const std::string& bad :
       {std::string(), std::string("short"), std::string(5000, 'x'), std::string(20, '\0')}) {
    from_file(bad);
    EXPECT_THAT(two.error(ExitCode::kBadData), HasSubstr("expected a secret of 16 to 4096 bytes"));
  }
  two.set("rdzv_secret_file", "/nowhere/secret");
  EXPECT_THAT(two.error(ExitCode::kNoInput), HasSubstr("'/nowhere/secret': No such file"));
  one.variables = {{"TESSERA_RDZV_SECRET", "short"}};
  EXPECT_THAT(one.error(ExitCode::kBadConfig), HasSubstr("TESSERA_RDZV_SECRET: expected a secret"));
}

TEST(LaunchPlan, ProgramIsFoundInPath) {
  Launch launch;
  launch.arguments.command = {"--", "sh", "-c", "exit"};
  launch.variables = {{"PATH", "/nowhere:/bin"}};
  EXPECT_THAT(launch.plan().program, ElementsAre("/bin/sh", "sh", "-c", "exit"));
  launch.variables = {{"PATH", "/nowhere"}};
  EXPECT_THAT(launch.error(ExitCode::kNoInput), HasSubstr("'sh' was not found in PATH"));
  launch.arguments.command = {"--", "/nowhere/x"};
  EXPECT_THAT(launch.error(ExitCode::kNoInput), HasSubstr("'/nowhere/x' does not exist"));
  // A folder that this user may not enter has the same effect: the system does not say whether it exists.
  launch.arguments.command = {"--", "/" + std::string(300, 'x')};
  EXPECT_THAT(launch.error(ExitCode::kNoInput), HasSubstr("File name too long"));
  launch.arguments.command = {"--", "/"};
  EXPECT_THAT(launch.error(ExitCode::kNoInput), HasSubstr("cannot be executed"));
  launch.arguments.command = {"--"};
  EXPECT_THAT(launch.error(ExitCode::kUsage), HasSubstr("program"));
}

TEST(PetVariables, AreDefaultsOfFlags) {
  Launch launch;
  launch.variables = {{"PET_NNODES", "4"},          {"PET_NPROC_PER_NODE", "2"},
                      {"PET_NODE_RANK", "3"},       {"PET_MASTER_ADDR", "job-node-0-0.job"},
                      {"PET_MASTER_PORT", "29501"}, {"PET_MAX_RESTARTS", "5"},
                      {"PET_RDZV_ENDPOINT", ""},    {"PET_MONITOR_INTERVAL", "0.1"}};
  launch.set("max_restarts", "1");
  const LaunchPlan plan = launch.plan();
  EXPECT_EQ(plan.world_size(), 8);
  EXPECT_EQ(plan.first_rank(), 6);
  EXPECT_EQ(plan.master_addr, "job-node-0-0.job");
  EXPECT_EQ(plan.master_port, 29501);
  EXPECT_EQ(plan.max_restarts, 1) << "the flag wins";
}

// The name of a pod is in the DNS some seconds after it has started; alone it needs none.
TEST(PetVariables, SingleNodeDoesNotWaitForItsName) {
  Launch launch;
  launch.variables = {{"PET_NNODES", "1"},
                      {"PET_NODE_RANK", "0"},
                      {"PET_NPROC_PER_NODE", "2"},
                      {"PET_MASTER_ADDR", "job-node-0-0.job"},
                      {"PET_MASTER_PORT", "29500"}};
  EXPECT_EQ(launch.plan().master_addr, "127.0.0.1");
  EXPECT_EQ(launch.plan().master_port, 29500);
}

TEST(PetVariables, RestartAttemptOfTheJobIsNoted) {
  Launch launch;
  launch.variables = {{"TESSERA_RESTART_ATTEMPT", ""}};
  EXPECT_THAT(launch.plan().notes, IsEmpty());
  launch.variables = {{"TESSERA_RESTART_ATTEMPT", "3"}};
  EXPECT_THAT(launch.plan().notes, ElementsAre("restart attempt 3 of the job: all of its pods are new"));
  launch.variables = {{"TESSERA_RESTART_ATTEMPT", "-1"}};
  EXPECT_THAT(launch.error(ExitCode::kBadConfig), HasSubstr("TESSERA_RESTART_ATTEMPT"));
}

// torchrun's are 0 and 1.
TEST(PetVariables, BooleansAreNumbers) {
  for (const char* const value : {"1", "0"}) {
    Launch launch;
    launch.variables = {{"PET_STANDALONE", value}, {"PET_RDZV_ENDPOINT", "localhost:29511"}};
    EXPECT_EQ(launch.plan().master_port, *value == '1' ? 0 : 29511);
  }
}

TEST(PetVariables, WrongOnesAreBadConfiguration) {
  Launch launch;
  launch.variables = {{"PET_MAX_RESTARTS", "many"}};
  EXPECT_THAT(launch.error(ExitCode::kBadConfig), HasSubstr("PET_MAX_RESTARTS"));
}

// Kubeflow Trainer turns numProcPerNode: gpu into this.
TEST(PetVariables, RanksPerNodeMayBeOnePerCard) {
  Launch launch;
  launch.node.num_cards = 8;
  launch.variables = {{"PET_NPROC_PER_NODE", "gpu"}};
  EXPECT_EQ(launch.plan().local_world_size, 8);
  launch.node.num_cards = 0;
  EXPECT_THAT(launch.error(ExitCode::kBadConfig), HasSubstr("PET_NPROC_PER_NODE gpu: this machine has no"));
  Launch wrong;
  wrong.variables = {{"PET_NPROC_PER_NODE", "none"}};
  EXPECT_THAT(wrong.error(ExitCode::kBadConfig), HasSubstr("PET_NPROC_PER_NODE: expected a number"));
}

TEST(PetVariables, NumberOfProcessorsMeansCores) {
  Launch launch;
  launch.variables = {{"PET_NPROC_PER_NODE", "16"}};
  LaunchPlan plan = launch.plan();
  EXPECT_EQ(plan.local_world_size, 2);
  ASSERT_EQ(plan.notes.size(), 1u);
  EXPECT_THAT(plan.notes[0], HasSubstr("PET_NPROC_PER_NODE=16"));
  EXPECT_THAT(plan.notes[0], HasSubstr("2 ranks, one per NUMA node, with 8 threads each"));

  Launch limited;  // a pod with 4 processors on a larger machine
  limited.node.limits.quota = 4;
  limited.variables = {{"PET_NPROC_PER_NODE", "4"}};
  EXPECT_EQ(limited.plan().local_world_size, 2);

  Launch requested;  // a pod without a limit that requests less than the machine has
  requested.node = two_sockets(16, false);
  requested.variables = {{"PET_NPROC_PER_NODE", "30"}};
  EXPECT_EQ(requested.plan().local_world_size, 2);
  Launch half;
  half.node = two_sockets(16, false);
  half.variables = {{"PET_NPROC_PER_NODE", "16"}};
  EXPECT_EQ(half.plan().local_world_size, 16);

  Launch flag;
  flag.set("nproc_per_node", "16");
  EXPECT_EQ(flag.plan().local_world_size, 16) << "a flag means what it says";
  Launch one;
  one.variables = {{"PET_NPROC_PER_NODE", "1"}};
  EXPECT_THAT(one.plan().notes, IsEmpty());
}

TEST(RankVariables, AreTorchruns) {
  Launch launch;
  launch.variables = {{"PET_NNODES", "3"},
                      {"PET_NODE_RANK", "1"},
                      {"PET_MASTER_ADDR", "host0"},
                      {"TESSERA_RDZV_SECRET", "0123456789abcdef"}};
  launch.set("nproc_per_node", "2").set("max_restarts", "4").set("rdzv_id", "job").set("role", "trainer");
  LaunchPlan plan = launch.plan();
  plan.resume_command = "tessera launch train";
  const auto of = [&](const Environment& environment) {
    const Variables list = rank_variables(plan,
                                          {.local_rank = 1,
                                           .restart_count = 2,
                                           .master_port = 29500,
                                           .store_port = 29500,
                                           .error_file = "/tmp/e",
                                           .position_file = "/tmp/p",
                                           .snapshot_slots = {7, 8, 9, 10},
                                           .progress_file = "/tmp/q"},
                                          environment);
    return std::map<std::string, std::string>(list.begin(), list.end());
  };
  const std::map<std::string, std::string> expected = {{"RANK", "3"},
                                                       {"WORLD_SIZE", "6"},
                                                       {"LOCAL_RANK", "1"},
                                                       {"LOCAL_WORLD_SIZE", "2"},
                                                       {"GROUP_RANK", "1"},
                                                       {"GROUP_WORLD_SIZE", "3"},
                                                       {"ROLE_NAME", "trainer"},
                                                       {"ROLE_RANK", "3"},
                                                       {"ROLE_WORLD_SIZE", "6"},
                                                       {"MASTER_ADDR", "host0"},
                                                       {"MASTER_PORT", "29500"},
                                                       {"TORCHELASTIC_RESTART_COUNT", "2"},
                                                       {"TORCHELASTIC_MAX_RESTARTS", "4"},
                                                       {"TORCHELASTIC_RUN_ID", "job"},
                                                       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                       {"TORCHELASTIC_ERROR_FILE", "/tmp/e"},
                                                       {"TESSERA_AGENT_STORE", "1"},
                                                       {"TESSERA_STORE_PORT", "29500"},
                                                       {"TESSERA_POSITION_FILE", "/tmp/p"},
                                                       {"TESSERA_RDZV_TIMEOUT_S", "900"},
                                                       {"TESSERA_HEARTBEAT_TIMEOUT_MS", "5000"},
                                                       {"TESSERA_RESUME", "auto"},
                                                       {"TESSERA_RDZV_SECRET", "0123456789abcdef"},
                                                       {"TESSERA_LAUNCH_ID", ""},
                                                       {"TESSERA_PROGRESS_FILE", "/tmp/q"},
                                                       {"TESSERA_TERMINATION_GRACE_S", "30"},
                                                       {"TESSERA_AGENT_PID", std::to_string(getpid())},
                                                       {"TESSERA_RESUME_COMMAND", "tessera launch train"},
                                                       {"TESSERA_SNAPSHOT_SLOTS", "7,8,9,10"},
                                                       {"OMP_NUM_THREADS", "8"},
                                                       {"TESSERA_PROCESSOR_SHARE", "8"}};
  EXPECT_EQ(of(launch.environment()), expected);
  plan.is_tessera = false;
  EXPECT_EQ(of(launch.environment()).at("TORCHELASTIC_USE_AGENT_STORE"), "False") << "torch serves its own";
  plan.is_tessera = true;
  const Variables first = rank_variables(
      plan, {.local_rank = 1, .restart_count = 0, .master_port = 1, .error_file = "", .progress_file = ""},
      launch.environment());
  EXPECT_TRUE(
      std::none_of(first.begin(), first.end(), [](const auto& v) { return v.first == "TESSERA_RESUME"; }));
  launch.variables["OMP_NUM_THREADS"] = "3";
  EXPECT_EQ(of(launch.environment()).count("OMP_NUM_THREADS"), 0u) << "the user's is inherited";
}

TEST(RankVariables, ReplaceThoseOfTheAgent) {
  const char* const inherited[] = {"RANK=9", "RANKS=all", "EMPTY=", nullptr};
  EXPECT_THAT(merged_environment(inherited, {{"RANK", "1"}}), ElementsAre("RANKS=all", "EMPTY=", "RANK=1"));
}

TEST(StreamChoice, IsTorchruns) {
  const auto text = [](const std::string& given) {
    std::string out;
    for (const StreamChoice& c : parse_stream_choice("--tee", given, 3)) {
      out += std::to_string((c.out ? 1 : 0) + (c.err ? 2 : 0));
    }
    return out;
  };
  EXPECT_EQ(text("0"), "000");
  EXPECT_EQ(text("3"), "333");
  EXPECT_EQ(text("0:1,2:2"), "102");
  for (const char* bad : {"", "4", "-1", "0:4", "0:", ":1", "3:1", "0:1,", "0:1:1", "a:1"}) {
    EXPECT_THROW(parse_stream_choice("--tee", bad, 3), Error) << bad;
  }
}

TEST(StreamChoice, TeeWinsOverRedirects) {
  Launch launch;
  launch.set("nproc_per_node", "2").set("redirects", "3").set("tee", "1:1").set("local_ranks_filter", "1");
  const std::vector<RankOutput> outputs = launch.plan().outputs;
  EXPECT_TRUE(outputs[0].redirected.out && outputs[0].redirected.err && !outputs[0].shown);
  EXPECT_TRUE(outputs[1].teed.out && !outputs[1].teed.err && outputs[1].shown);
  EXPECT_TRUE(!outputs[1].redirected.out && outputs[1].redirected.err);
}

}  // namespace
}  // namespace tessera
