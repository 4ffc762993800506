#include "comm/ranks/world.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/ranks/launch_variables.h"
#include "comm/ranks/node_list.h"
#include "platform/system.h"

namespace tessera {
namespace {

constexpr int kMaxInt = std::numeric_limits<int>::max();

// Ports of jobs that specify none: below those the kernel uses for outgoing connections (from 32768).
constexpr int kFirstDerivedPort = 10'000;
constexpr int kNumDerivedPorts = 20'000;

// The environment, with strict parsing of numbers.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  bool has(const std::string& name) const { return text(name).has_value(); }

  // Set but empty counts as not set: scripts that forward variables do that.
  std::optional<std::string> text(const std::string& name) const {
    std::optional<std::string> value = environment_(name);
    if (value && value->empty()) value.reset();
    return value;
  }

  std::optional<int> number(const std::string& name, int low = 0, int high = kMaxInt) const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    const std::optional<int64_t> parsed = parse_integer(*value);
    if (!parsed || *parsed < low || *parsed > high) {
      fail(ExitCode::kBadConfig, "environment: expected {} to be a whole number from {} to {}, found '{}'",
           name, low, high, printable(*value));
    }
    return static_cast<int>(*parsed);
  }

  // A rank, or a number of ranks.
  int required(const std::string& name, const std::string& because, int low = 0) const {
    const std::optional<int> value = number(name, low, kMaxRanks);
    if (!value) fail(ExitCode::kBadConfig, "environment: {} is set, but {} is not", because, name);
    return *value;
  }

 private:
  const Environment& environment_;
};

// Derives the same port on every node.
int port_of_job(const std::string& job) {
  return kFirstDerivedPort + static_cast<int>(hash_name(job) % kNumDerivedPorts);
}

// Fills in what follows from rank, world_size, local_rank and local_world_size, and checks that they are
// consistent.
void place_in_node(World& world, std::optional<int> node_rank, const std::string& remedy) {
  const std::string& source = world.source;
  if (world.rank >= world.world_size) {
    fail(ExitCode::kBadConfig, "{}: rank {} of {}", source, world.rank, count_of(world.world_size, "rank"));
  }
  if (world.local_rank >= world.local_world_size) {
    fail(ExitCode::kBadConfig, "{}: local rank {} of {} on this node", source, world.local_rank,
         world.local_world_size);
  }
  if (world.world_size % world.local_world_size != 0) {
    fail(ExitCode::kBadConfig,
         "{}: {} cannot be {} on each node; all nodes must have the same number of ranks", source,
         count_of(world.world_size, "rank"), world.local_world_size);
  }
  world.num_nodes = world.world_size / world.local_world_size;
  world.node_rank = node_rank.value_or(world.rank / world.local_world_size);
  if (world.rank != int64_t{world.node_rank} * world.local_world_size + world.local_rank) {
    fail(ExitCode::kBadConfig,
         "{}: rank {} is local rank {} of node {} with {} each; ranks must be numbered node by node, "
         "the same number on each{}",
         source, world.rank, world.local_rank, world.node_rank, count_of(world.local_world_size, "rank"),
         remedy);
  }
}

// Sets master_addr and master_port, from MASTER_ADDR and MASTER_PORT or their substitutes. `job` identifies
// the job on all nodes; "" = only on this one.
void find_master(World& world, const Variables& variables, const std::string& first_node,
                 const std::string& job) {
  if (world.is_single()) return;
  const std::optional<std::string> address = variables.text("MASTER_ADDR");
  const std::optional<int> port = variables.number("MASTER_PORT", 1, 65535);
  if (address) {
    world.master_addr = *address;
  } else if (world.num_nodes > 1) {
    if (first_node.empty()) {
      fail(ExitCode::kBadConfig,
           "{} started {} on {}, but does not say how rank 0 is reached: export MASTER_ADDR "
           "(host name or address of rank 0's node) and MASTER_PORT to all ranks",
           world.source, count_of(world.world_size, "rank"), count_of(world.num_nodes, "node"));
    }
    world.master_addr = first_node;
  }
  if (port) {
    world.master_port = *port;
  } else if (!job.empty()) {
    world.master_port = port_of_job(job);
  } else if (world.num_nodes > 1) {
    fail(ExitCode::kBadConfig,
         "{} started ranks on {} nodes: export MASTER_PORT (any free port) to all ranks", world.source,
         world.num_nodes);
  } else {
    // All ranks of a node are children of the same process.
    world.master_port = port_of_job(fmt::format("parent {}", getppid()));
  }
}

