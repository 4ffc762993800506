#include "cli/program/other_launchers.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

// A launcher's flag translates to one of these.
enum class Becomes {
  kLaunchFlag,  // of `tessera launch`, with its value
  kTrainFlag,   // of `tessera train`, with its value
  kNumRanks,    // of all nodes together
  kNumThreads,  // OMP_NUM_THREADS
  kNothing,     // has a value and no counterpart
  kNoSwitch,    // has neither
  kFsdp,        // `--fsdp true` of `tessera train`; a switch
  kHosts,       // where the launcher starts nodes itself
};

struct LauncherFlag {
  std::string_view name;
  Becomes becomes;
  std::string_view here;
};

struct Launcher {
  std::string_view name;
  std::span<const std::string_view> subcommands;  // before the flags
  std::span<const LauncherFlag> flags;
};

// accelerate 1.15, commands/launch.py.
constexpr std::string_view kAccelerateCommands[] = {"launch"};
constexpr LauncherFlag kAccelerateFlags[] = {
    {"num_processes", Becomes::kNumRanks, ""},
    {"num_machines", Becomes::kLaunchFlag, "nnodes"},
    {"machine_rank", Becomes::kLaunchFlag, "node_rank"},
    {"main_process_ip", Becomes::kLaunchFlag, "master_addr"},
    {"main_process_port", Becomes::kLaunchFlag, "master_port"},
    {"max_restarts", Becomes::kLaunchFlag, "max_restarts"},
    {"rdzv_conf", Becomes::kLaunchFlag, "rdzv_conf"},
    {"log_dir", Becomes::kLaunchFlag, "log_dir"},
    {"tee", Becomes::kLaunchFlag, "tee"},
    {"role", Becomes::kLaunchFlag, "role"},
    {"num_cpu_threads_per_process", Becomes::kNumThreads, ""},
    {"deepspeed_config_file", Becomes::kTrainFlag, "deepspeed"},
    {"zero_stage", Becomes::kTrainFlag, "zero_stage"},
    {"offload_optimizer_device", Becomes::kTrainFlag, "offload_optimizer_device"},
    {"offload_param_device", Becomes::kTrainFlag, "offload_param_device"},
    {"offload_optimizer_nvme_path", Becomes::kTrainFlag, "offload_dir"},
    {"gradient_accumulation_steps", Becomes::kTrainFlag, "gradient_accumulation_steps"},
    {"gradient_clipping", Becomes::kTrainFlag, "max_grad_norm"},
    {"cpu", Becomes::kNoSwitch, ""},
    {"multi_gpu", Becomes::kNoSwitch, ""},
    {"use_deepspeed", Becomes::kNoSwitch, ""},
    {"use_fsdp", Becomes::kFsdp, ""},
    {"same_network", Becomes::kNoSwitch, ""},
    {"ipex", Becomes::kNoSwitch, ""},
    {"enable_cpu_affinity", Becomes::kNoSwitch, ""},
    {"rdzv_backend", Becomes::kNothing, ""},
    {"monitor_interval", Becomes::kNothing, ""},
    {"dynamo_backend", Becomes::kNothing, ""},
    {"mixed_precision", Becomes::kNothing, ""},
    {"deepspeed_hostfile", Becomes::kHosts, ""},
    {"mpirun_hostfile", Becomes::kHosts, ""}};

