// For tests: a folder that stands in for "/" where topology and control groups are read, describing an
// invented machine.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "platform/topology.h"

namespace tessera {

struct MachineShape {
  int num_numa_nodes = 1;  // sockets, or the clusters of a socket
  int cores_per_node = 1;
  int threads_per_core = 2;
  // The hardware threads of core c are c and c + number of cores, as Linux numbers them on a Xeon, or
  // adjacent, as on most clouds.
  bool siblings_are_neighbours = false;

  int num_cores() const { return num_numa_nodes * cores_per_node; }
  int num_cpus() const { return num_cores() * threads_per_core; }
  int cpu(int core, int thread) const {
    return siblings_are_neighbours ? core * threads_per_core + thread : thread * num_cores() + core;
  }
  std::vector<int> core(int core) const {
    std::vector<int> cpus;
    for (int thread = 0; thread < threads_per_core; ++thread) cpus.push_back(cpu(core, thread));
    return cpus;
  }
  std::vector<int> cpus() const {
    std::vector<int> all;
    for (int cpu = 0; cpu < num_cpus(); ++cpu) all.push_back(cpu);
    return all;
  }
};

class FakeMachine {
 public:
  // An empty folder.
  FakeMachine() {
    static std::atomic<int> counter = 0;
    // Many small files, so in memory if possible.
    const std::filesystem::path memory = "/dev/shm";
    root_ = (std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path()) /
            fmt::format("tessera_machine_{}_{}", getpid(), ++counter);
  }
  explicit FakeMachine(const MachineShape& shape) : FakeMachine() {
    write("sys/devices/system/cpu/online", fmt::format("0-{}\n", shape.num_cpus() - 1));
    for (int n = 0; n < shape.num_numa_nodes; ++n) {
      std::vector<int> of_node;
      for (int c = n * shape.cores_per_node; c < (n + 1) * shape.cores_per_node; ++c) {
        const std::vector<int> core = shape.core(c);
        for (const int cpu : core) set_siblings(cpu, format_cpu_list(core));
        of_node.insert(of_node.end(), core.begin(), core.end());
      }
      std::sort(of_node.begin(), of_node.end());
      write(fmt::format("sys/devices/system/node/node{}/cpulist", n), format_cpu_list(of_node) + "\n");
    }
  }
  ~FakeMachine() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;

  const std::filesystem::path& root() const { return root_; }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void set_siblings(int cpu, const std::string& list, const char* file = "core_cpus_list") const {
    write(fmt::format("sys/devices/system/cpu/cpu{}/topology/{}", cpu, file), list + "\n");
  }
  // Limits the processor time of this process's control group, as in a container.
  void set_cpu_quota(double processors) const {
    write("proc/self/cgroup", "0::/\n");
    write("sys/fs/cgroup/cpu.max", fmt::format("{:.0f} 100000\n", processors * 100000));
  }

 private:
  std::filesystem::path root_;
};

}  // namespace tessera