std::vector<int> snapshot_slots(const Variables& variables) {
  const std::string text = variables.text(kSnapshotSlotsVariable).value_or("");
  std::vector<int> slots;
  const char* at = text.data();
  const char* const end = at + text.size();
  bool is_good = true;
  while (is_good && at < end) {
    int slot = -1;
    const auto [next, error] = std::from_chars(at, end, slot);
    const bool is_last = next == end;
    is_good = error == std::errc() && slot >= 0 && (is_last || (*next == ',' && next + 1 < end));
    slots.push_back(slot);
    at = is_last ? end : next + 1;
  }
  if (!is_good || (!slots.empty() && slots.size() != kNumSnapshotSlots)) {
    fail(ExitCode::kBadConfig, "environment: expected {} to be {} descriptors such as 7,8,9,10, found '{}'",
         kSnapshotSlotsVariable, kNumSnapshotSlots, printable(text));
  }
  return slots;
}

// tessera launch, torchrun, and the same variables set by hand.
World from_torchrun(const Variables& variables) {
  World world;
  const bool launched = variables.text("TESSERA_AGENT_STORE") == "1";
  world.source = launched                               ? "tessera launch"
                 : variables.has("TORCHELASTIC_RUN_ID") ? "torchrun"
                                                        : "RANK and WORLD_SIZE";
  world.rank = variables.required("RANK", "WORLD_SIZE");
  world.world_size = variables.required("WORLD_SIZE", "RANK", 1);
  world.local_rank = variables.number("LOCAL_RANK", 0, kMaxRanks).value_or(0);
  // DeepSpeed's launcher calls it LOCAL_SIZE.
  const char* local_size = variables.has("LOCAL_SIZE") ? "LOCAL_SIZE" : "LOCAL_WORLD_SIZE";
  if (world.local_rank > 0) variables.required(local_size, "LOCAL_RANK", 1);
  // RANK and WORLD_SIZE alone mean one process per node (Kubeflow's PyTorchJob).
  world.local_world_size = variables.number(local_size, 1, kMaxRanks).value_or(1);
  place_in_node(world, variables.number("GROUP_RANK", 0, kMaxRanks), "");
  world.run_id = variables.text("TORCHELASTIC_RUN_ID").value_or("");
  world.restart_count = variables.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  world.agent_has_store = launched;
  world.snapshot_slots = snapshot_slots(variables);
  find_master(world, variables, "", "");
  if (launched)
    world.master_port = variables.number(kStorePortVariable, 1, 65535).value_or(world.master_port);
  // torchrun's agent listens on MASTER_PORT with its own kind of store; rank 0 takes the next port.
  if (!launched && !world.is_single() &&
      lower_case(variables.text("TORCHELASTIC_USE_AGENT_STORE").value_or("")) == "true") {
    if (world.master_port == 65535) {
      fail(ExitCode::kBadConfig,
           "torchrun: MASTER_PORT is 65535, and the port after it is needed: choose another");
    }
    ++world.master_port;
  }
  return world;
}

World from_open_mpi(const Variables& variables) {
  const std::string because = "OMPI_COMM_WORLD_RANK";
  World world;
  world.source = "Open MPI";
  world.rank = variables.required("OMPI_COMM_WORLD_RANK", because);
  world.world_size = variables.required("OMPI_COMM_WORLD_SIZE", because, 1);
  world.local_rank = variables.required("OMPI_COMM_WORLD_LOCAL_RANK", because);
  world.local_world_size = variables.required("OMPI_COMM_WORLD_LOCAL_SIZE", because, 1);
  place_in_node(world, std::nullopt, " (mpirun --map-by slot, or ppr:N:node)");
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (world.run_id.empty()) world.run_id = variables.text(name).value_or("");
  }
  find_master(world, variables, "", world.run_id);
  return world;
}

// MPICH and Intel MPI (both start ranks with Hydra).
World from_mpich(const Variables& variables) {
  World world;
  world.source = "MPICH or Intel MPI";
  world.rank = variables.required("PMI_RANK", "PMI_SIZE");
  world.world_size = variables.required("PMI_SIZE", "PMI_RANK", 1);
  world.local_rank = variables.required("MPI_LOCALRANKID", "PMI_RANK");
  world.local_world_size = variables.required("MPI_LOCALNRANKS", "PMI_RANK", 1);
  place_in_node(world, std::nullopt, " (mpirun -ppn N)");
  find_master(world, variables, "", "");
  return world;
}

// Whether srun started this process as one of several tasks. An allocation (salloc, sbatch) also sets
// SLURM_NTASKS and SLURM_PROCID=0: there, and in a shell opened by srun --pty, a program is not a rank.
bool is_slurm_task(const Variables& variables) {
  if (!variables.has("SLURM_PROCID") || variables.has("SLURM_PTY_PORT")) return false;
  const std::optional<std::string> text =
      variables.has("SLURM_STEP_ID") ? variables.text("SLURM_STEP_ID") : variables.text("SLURM_STEPID");
  if (!text) return false;
  const int64_t step = parse_integer(*text).value_or(-1);
  // The steps of batch scripts and interactive shells have reserved numbers at the top of the 32-bit range.
  if (step < 0 || step >= 0xfffffff0) return false;
  const std::string tasks = variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  return variables.number(tasks, 1).value_or(1) > 1;
}