// intel_extension_for_pytorch 2.8, cpu/launch.
constexpr std::string_view kIpexrunCommands[] = {"cpu", "xpu"};
constexpr LauncherFlag kIpexrunFlags[] = {{"nnodes", Becomes::kLaunchFlag, "nnodes"},
                                          {"nprocs_per_node", Becomes::kLaunchFlag, "nproc_per_node"},
                                          {"nproc_per_node", Becomes::kLaunchFlag, "nproc_per_node"},
                                          {"ninstances", Becomes::kLaunchFlag, "nproc_per_node"},
                                          {"ncores_per_instance", Becomes::kNumThreads, ""},
                                          {"master_addr", Becomes::kLaunchFlag, "master_addr"},
                                          {"master_port", Becomes::kLaunchFlag, "master_port"},
                                          {"log_dir", Becomes::kLaunchFlag, "log_dir"},
                                          {"hostfile", Becomes::kHosts, ""},
                                          {"ccl_worker_count", Becomes::kNothing, ""},
                                          {"logical_cores_for_ccl", Becomes::kNoSwitch, ""},
                                          {"distributed", Becomes::kNoSwitch, ""},
                                          {"memory_allocator", Becomes::kNothing, ""},
                                          {"omp_runtime", Becomes::kNothing, ""},
                                          {"use_logical_cores", Becomes::kNoSwitch, ""},
                                          {"use_e_cores", Becomes::kNoSwitch, ""},
                                          {"skip_cross_node_cores", Becomes::kNoSwitch, ""},
                                          {"latency_mode", Becomes::kNoSwitch, ""},
                                          {"throughput_mode", Becomes::kNoSwitch, ""},
                                          {"nodes_list", Becomes::kNothing, ""},
                                          {"cores_list", Becomes::kNothing, ""},
                                          {"log_file_prefix", Becomes::kNothing, ""},
                                          {"multi_task_manager", Becomes::kNothing, ""}};

// DeepSpeed 0.19, launcher/runner.py.
constexpr LauncherFlag kDeepSpeedFlags[] = {{"num_gpus", Becomes::kLaunchFlag, "nproc_per_node"},
                                            {"num_accelerators", Becomes::kLaunchFlag, "nproc_per_node"},
                                            {"num_nodes", Becomes::kLaunchFlag, "nnodes"},
                                            {"node_rank", Becomes::kLaunchFlag, "node_rank"},
                                            {"master_addr", Becomes::kLaunchFlag, "master_addr"},
                                            {"master_port", Becomes::kLaunchFlag, "master_port"},
                                            {"enable_each_rank_log", Becomes::kLaunchFlag, "log_dir"},
                                            {"hostfile", Becomes::kHosts, ""},
                                            {"H", Becomes::kHosts, ""},
                                            {"include", Becomes::kHosts, ""},
                                            {"i", Becomes::kHosts, ""},
                                            {"exclude", Becomes::kHosts, ""},
                                            {"e", Becomes::kHosts, ""},
                                            {"launcher", Becomes::kHosts, ""},
                                            {"launcher_args", Becomes::kHosts, ""},
                                            {"ssh_port", Becomes::kHosts, ""},
                                            {"venv_script", Becomes::kNothing, ""},
                                            {"log_level", Becomes::kNothing, ""},
                                            {"save_pid", Becomes::kNoSwitch, ""},
                                            {"no_ssh", Becomes::kNoSwitch, ""},
                                            {"no_ssh_check", Becomes::kNoSwitch, ""},
                                            {"force_multi", Becomes::kNoSwitch, ""},
                                            {"no_local_rank", Becomes::kNoSwitch, ""},
                                            {"bind_cores_to_rank", Becomes::kNoSwitch, ""},
                                            {"bind_core_list", Becomes::kNothing, ""},
                                            {"quiet", Becomes::kNoSwitch, ""},
                                            {"q", Becomes::kNoSwitch, ""},
                                            {"autotuning", Becomes::kNothing, ""}};

constexpr Launcher kLaunchers[] = {{"accelerate", kAccelerateCommands, kAccelerateFlags},
                                   {"ipexrun", kIpexrunCommands, kIpexrunFlags},
                                   {"deepspeed", {}, kDeepSpeedFlags}};

