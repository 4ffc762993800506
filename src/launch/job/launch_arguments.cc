#include "launch/job/launch_arguments.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace tessera {
namespace {

// Where the ranks are and how they find each other.
void declare_job_flags(FlagTable* table, LaunchArguments* a) {
  table->begin_section("Job");
  table
      ->add("nnodes", &a->nnodes,
            "Number of nodes, or a range MIN:MAX: the ranks start once MAX nodes have joined, or at least "
            "MIN and no more arrive; after the loss of a node they restart without it.")
      .value_name = "N|MIN:MAX";
  table
      ->add(
          "nproc_per_node", &a->nproc_per_node,
          "Ranks on each node: a number; auto (also cpu) for one per NUMA node; gpu for one per NVIDIA card, "
          "which auto is with --device cuda.")
      .value_name = "N|auto|gpu";
  table->add("node_rank", &a->node_rank,
             "Number of this node, from 0. Required with several nodes; node 0 must take part in every "
             "start. Participating nodes are numbered in this order.");
  table->add(
      "standalone", &a->standalone,
      "Run on one node with an automatically chosen port, whatever the other flags and variables say.");
  table
      ->add("rdzv_endpoint", &a->rdzv_endpoint,
            "Address of node 0 as HOST[:PORT], as seen from every node. Defaults to --master_addr and "
            "--master_port.")
      .value_name = "HOST[:PORT]";
  table->add("master_addr", &a->master_addr, "Name or address of node 0.").value_name = "HOST";
  table
      ->add("master_port", &a->master_port,
            "Port of the job's store on node 0. On a single node, a free port is chosen unless one is given.")
      .value_name = "PORT";
  table->add_choice("rdzv_backend", &a->rdzv_backend, {"static", "c10d"},
                    "Both mean the same here: the agent of node 0 serves the store.");
  table->add("rdzv_id", &a->rdzv_id, "Name of the job; a node with a different one is refused.").value_name =
      "ID";
  table
      ->add(
          "rdzv_conf", &a->rdzv_conf,
          "timeout=SECONDS (or join_timeout): how long nodes and ranks wait for each other at startup, "
          "default 900; last_call_timeout: how long to wait for more nodes once the minimum has joined, "
          "default 30, or 3 at restarts; heartbeat_timeout: how much silence counts as a failure, default 5.")
      .value_name = "KEY=VALUE,...";
  table
      ->add("rdzv_secret_file", &a->rdzv_secret_file,
            "File with the job's secret, the same on all nodes. Defaults to the value of "
            "TESSERA_RDZV_SECRET. Peers that cannot prove they know the secret are rejected. On a single "
            "node, one is generated if none is given.")
      .value_name = "FILE";
}

void declare_run_flags(FlagTable* table, LaunchArguments* a) {
  table->begin_section("Failures");
  table->add("max_restarts", &a->max_restarts,
             "How often all ranks are restarted after one was killed or exited with a code that makes a "
             "retry worthwhile: any but 64, 65, 66, 70, 78 and 79. Nodes that vanish, are evicted (SIGTERM) "
             "or fall silent do not count: with --nnodes MIN:MAX, or any number above 0 here, the ranks "
             "restart after them.");
  table->add("max_idle_restarts", &a->max_idle_restarts,
             "How many times in a row the ranks restart after disruptions that let no step finish (for "
             "programs other than train: disruptions within a minute). Node 0's value applies.");
  table
      ->add("termination_grace_s", &a->termination_grace_s,
            "How long ranks may take to shut down after SIGINT, SIGTERM or SIGHUP before they are killed.")
      .value_name = "SECONDS";
  table->add(
      "under_controller", &a->under_controller,
      "For controllers that restart all nodes together and count failures by exit code, as those of "
      "Kubernetes do: a node whose rank was killed by a signal exits with 128 + the signal, not with 75, "
      "and one whose peer failed exits 3 s later, so that the cause is seen first.");
  table->begin_section("Output");
  table
      ->add("log_dir", &a->log_dir,
            "Folder for the ranks' files: ID_XXXXXX/attempt_N/LOCAL_RANK/stdout.log, stderr.log and "
            "error.json. Those of --redirects and --tee go to tessera-logs-UID in the folder for temporary "
            "files "
            "by default.")
      .value_name = "DIR";
  table
      ->add("redirects", &a->redirects,
            "Streams that go to those files instead of the launcher's output: 0 none, 1 standard output, 2 "
            "standard error, 3 both; or per local rank, as in 0:1,1:3.")
      .value_name = "0-3|R:N,...";
  table
      ->add("tee", &a->tee,
            "Streams that go both to those files and to the launcher's output, in the same notation.")
      .value_name = "0-3|R:N,...";
  table
      ->add("local_ranks_filter", &a->local_ranks_filter,
            "Local ranks whose output is shown by the launcher; the others' is hidden.")
      .value_name = "R,...";
  table->add("role", &a->role, "Exported as ROLE_NAME.").value_name = "NAME";
}

void declare_unsupported_flags(FlagTable* table) {
  const auto ignored = [&](const char* name, FlagType type, const char* value, const char* note) {
    table->add_unsupported(name, type, value, FlagStatus::kIgnored, note);
  };
  ignored("monitor_interval", FlagType::kFloat, "0.1", "a rank's exit is noticed at once");
  ignored("start_method", FlagType::kString, "spawn", "ranks are separate programs");
  ignored("no_python", FlagType::kBool, "false", "there is no Python");
  ignored("local_addr", FlagType::kString, "", "the address that reaches node 0 is used");
  ignored("event_log_handler", FlagType::kString, "null", "there are no such events");
  ignored("logs_specs", FlagType::kString, "", "log files are named as torchrun's default does");
  table->add_unsupported("module", FlagType::kBool, "false", FlagStatus::kRefused,
                         "there is no Python; a program follows --");
  table->add_unsupported("run_path", FlagType::kBool, "false", FlagStatus::kRefused,
                         "there is no Python; a program follows --");
}

// Names from accelerate, the launchers of DeepSpeed and torch.distributed, mpirun and srun.
constexpr ForeignNames kNames[] = {
    {"num_nodes num_machines nodes n_nodes", "nnodes", nullptr},
    {"nproc num_proc num_processes num_gpus num_workers nprocs np n ntasks_per_node procs_per_node "
     "nproc_per_machine "
     "num_ranks ranks",
     "nproc_per_node", nullptr},
    {"machine_rank rank nodeid node_id group_rank", "node_rank", nullptr},
    {"main_process_ip master_address host", "master_addr", nullptr},
    {"main_process_port port", "master_port", nullptr},
    {"endpoint rendezvous_endpoint rdzv_addr", "rdzv_endpoint", nullptr},
    {"job_id jobid run_id", "rdzv_id", nullptr},
    {"log_folder logs save_logs", "log_dir", nullptr},
    {"restarts max_restart num_restarts", "max_restarts", nullptr},
    {"hostfile h host_file hosts include exclude i e ssh_port launcher launcher_args no_ssh_check pdsh*",
     nullptr, "nodes are not started from here: run tessera launch on each of them with its --node_rank"},
    {"bind_cores_to_rank bind_core_list numa* bind_to map_by cpu_bind", nullptr,
     "the ranks of a node divide its cores automatically; leave it out"},
    {"use_env", nullptr, "ranks always get their variables from the environment; leave it out"},
    {"config_file default_config_file use_deepspeed use_fsdp multi_gpu cpu mixed_precision deepspeed",
     nullptr,
     "it is not a flag of the launcher: the command's flags follow the command, as in tessera launch train "
     "--deepspeed ds.json"},
    {"model model_name_or_path dataset config output_dir learning_rate", nullptr,
     "the command's flags follow the command, as in tessera launch train --model DIR"},
};

std::string variable_name(const std::string& flag) {
  std::string name = "PET_" + flag;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

}  // namespace

void declare_launch_flags(FlagTable* table, LaunchArguments* arguments) {
  declare_job_flags(table, arguments);
  declare_run_flags(table, arguments);
  Flag& command = table->add("command", &arguments->command,
                             "What every rank runs: a tessera command with its flags (train ...), or -- "
                             "followed by another program.");
  command.value_name = "COMMAND";
  command.positional = true;
  command.required = true;
  declare_unsupported_flags(table);
  table->add_foreign_names(kNames);
}

void apply_pet_variables(const Environment& environment, FlagTable* table, LaunchArguments* arguments) {
  for (const Flag& flag : table->flags()) {
    if (flag.positional || table->is_set(flag.name)) continue;
    const std::string name = variable_name(flag.name);
    const std::optional<std::string> value = environment(name);
    if (!value || value->empty()) continue;
    try {
      table->set(flag, {*value}, name);
    } catch (const Error& error) {
      throw Error(ExitCode::kBadConfig, error.what());
    }
    arguments->set_by_variables.push_back(flag.name);
  }
}

}  // namespace tessera
