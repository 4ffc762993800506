#include "launch/job/launch_plan.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "comm/ranks/proof.h"
#include "comm/ranks/world.h"
#include "platform/nvidia_cards.h"
#include "platform/system.h"

namespace tessera {
namespace {

constexpr int kMaxRanksPerNode = 4096;
constexpr int kMaxNodes = 65536;
constexpr size_t kMinSecretBytes = 16;
constexpr size_t kMaxSecretBytes = 4096;

void parse_num_nodes(const std::string& text, LaunchPlan* plan) {
  const std::vector<std::string> ends = split(text, ':');
  const auto low = parse_integer(ends.front());
  const auto high = parse_integer(ends.back());
  if (ends.size() > 2 || !low || !high || *low < 1 || *low > *high || *high > kMaxNodes) {
    fail(ExitCode::kUsage, "--nnodes: expected a number of nodes from 1 to {}, found '{}'", kMaxNodes,
         printable(text));
  }
  plan->min_nodes = static_cast<int>(*low);
  plan->max_nodes = static_cast<int>(*high);
}

bool is_set_by_variable(const LaunchArguments& arguments, const char* flag) {
  return std::ranges::find(arguments.set_by_variables, flag) != arguments.set_by_variables.end();
}

// On nodes without GPUs, Kubeflow Trainer sets PET_NPROC_PER_NODE to the number of processors: the
// container's limit or, without a limit, its request, which cannot be seen inside the container and is
// somewhat less than the machine has.
bool is_count_of_processors(int64_t value, const NodeProcessors& node) {
  constexpr int64_t kMoreThanRanks = 16;
  const int64_t num_processors = node.limits.num_processors();
  return value > 1 &&
         (value == node.num_online || value == std::ssize(node.limits.cpus) || value == num_processors ||
          (value > kMoreThanRanks && value < num_processors && 2 * value > num_processors));
}

// The NVIDIA cards that CUDA gives a program: CUDA_VISIBLE_DEVICES lists some, up to the first that is none.
int num_visible_cards(const NodeProcessors& node, const Environment& environment) {
  const int num_cards = node.num_cards ? *node.num_cards : static_cast<int>(std::ssize(nvidia_cards().cards));
  const std::optional<std::string> listed = environment("CUDA_VISIBLE_DEVICES");
  if (!listed) return num_cards;
  int num_listed = 0;
  for (const std::string& card : split(*listed, ',')) {
    if (card.empty() || card.starts_with('-')) break;
    ++num_listed;
  }
  return std::min(num_cards, num_listed);
}

// Whether the command line has the ranks compute on cards.
bool asks_for_cards(const std::vector<std::string>& command) {
  for (size_t i = 0; i < command.size(); ++i) {
    if (command[i] == "--device=cuda") return true;
    if (command[i] == "--device" && i + 1 < command.size() && command[i + 1] == "cuda") return true;
  }
  return false;
}

// torchrun's words: gpu is a rank for each card, auto is gpu for what computes there and otherwise cpu, which
// here is a rank for each NUMA node.
int parse_ranks_per_node(const LaunchArguments& arguments, const Environment& environment,
                         const NodeProcessors& node, LaunchPlan* plan) {
  const std::string& text = arguments.nproc_per_node;
  const bool is_variable = is_set_by_variable(arguments, "nproc_per_node");
  const char* const name = is_variable ? "PET_NPROC_PER_NODE" : "--nproc_per_node";
  const ExitCode code = is_variable ? ExitCode::kBadConfig : ExitCode::kUsage;
  if (text == "gpu" || (text == "auto" && asks_for_cards(arguments.command))) {
    const int num_cards = num_visible_cards(node, environment);
    if (num_cards > 0) return num_cards;
    if (text == "gpu") {
      fail(
          code,
          "{} gpu: this machine has no NVIDIA card that a rank could have; auto is a rank for each NUMA node",
          name);
    }
  }
  if (text == "auto" || text == "cpu") return num_numa_nodes(node);
  const auto value = parse_integer(text);
  if (!value || *value < 1 || *value > kMaxRanksPerNode) {
    fail(code, "{}: expected a number from 1 to {}, auto, cpu or gpu, found '{}'{}", name, kMaxRanksPerNode,
         printable(text), text == "xpu" ? "; ranks compute on processors and NVIDIA cards" : "");
  }
  if (!is_set_by_variable(arguments, "nproc_per_node") || !is_count_of_processors(*value, node))
    return static_cast<int>(*value);
  const int num_ranks = num_numa_nodes(node);
  plan->notes.push_back(fmt::format(
      "PET_NPROC_PER_NODE={} is the number of processors and is treated as such: {} with {}{}", *value,
      num_ranks == 1 ? "one rank" : fmt::format("{} ranks, one per NUMA node,", num_ranks),
      count_of(node.limits.num_threads() / num_ranks, "thread"), num_ranks == 1 ? "" : " each"));
  return num_ranks;
}

struct Endpoint {
  std::string host;
  std::optional<int64_t> port;
};

// Colons belong to IPv6 addresses, perhaps with an interface (fe80::1%eth0); a port needs brackets around the
// address.
bool is_host(const std::string& text) {
  if (text.find_first_of(":[] \t") == std::string::npos) return !text.empty();
  const size_t zone = std::min(text.find('%'), text.size());
  in6_addr address = {};
  return text.find(':', zone) == std::string::npos &&
         inet_pton(AF_INET6, text.substr(0, zone).c_str(), &address) == 1;
}

// HOST, HOST:PORT, [ADDRESS]:PORT, or an IPv6 address alone.
Endpoint parse_endpoint(const std::string& text) {
  Endpoint endpoint{.host = text, .port = {}};
  const size_t colon = text.rfind(':');
  const bool bracketed = text.starts_with('[');
  const bool bare_v6 = !bracketed && std::count(text.begin(), text.end(), ':') > 1;
  if (colon != std::string::npos && !bare_v6 && !text.ends_with(']')) {
    endpoint.host = text.substr(0, colon);
    endpoint.port = parse_integer(text.substr(colon + 1));
    if (!endpoint.port) endpoint.host.clear();
  }
  if (bracketed && endpoint.host.ends_with(']')) {
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  }
  if (!is_host(endpoint.host)) {
    fail(ExitCode::kUsage, "--rdzv_endpoint: expected HOST or HOST:PORT, found '{}'{}", printable(text),
         bare_v6 ? "; an IPv6 address with a port is written [::1]:29500" : "");
  }
  return endpoint;
}

void check_port(const char* flag, int64_t port) {
  if (port < 1 || port > 65535)
    fail(ExitCode::kUsage, "{}: expected a port from 1 to 65535, found {}", flag, port);
}

void place_store(const LaunchArguments& arguments, const FlagTable& table, LaunchPlan* plan) {
  const bool single = plan->num_nodes == 1;
  plan->run_id = arguments.rdzv_id;
  if (single && !table.is_set("rdzv_id")) plan->run_id = random_id();
  plan->master_addr = "127.0.0.1";
  plan->master_port = 0;
  if (arguments.standalone) return;
  if (!arguments.rdzv_endpoint.empty()) {
    const Endpoint endpoint = parse_endpoint(arguments.rdzv_endpoint);
    plan->master_addr = endpoint.host;
    if (endpoint.port) {
      // torchrun's documentation writes localhost:0 for any free port on a single node.
      if (!single || *endpoint.port != 0) check_port("--rdzv_endpoint", *endpoint.port);
      plan->master_port = static_cast<int>(*endpoint.port);
    } else if (!single) {
      check_port("--master_port", arguments.master_port);
      plan->master_port = static_cast<int>(arguments.master_port);
    }
    return;
  }
  if (!single && !table.is_set("master_addr")) {
    fail(ExitCode::kUsage, "--nnodes {}: expected --rdzv_endpoint HOST:PORT or --master_addr HOST of node 0",
         plan->num_nodes);
  }
  if (table.is_set("master_port") && !(single && arguments.master_port == 0))
    check_port("--master_port", arguments.master_port);
  if (table.is_set("master_addr") && !is_host(arguments.master_addr)) {
    fail(ExitCode::kUsage,
         "--master_addr: expected a name or an address, found '{}'; the port is --master_port",
         printable(arguments.master_addr));
  }
  // The name of a pod appears in the DNS some time after the pod; ranks of a single node need none.
  if (!single || !is_set_by_variable(arguments, "master_addr")) plan->master_addr = arguments.master_addr;
  if (!single || table.is_set("master_port")) plan->master_port = static_cast<int>(arguments.master_port);
}

std::string read_secret(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string secret(kMaxSecretBytes + 1, '\0');
  file.read(secret.data(), static_cast<std::streamsize>(secret.size()));
  if (!file.is_open() || file.bad()) {
    fail_errno(ExitCode::kNoInput, errno, fmt::format("--rdzv_secret_file '{}'", printable(path)));
  }
  secret.resize(static_cast<size_t>(file.gcount()));
  // Editors end files with a newline.
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  return secret;
}

void plan_secret(const LaunchArguments& arguments, const Environment& environment, LaunchPlan* plan) {
  const bool from_file = !arguments.rdzv_secret_file.empty();
  plan->secret =
      from_file ? read_secret(arguments.rdzv_secret_file) : environment(kSecretVariable).value_or("");
  if (plan->secret.empty() && !from_file) {
    if (plan->num_nodes == 1) {
      plan->secret = random_secret();
    } else {
      plan->warnings.push_back(fmt::format(
          "the job has no secret (--rdzv_secret_file, {}): anyone who reaches its ports and knows "
          "its name can join it",
          kSecretVariable));
    }
    return;
  }
  const size_t size = plan->secret.size();
  // It is passed on as an environment variable.
  if (size < kMinSecretBytes || size > kMaxSecretBytes || plan->secret.find('\0') != std::string::npos) {
    fail(from_file ? ExitCode::kBadData : ExitCode::kBadConfig,
         "{}: expected a secret of {} to {} bytes without zeros, found {}; `openssl rand -hex 32` "
         "generates one",
         from_file ? "--rdzv_secret_file " + printable(arguments.rdzv_secret_file) : kSecretVariable,
         kMinSecretBytes, kMaxSecretBytes, count_of(static_cast<int64_t>(size), "byte"));
  }
}

// torchrun uses these keys for its own rendezvous.
constexpr const char* kKeysWithoutEffect[] = {
    "read_timeout", "close_timeout", "keep_alive_interval", "keep_alive_max_attempt", "is_host", "store_type",
    "use_libuv",    "rank",          "local_addr"};

void read_rendezvous_settings(const std::string& text, LaunchPlan* plan) {
  if (text.empty()) return;
  for (const std::string& field : split(text, ',')) {
    const size_t equals = field.find('=');
    if (equals == std::string::npos || equals == 0) {
      fail(ExitCode::kUsage, "--rdzv_conf: expected KEY=VALUE,..., found '{}'", printable(text));
    }
    const std::string key = field.substr(0, equals);
    const std::string value = field.substr(equals + 1);
    const auto seconds = [&](double low) {
      const double number = parse_number(value).value_or(-1);
      if (!(number >= low && number <= 1e6)) {
        fail(ExitCode::kUsage, "--rdzv_conf: {}: expected a number of seconds from {}, found '{}'", key, low,
             printable(value));
      }
      return std::chrono::milliseconds(std::llround(number * 1000));
    };
    if (key == "timeout" || key == "join_timeout") {
      plan->rendezvous_timeout = seconds(1);
    } else if (key == "last_call_timeout") {
      plan->last_call = seconds(0);
    } else if (key == "heartbeat_timeout") {
      plan->heartbeat_timeout = seconds(0.5);
    } else if (std::find(std::begin(kKeysWithoutEffect), std::end(kKeysWithoutEffect), key) ==
               std::end(kKeysWithoutEffect)) {
      fail(ExitCode::kUsage,
           "--rdzv_conf: unknown key '{}'; expected timeout, last_call_timeout or heartbeat_timeout",
           printable(key));
    }
  }
}

void plan_outputs(const LaunchArguments& arguments, LaunchPlan* plan) {
  const int num_ranks = plan->local_world_size;
  const auto redirects = parse_stream_choice("--redirects", arguments.redirects, num_ranks);
  const auto tee = parse_stream_choice("--tee", arguments.tee, num_ranks);
  plan->log_dir = arguments.log_dir;
  for (size_t i = 0; i < redirects.size(); ++i) {
    // torchrun does the same: a stream named in both is shown.
    RankOutput output;
    output.teed = tee[i];
    output.redirected = {.out = redirects[i].out && !tee[i].out, .err = redirects[i].err && !tee[i].err};
    output.shown = arguments.local_ranks_filter.empty();
    plan->outputs.push_back(output);
  }
  if (arguments.local_ranks_filter.empty()) return;
  for (const std::string& field : split(arguments.local_ranks_filter, ',')) {
    const auto rank = parse_integer(field);
    if (!rank || *rank < 0 || *rank >= num_ranks) {
      fail(ExitCode::kUsage, "--local_ranks_filter: expected local ranks from 0 to {}, found '{}'",
           num_ranks - 1, printable(arguments.local_ranks_filter));
    }
    plan->outputs[static_cast<size_t>(*rank)].shown = true;
  }
}

bool is_executable(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

std::string find_program(const std::string& name, const Environment& environment) {
  if (name.find('/') != std::string::npos) {
    std::error_code error;
    const bool is_there = std::filesystem::exists(name, error);
    if (error) fail(ExitCode::kNoInput, "program '{}': {}", printable(name), error.message());
    if (!is_there) fail(ExitCode::kNoInput, "program '{}' does not exist", printable(name));
    if (!is_executable(name)) fail(ExitCode::kNoInput, "program '{}' cannot be executed", printable(name));
    return name;
  }
  for (const std::string& folder : split(environment("PATH").value_or("/usr/bin:/bin"), ':')) {
    const std::filesystem::path path = std::filesystem::path(folder.empty() ? "." : folder) / name;
    if (!name.empty() && is_executable(path)) return path.string();
  }
  fail(ExitCode::kNoInput, "program '{}' was not found in PATH", printable(name));
}

void plan_program(const std::vector<std::string>& command, const Environment& environment, LaunchPlan* plan) {
  TESSERA_CHECK(!command.empty());
  if (command.front() != "--") {
    plan->is_tessera = true;
    plan->program = {"/proc/self/exe", "tessera"};
    plan->program.insert(plan->program.end(), command.begin(), command.end());
    return;
  }
  if (command.size() < 2) fail(ExitCode::kUsage, "expected a program after --, found nothing");
  plan->program = {find_program(command[1], environment)};
  plan->program.insert(plan->program.end(), command.begin() + 1, command.end());
}

void number_node(const LaunchArguments& arguments, const FlagTable& table, const Environment& environment,
                 LaunchPlan* plan) {
  if (!arguments.standalone) parse_num_nodes(arguments.nnodes, plan);
  plan->num_nodes = plan->max_nodes;
  std::optional<int64_t> number = arguments.node_rank;
  if (const auto agents = arguments.standalone ? std::nullopt : agents_of_launcher(environment)) {
    if (!table.is_set("nnodes")) {
      fail(ExitCode::kUsage,
           "{} has started {}: expected --nnodes {}, or --standalone for a job of each alone", agents->source,
           count_of(agents->num_nodes, "agent"), agents->num_nodes);
    }
    if (!number && agents->num_nodes == plan->num_nodes) number = agents->node_rank;
  }
  if (plan->num_nodes > 1 && !number) {
    fail(ExitCode::kUsage,
         "--nnodes {}: expected --node_rank N, from 0 to {}: nodes are not numbered automatically",
         plan->num_nodes, plan->num_nodes - 1);
  }
  const int64_t node_rank = arguments.standalone ? 0 : number.value_or(0);
  if (node_rank < 0 || node_rank >= plan->num_nodes) {
    fail(ExitCode::kUsage, "--node_rank: expected a number from 0 to {} for --nnodes {}, found {}",
         plan->num_nodes - 1, plan->num_nodes, node_rank);
  }
  plan->node_rank = plan->wanted_rank = static_cast<int>(node_rank);
}

int number_of_restarts(const char* flag, int64_t value) {
  constexpr int64_t kMax = 1'000'000;
  if (value < 0 || value > kMax)
    fail(ExitCode::kUsage, "{}: expected a number from 0 to {}, found {}", flag, kMax, value);
  return static_cast<int>(value);
}

}  // namespace

std::optional<World> agents_of_launcher(const Environment& environment) {
  // Where node 0 is, the flags say.
  const Environment with_master = [&](const std::string& name) {
    const std::optional<std::string> value = environment(name);
    if (value && !value->empty()) return value;
    return name == "MASTER_ADDR"   ? std::optional<std::string>("localhost")
           : name == "MASTER_PORT" ? std::optional<std::string>("29500")
                                   : value;
  };
  try {
    World world = detect_world(with_master);
    const bool starts_agents =
        world.source == "Slurm" || world.source == "Open MPI" || world.source == "MPICH or Intel MPI";
    if (starts_agents && !world.is_single() && world.local_world_size == 1) return world;
  } catch (const Error&) {
    // The variables say too little: the flags have to.
  }
  return std::nullopt;
}

std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

LaunchPlan plan_launch(const LaunchArguments& arguments, const FlagTable& table,
                       const Environment& environment, const NodeProcessors& node) {
  LaunchPlan plan;
  plan.host = host_name();
  plan.role = arguments.role;
  number_node(arguments, table, environment, &plan);
  plan.local_world_size = parse_ranks_per_node(arguments, environment, node, &plan);
  if (plan.world_size() > kMaxRanks) {
    fail(ExitCode::kUsage, "--nnodes {} with --nproc_per_node {}: expected at most {} ranks", plan.num_nodes,
         plan.local_world_size, kMaxRanks);
  }
  place_store(arguments, table, &plan);
  read_rendezvous_settings(arguments.rdzv_conf, &plan);
  plan_secret(arguments, environment, &plan);
  plan.max_restarts = number_of_restarts("--max_restarts", arguments.max_restarts);
  plan.max_idle_restarts = number_of_restarts("--max_idle_restarts", arguments.max_idle_restarts);
  if (!(arguments.termination_grace_s >= 0 && arguments.termination_grace_s <= 1e6)) {
    fail(ExitCode::kUsage, "--termination_grace_s: expected a number of seconds from 0, found {}",
         arguments.termination_grace_s);
  }
  plan.termination_grace = std::chrono::milliseconds(std::llround(arguments.termination_grace_s * 1000));
  plan.under_controller = arguments.under_controller;
  plan_outputs(arguments, &plan);
  ProcessorAssignment assignment = assign_processors(node, plan.local_world_size);
  plan.processors = std::move(assignment.ranks);
  if (!assignment.message.empty()) plan.warnings.push_back(assignment.message);
  plan_program(arguments.command, environment, &plan);
  if (const int attempt = restart_attempt(environment); attempt > 0)
    plan.notes.push_back(fmt::format("restart attempt {} of the job: all of its pods are new", attempt));
  return plan;
}

}  // namespace tessera