bool is_flag(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

// The launcher's part of a command line, in words of tessera.
struct Translation {
  std::vector<std::string> launch, train;
  std::string num_threads;
  int64_t num_ranks = 0, num_nodes = 1;
  bool starts_nodes = false;
  bool uses_fsdp = false;
  nlohmann::ordered_json fsdp_config = nlohmann::ordered_json::object();
  std::vector<std::string> unknown;
};

std::string spelled_here(std::string word) {
  word.erase(0, word.find_first_not_of('-'));
  std::ranges::replace(word, '-', '_');
  return word;
}

void take(const LauncherFlag& flag, const std::string& value, Translation* out) {
  const std::string here = "--" + std::string(flag.here);
  switch (flag.becomes) {
    case Becomes::kLaunchFlag:
      if (flag.here == "nnodes") out->num_nodes = std::max<int64_t>(1, parse_integer(value).value_or(1));
      out->launch.insert(out->launch.end(), {here, value});
      break;
    case Becomes::kTrainFlag:
      out->train.insert(out->train.end(), {here, value});
      break;
    case Becomes::kNumRanks:
      out->num_ranks = parse_integer(value).value_or(0);
      break;
    case Becomes::kNumThreads:
      out->num_threads = value;
      break;
    case Becomes::kHosts:
      out->starts_nodes = true;
      break;
    case Becomes::kFsdp:
      out->uses_fsdp = true;
      break;
    case Becomes::kNothing:
    case Becomes::kNoSwitch:
      break;
  }
}

// Up to the script, whose place `next` is then.
Translation translate(const Launcher& launcher, const std::vector<std::string>& words, size_t* next) {
  Translation out;
  for (; *next < words.size() && is_flag(words[*next]); ++*next) {
    const std::string word = words[*next];
    const size_t equals = word.find('=');
    const std::string name = spelled_here(word.substr(0, equals));
    if (name == "m" || name == "module" || name == "no_python") continue;  // how the script is started
    const auto flag = std::ranges::find(launcher.flags, name, &LauncherFlag::name);
    const bool is_known = flag != launcher.flags.end();
    std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    const bool takes_next = equals == std::string::npos && *next + 1 < words.size() &&
                            !is_flag(words[*next + 1]) &&
                            (is_known ? flag->becomes != Becomes::kNoSwitch && flag->becomes != Becomes::kFsdp
                                      : !words[*next + 1].ends_with(".py"));
    if (takes_next) value = words[++*next];
    if (name.starts_with("fsdp_") && launcher.name == "accelerate") {
      out.fsdp_config[name.substr(5)] = value;
    } else if (!is_known) {
      out.unknown.push_back(printable(word.substr(0, equals)));
    } else {
      take(*flag, value, &out);
    }
  }
  return out;
}

}  // namespace

std::string hint_for_launcher(const std::vector<std::string>& words) {
  const auto launcher = words.empty() ? std::end(kLaunchers)
                                      : std::ranges::find(kLaunchers, words[0], [](const Launcher& each) {
                                          return std::string(each.name);
                                        });
  if (launcher == std::end(kLaunchers)) return "";
  size_t next = 1;
  if (next < words.size() && std::ranges::count(launcher->subcommands, words[next]) > 0) ++next;
  Translation out = translate(*launcher, words, &next);
  // The number of accelerate is that of all machines.
  if (out.num_ranks > 0) {
    const int64_t of_node = std::max<int64_t>(1, out.num_ranks / out.num_nodes);
    out.launch.insert(out.launch.begin(), {"--nproc_per_node", std::to_string(of_node)});
  }
  const bool has_rank = std::ranges::count(out.launch, "--node_rank") > 0;
  if (out.num_nodes > 1 && !has_rank) out.launch.insert(out.launch.end(), {"--node_rank", "NODE"});

  std::string line =
      out.num_threads.empty() ? "" : fmt::format("OMP_NUM_THREADS={} ", shell_quoted(out.num_threads));
  line += "tessera";
  const auto add = [&line](const std::vector<std::string>& more) {
    for (const std::string& word : more) line += " " + shell_quoted(word);
  };
  if (!out.launch.empty()) {
    add({"launch"});
    add(out.launch);
  }
  add({"train"});
  add(out.train);
  if (out.uses_fsdp) add({"--fsdp", "true"});
  if (out.uses_fsdp && !out.fsdp_config.empty()) add({"--fsdp_config", out.fsdp_config.dump()});
  if (next < words.size()) ++next;  // the script
  add({words.begin() + static_cast<std::ptrdiff_t>(std::min(next, words.size())), words.end()});
  std::string hint = fmt::format("; the same here: {}", printable(line, 2000));
  if (out.num_nodes > 1 || out.starts_nodes)
    hint += ", run on every node, since nodes are not started from here";
  if (!out.unknown.empty()) hint += fmt::format("; not translated: {}", fmt::join(out.unknown, ", "));
  return hint;
}

}  // namespace tessera
