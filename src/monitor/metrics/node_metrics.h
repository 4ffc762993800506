// Metrics of a node and this process on it.
#pragma once

#include <filesystem>
#include <string>

#include "comm/communicator.h"
#include "monitor/metrics/exposition.h"
#include "monitor/metrics/run_health.h"

namespace tessera {

// Read from the system and from the communicator at every scrape; the thread that trains is not asked.
class NodeMetrics {
 public:
  // `comm` and `health` must outlive this.
  NodeMetrics(std::string version, std::filesystem::path output_dir, Communicator& comm,
              const RunHealth& health);

  void write(Exposition* out) const;

 private:
  void write_collectives(Exposition* out) const;

  const std::string version_;
  const std::filesystem::path output_dir_;
  Communicator& comm_;
  const RunHealth& health_;
  const double start_time_;
};

}  // namespace tessera
