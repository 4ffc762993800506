// Is this machine fit to train? Every check of a node, in bounded time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cluster/check.h"
#include "cluster/node/fleet.h"
#include "cluster/node/peer_check.h"
#include "platform/nvidia_cards.h"

namespace tessera {

struct NodeCheckOptions {
  double seconds = 10;  // for everything together
  bool is_passive =
      false;  // loads neither processors nor memory nor disks, so that it may run beside a training
  std::string instruction_set = {};  // that must work; "" = none in particular
  std::optional<FleetFigures> figures;
  double min_share = 0.8;  // of the figures
  std::vector<Peer> peers;
  std::filesystem::path
      folder;  // for the trial of the disk; "" = the folder for temporary files, if it can be written
  std::filesystem::path root = "/";                      // where /proc, /sys and /dev are read
  int64_t num_cards = 0;                                 // NVIDIA cards that have to be there
  std::string nvml_library = std::string(kNvmlLibrary);  // "" = NVIDIA cards are not looked for
};

// Checks that fail count, those that cannot be made are skipped or unknown; it does not throw because of the
// machine's state. Starts threads and a process.
std::vector<Check> check_node(const NodeCheckOptions& options);

// "instructions": the best instruction set works, and so does the one required. `fault` and `refusal` are
// those of cpu_features() and machine_refusal(), "" = none.
Check check_instructions(const std::string& best, const std::string& required, const std::string& refusal,
                         const std::string& fault);

struct TrialReport;
// disk (fsync of a small write) and disk_space, from a trial of the folder. A folder that nobody `asked` for
// may be read-only.
std::vector<Check> check_disk(const TrialReport& report, const std::filesystem::path& folder, bool asked);

}  // namespace tessera