World from_slurm(const Variables& variables) {
  const auto first_set = [&](std::initializer_list<const char*> names) -> std::string {
    for (const char* name : names) {
      if (variables.has(name)) return name;
    }
    return *names.begin();
  };
  World world;
  world.source = "Slurm";
  world.rank = variables.required("SLURM_PROCID", "SLURM_STEP_ID");
  world.world_size =
      variables.required(first_set({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}), "SLURM_PROCID", 1);
  world.local_rank = variables.required("SLURM_LOCALID", "SLURM_PROCID");
  const int node_rank = variables.required("SLURM_NODEID", "SLURM_PROCID");

  const std::string per_node =
      first_set({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"});
  const std::optional<std::string> counts = variables.text(per_node);
  if (!counts) fail(ExitCode::kBadConfig, "environment: SLURM_PROCID is set, but {} is not", per_node);
  const std::vector<int> tasks = expand_tasks_per_node(*counts, per_node);
  world.local_world_size = tasks.front();
  if (std::ranges::any_of(tasks, [&](int count) { return count != tasks.front(); })) {
    fail(ExitCode::kBadConfig,
         "Slurm: {}={}; all nodes must have the same number of ranks: srun --ntasks-per-node=N", per_node,
         *counts);
  }
  place_in_node(world, node_rank, " (srun --distribution=block)");

  std::string first_node;
  const std::string list = first_set({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (const auto nodes = variables.text(list)) {
    first_node = expand_node_list(*nodes, list).front();
  } else {
    first_node = variables.text("SLURM_LAUNCH_NODE_IPADDR").value_or("");
  }
  const std::string job = first_set({"SLURM_JOB_ID", "SLURM_JOBID"});
  const std::string step = first_set({"SLURM_STEP_ID", "SLURM_STEPID"});
  world.run_id = fmt::format("{}.{}", variables.text(job).value_or("?"), variables.text(step).value_or("?"));
  world.restart_count = variables.number("SLURM_RESTART_COUNT").value_or(0);
  find_master(world, variables, first_node, world.run_id);
  return world;
}

World detect(const Variables& variables) {
  // Scripts export WORLD_SIZE=1 alone for a single process.
  if (variables.has("RANK") || variables.number("WORLD_SIZE", 1).value_or(1) > 1)
    return from_torchrun(variables);
  if (variables.has("OMPI_COMM_WORLD_RANK")) return from_open_mpi(variables);
  if (variables.has("PMI_RANK") && variables.has("MPI_LOCALRANKID")) return from_mpich(variables);
  // Slurm also sets PMI variables, but not MPI_LOCALRANKID.
  if (is_slurm_task(variables)) return from_slurm(variables);
  if (variables.number("PMI_SIZE", 1).value_or(1) > 1 && !variables.has("SLURM_PROCID"))
    return from_mpich(variables);
  return {};
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

int restart_attempt(const Environment& environment) {
  return Variables(environment).number(kRestartAttemptVariable).value_or(0);
}

World detect_world(const Environment& environment) {
  const Variables variables(environment);
  World world = detect(variables);
  world.rendezvous_timeout_s = variables.number(kRendezvousTimeoutVariable, 1).value_or(0);
  world.heartbeat_timeout_ms = variables.number(kHeartbeatTimeoutVariable, 1).value_or(0);
  world.secret = variables.text(kSecretVariable).value_or("");
  world.position_file = variables.text(kPositionVariable).value_or("");
  world.job_restarts = restart_attempt(environment);
  world.host = host_name();
  return world;
}

void check_ranks_are_started(const Environment& environment) {
  const Variables variables(environment);
  const std::string nodes = variables.text("PET_NNODES").value_or("");
  const std::optional<int64_t> most = parse_integer(split(nodes, ':').back());
  if (!most || *most <= 1 || variables.has("RANK") || !detect(variables).is_single()) return;
  fail(
      ExitCode::kBadConfig,
      "environment: PET_NNODES is {}, but RANK is not set: this is one of several nodes, which the agents of "
      "`tessera launch` join to one job: run `tessera launch train ...`, or set RANK=0 and WORLD_SIZE=1 to "
      "train "
      "here alone",
      printable(nodes));
}

std::string describe_rank(int rank, const std::string& host) {
  return fmt::format("rank {} on host {}", rank, host);
}

void log_nodes(const World& world, const std::vector<std::string>& hosts,
               const std::vector<std::string>& addresses) {
  const int per_node = world.local_world_size;
  for (int node = 0; node < world.num_nodes; ++node) {
    const int first = node * per_node;
    const std::string ranks = per_node == 1 ? fmt::format("rank {}", first)
                                            : fmt::format("ranks {}-{}", first, first + per_node - 1);
    log_info("node {}: {} on host {}, address {}", node, ranks, hosts.at(static_cast<size_t>(first)),
             addresses.at(static_cast<size_t>(first)));
  }
}

std::string format_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    text +=
        end - begin == 1 ? std::to_string(ranks[begin]) : fmt::format("{}-{}", ranks[begin], ranks[end - 1]);
    begin = end;
  }
  return text;
}

}  // namespace tessera
