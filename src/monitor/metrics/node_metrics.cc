#include "monitor/metrics/node_metrics.h"

#include <system_error>
#include <utility>

#include "base/clock.h"
#include "monitor/metrics/metric_table.h"
#include "monitor/metrics/nvidia_metrics.h"
#include "platform/cgroup.h"
#include "platform/memory_info.h"
#include "platform/nvidia_cards.h"
#include "platform/stop_signal.h"
#include "platform/system.h"
#include "platform/system_counters.h"

namespace tessera {
namespace {

void write_one(Exposition* out, std::string_view name, double value) {
  out->family(metric(name));
  out->sample(value);
}

void write_memory(Exposition* out) {
  const MemoryInfo memory = memory_info();
  const bool is_limited = memory.cgroup_limit_bytes && *memory.cgroup_limit_bytes < memory.total_bytes;
  const int64_t limit = is_limited ? *memory.cgroup_limit_bytes : memory.total_bytes;
  const int64_t used =
      is_limited ? memory.cgroup_used_bytes.value_or(0) : memory.total_bytes - memory.available_bytes;
  out->family(metric("tessera_memory_bytes"));
  const std::pair<std::string_view, int64_t> kinds[] = {
      {"used", used}, {"limit", limit}, {"resident", resident_bytes()}, {"peak", peak_resident_bytes()}};
  for (const auto& [kind, bytes] : kinds) out->sample(static_cast<double>(bytes), {{"kind", kind}});
}

void write_system(const std::filesystem::path& output_dir, Exposition* out) {
  if (const std::optional<double> throttled_s = cgroup_throttled_s()) {
    write_one(out, "tessera_cpu_throttled_seconds_total", *throttled_s);
  }
  if (const std::optional<double> hertz = cpu_frequency_hertz()) {
    write_one(out, "tessera_cpu_frequency_hertz", *hertz);
  }
  const std::vector<NumaMemory> nodes = numa_memory();
  if (!nodes.empty()) out->family(metric("tessera_numa_free_bytes"));
  for (const NumaMemory& node : nodes) {
    out->sample(static_cast<double>(node.free_bytes), {{"numa_node", std::to_string(node.node)}});
  }
  if (!nodes.empty()) out->family(metric("tessera_numa_miss_pages_total"));
  for (const NumaMemory& node : nodes) {
    out->sample(static_cast<double>(node.missed_pages), {{"numa_node", std::to_string(node.node)}});
  }
  if (const std::optional<TcpSegments> segments = tcp_segments()) {
    write_one(out, "tessera_tcp_segments_sent_total", static_cast<double>(segments->sent));
    write_one(out, "tessera_tcp_retransmits_total", static_cast<double>(segments->sent_again));
  }
  const std::vector<RdmaCounter> counters = rdma_counters();
  if (!counters.empty()) out->family(metric("tessera_rdma_counter_total"));
  for (const RdmaCounter& counter : counters) {
    out->sample(static_cast<double>(counter.value),
                {{"device", counter.device}, {"port", counter.port}, {"counter", counter.name}});
  }
  if (const std::optional<DiskTraffic> traffic = disk_traffic()) {
    write_one(out, "tessera_disk_read_bytes_total", static_cast<double>(traffic->read_bytes));
    write_one(out, "tessera_disk_written_bytes_total", static_cast<double>(traffic->written_bytes));
  }
  std::error_code missing;  // output_dir appears with the first step
  const std::filesystem::space_info space = std::filesystem::space(output_dir, missing);
  if (missing || space.capacity == 0) return;  // some file systems do not tell
  write_one(out, "tessera_disk_free_bytes", static_cast<double>(space.available));
  write_one(out, "tessera_disk_size_bytes", static_cast<double>(space.capacity));
}

}  // namespace

NodeMetrics::NodeMetrics(std::string version, std::filesystem::path output_dir, Communicator& comm,
                         const RunHealth& health)
    : version_(std::move(version)),
      output_dir_(std::move(output_dir)),
      comm_(comm),
      health_(health),
      start_time_(unix_seconds()) {}

void NodeMetrics::write(Exposition* out) const {
  const World& world = comm_.world();
  out->family(metric("tessera_build_info"));
  out->sample(1, {{"version", version_},
                  {"host", host_name()},
                  {"node", std::to_string(world.node_rank)},
                  {"ranks", std::to_string(world.world_size)}});
  write_one(out, "tessera_start_time_seconds", start_time_);
  write_one(out, "tessera_restarts_total", static_cast<double>(world.num_restarts()));
  const RunHealth::Report health = health_.report();
  write_one(out, "tessera_last_step_age_seconds", health.step_age_s);
  write_one(out, "tessera_progress_age_seconds", health.progress_age_s);
  write_one(out, "tessera_progress_limit_seconds", health.limit_s);
  write_one(out, "tessera_stop_requested", StopSignals::received() != 0 ? 1 : 0);
  write_memory(out);
  write_collectives(out);
  write_nvidia_metrics(nvidia_cards(), out);
  write_system(output_dir_, out);
}

void NodeMetrics::write_collectives(Exposition* out) const {
  std::vector<std::pair<std::string_view, std::vector<CollectiveCount>>> scopes = {
      {"node", comm_.node().collectives()}, {"network", comm_.rail().collectives()}};
  NetworkCounters network = comm_.rail().counters();
  for (const auto& [scope, group] :
       {std::pair("background", comm_.background_rail()), std::pair("tokens", comm_.token_rail())}) {
    if (group == nullptr) continue;
    scopes.emplace_back(scope, group->collectives());
    network.sent_bytes += group->counters().sent_bytes;
    network.received_bytes += group->counters().received_bytes;
  }
  const std::pair<std::string_view, double (*)(const CollectiveCount&)> families[] = {
      {"tessera_collectives_total",
       [](const CollectiveCount& of) { return static_cast<double>(of.num_calls); }},
      {"tessera_collective_seconds_total", [](const CollectiveCount& of) { return of.time_s; }},
      {"tessera_collective_bytes_total",
       [](const CollectiveCount& of) { return static_cast<double>(of.bytes); }}};
  for (const auto& [name, value] : families) {
    out->family(metric(name));
    for (const auto& [scope, counts] : scopes) {
      for (const CollectiveCount& count : counts) {
        out->sample(value(count), {{"op", count.operation}, {"scope", scope}});
      }
    }
  }
  out->family(metric("tessera_network_bytes_total"));
  out->sample(static_cast<double>(network.sent_bytes), {{"direction", "sent"}});
  out->sample(static_cast<double>(network.received_bytes), {{"direction", "received"}});
}

}  // namespace tessera
