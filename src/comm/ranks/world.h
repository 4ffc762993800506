// This process's place among the ranks of a job.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

inline constexpr int kMaxRanks = 1 << 20;  // of a job

// Ranks are numbered node by node: rank = node_rank * local_world_size + local_rank. All nodes have the same
// number of ranks.
struct World {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;

  std::string master_addr = "127.0.0.1";  // of the store
  int master_port = 0;
  bool agent_has_store = false;  // the launcher's agent serves the store; otherwise rank 0 does
  std::string run_id;            // names the job; members with another one are refused
  int restart_count = 0;         // of this job; an earlier incarnation counts as another job
  int job_restarts = 0;          // restart_attempt(): each was a job of its own with restart_count from 0
  std::string secret;            // members of the job must prove that they know it; "": none
  int rendezvous_timeout_s = 0;  // until all ranks have joined, set by the launcher; 0: not set
  int heartbeat_timeout_ms = 0;  // silence that counts as a failure, likewise
  std::string position_file;     // for RankPosition::of_rank(); "": no launcher reads it
  // Descriptors of kNumSnapshotSlots initially empty memory files, which the agent keeps open while the job
  // runs; empty if no agent restarts ranks.
  std::vector<int> snapshot_slots;
  std::string host;    // name of this machine, for messages
  std::string source;  // where this came from: "tessera launch", "torchrun", "Open MPI", "Slurm", ""

  bool is_single() const { return world_size == 1; }
  int64_t num_restarts() const { return int64_t{restart_count} + job_restarts; }
};

// Seconds, read by detect_world().
inline constexpr const char* kRendezvousTimeoutVariable = "TESSERA_RDZV_TIMEOUT_S";
inline constexpr const char* kHeartbeatTimeoutVariable = "TESSERA_HEARTBEAT_TIMEOUT_MS";
// Path of a file of RankPosition::size_bytes().
inline constexpr const char* kPositionVariable = "TESSERA_POSITION_FILE";
inline constexpr const char* kSecretVariable = "TESSERA_RDZV_SECRET";
// "auto" for restarted ranks: makes that the default of `tessera train --resume_from_checkpoint`.
inline constexpr const char* kResumeVariable = "TESSERA_RESUME";
// "7,8,9,10": World::snapshot_slots.
inline constexpr const char* kSnapshotSlotsVariable = "TESSERA_SNAPSHOT_SLOTS";
// Two for the rank's own snapshots, two for those of a rank on another node.
inline constexpr int kNumSnapshotSlots = 4;

// Reads an environment variable; nullopt if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// The number of times Kubernetes has recreated all pods of the job: a JobSet's label
// jobset.sigs.k8s.io/restart-attempt, passed on by the downward API, which leaves the variable empty where
// there is no label. Error(kBadConfig) if it is not a number.
inline constexpr const char* kRestartAttemptVariable = "TESSERA_RESTART_ATTEMPT";
int restart_attempt(const Environment& environment);

// Reads the first of these that is set:
//   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT,
//   TORCHELASTIC_RUN_ID,
//     TORCHELASTIC_RESTART_COUNT: tessera launch, which adds TESSERA_AGENT_STORE=1; torchrun, whose agent
//     serves its own kind of store on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True): rank 0 takes
//     MASTER_PORT + 1; anyone who sets them by hand
//   OMPI_COMM_WORLD_*: mpirun of Open MPI
//   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS: mpirun of MPICH and Intel MPI
//   SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID, SLURM_STEP_*: srun with several tasks
// If none is set, this is a single process. Without MASTER_ADDR, the master is the first node under Slurm;
// elsewhere a job on one node uses loopback and one on several nodes is refused. Without MASTER_PORT, the
// port is derived from the job's id. TESSERA_RDZV_TIMEOUT_S, TESSERA_HEARTBEAT_TIMEOUT_MS,
// TESSERA_RDZV_SECRET and TESSERA_RESTART_ATTEMPT apply to all of them.
// Error(kBadConfig) for variables that are missing or contradict each other.
World detect_world(const Environment& environment = process_environment());

// Error(kBadConfig) in one of several pods of Kubeflow Trainer (PET_NNODES) where nothing has started ranks:
// each pod would train alone.
void check_ranks_are_started(const Environment& environment = process_environment());

// "rank 3 on host worker-1".
std::string describe_rank(int rank, const std::string& host);

// Logs one line per node: its ranks, host and address. Both lists are by rank.
void log_nodes(const World& world, const std::vector<std::string>& hosts,
               const std::vector<std::string>& addresses);

// Ranks in ascending order as "0-3, 6".
std::string format_ranks(const std::vector<int>& ranks);

}  // namespace tessera
