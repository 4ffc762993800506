// Who this process is among the ranks of a job.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

inline constexpr int kMaxRanks = 1 << 20;  // of a job

// Ranks are numbered node by node: rank = node_rank * local_world_size + local_rank. Every node has as many
// ranks.
struct World {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;

  std::string master_addr = "127.0.0.1";  // of the store
  int master_port = 0;
  bool agent_has_store = false;  // the launcher's agent serves it; otherwise rank 0 does
  std::string run_id;            // names the job; members with another one are refused
  int restart_count = 0;         // of this job; a former incarnation is another job
  std::string secret;            // that members of the job prove to know; "": the job has none
  int rendezvous_timeout_s = 0;  // until all ranks are there, as the launcher says; 0: it says nothing
  int heartbeat_timeout_ms = 0;  // a silence that is a failure, in the same way
  std::string position_file;     // for RankPosition::of_rank(); "": the launcher does not read it
  // Descriptors of kNumSnapshotSlots empty memory files, which the agent keeps open as long as the job runs;
  // none where no agent starts ranks again.
  std::vector<int> snapshot_slots;
  std::string host;    // this machine's name, for messages
  std::string source;  // where it was read: "tessera launch", "torchrun", "Open MPI", "Slurm", ""

  bool is_single() const { return world_size == 1; }
};

// Seconds, read by detect_world().
inline constexpr const char* kRendezvousTimeoutVariable = "TESSERA_RDZV_TIMEOUT_S";
inline constexpr const char* kHeartbeatTimeoutVariable = "TESSERA_HEARTBEAT_TIMEOUT_MS";
// File of RankPosition::size_bytes().
inline constexpr const char* kPositionVariable = "TESSERA_POSITION_FILE";
inline constexpr const char* kSecretVariable = "TESSERA_RDZV_SECRET";
// "auto" for ranks that are started again: what --resume_from_checkpoint of `tessera train` is by default
// then.
inline constexpr const char* kResumeVariable = "TESSERA_RESUME";
// "7,8,9,10": World::snapshot_slots.
inline constexpr const char* kSnapshotSlotsVariable = "TESSERA_SNAPSHOT_SLOTS";
// Two of the rank's own, two of a rank on another node.
inline constexpr int kNumSnapshotSlots = 4;

// Reads an environment variable; nothing when it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// The first that is there of
//   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT,
//   TORCHELASTIC_RUN_ID,
//     TORCHELASTIC_RESTART_COUNT: tessera launch, which adds TESSERA_AGENT_STORE=1; torchrun, whose agent
//     serves its own kind of store on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True): rank 0 takes
//     MASTER_PORT + 1; anyone who sets them by hand
//   OMPI_COMM_WORLD_*: mpirun of Open MPI
//   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS: mpirun of MPICH and Intel MPI
//   SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID, SLURM_STEP_*: srun with several tasks
// or a single process. Without MASTER_ADDR, Slurm's first node is the master, and for the others a job on one
// node goes over loopback while one on several nodes is refused. Without MASTER_PORT, the port follows from
// the job's id. TESSERA_RDZV_TIMEOUT_S, TESSERA_HEARTBEAT_TIMEOUT_MS and TESSERA_RDZV_SECRET hold for all of
// them.
// Error(kBadConfig) for variables that are missing or contradict each other.
World detect_world(const Environment& environment = process_environment());

// "rank 3 on host worker-1".
std::string describe_rank(int rank, const std::string& host);

// A line in the log for each node: its ranks, host and address. Both lists are by rank.
void log_nodes(const World& world, const std::vector<std::string>& hosts,
               const std::vector<std::string>& addresses);

// Ranks in ascending order as "0-3, 6".
std::string format_ranks(const std::vector<int>& ranks);

}  // namespace tessera
