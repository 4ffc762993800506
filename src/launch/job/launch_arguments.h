// The flags of `tessera launch`, with torchrun's names, defaults and PET_* variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/flags.h"
#include "comm/ranks/world.h"

namespace tessera {

struct LaunchArguments {
  std::string nnodes = "1";
  std::string nproc_per_node = "1";
  std::optional<int64_t> node_rank;
  bool standalone = false;

  std::string rdzv_endpoint;
  std::string rdzv_backend = "static";
  std::string rdzv_id = "none";
  std::string rdzv_conf;
  std::string rdzv_secret_file;
  std::string master_addr = "127.0.0.1";
  int64_t master_port = 29500;

  int64_t max_restarts = 0;
  int64_t max_idle_restarts = 3;
  double termination_grace_s = 30;
  bool under_controller = false;
  std::string role = "default";

  std::string log_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string local_ranks_filter;

  std::vector<std::string> command;  // "train", flags...; or "--", program, arguments...

  std::vector<std::string> set_by_variables;  // flags set by apply_pet_variables()
};

void declare_launch_flags(FlagTable* table, LaunchArguments* arguments);

// Sets every flag not given from its variable, PET_NNODES for --nnodes and so on; an empty variable counts as
// not set. Error(kBadConfig) names the variable.
void apply_pet_variables(const Environment& environment, FlagTable* table, LaunchArguments* arguments);

}  // namespace tessera
