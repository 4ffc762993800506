// Code shared by the benchmark subcommands: flags, and output as a table or as JSON lines.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/bench_line.h"
#include "bench/measure.h"
#include "cli/command.h"
#include "cli/flag_parser.h"
#include "platform/thread_pool.h"
#include "tensor/device_kind.h"
#include "tensor/quantization.h"

namespace tessera {

class BenchCommand : public Command {
 public:
  std::string usage() const override { return "[flags]"; }

 protected:
  // --num_threads, --seconds, --rounds, --cold_bytes, --json; `seconds` is the default.
  void declare_common_flags(FlagTable* table, double seconds);

  // --weights: as_dtype or the name of a quantized form.
  void declare_weights_flag(FlagTable* table, const std::string& help);
  Quantization weights_form() const;

  // --device: cpu, or one with memory of its own.
  void declare_device_flag(FlagTable* table);
  bool is_on_device() const { return device_ != DeviceKind::kCpu; }
  DeviceKind device() const { return device_; }
  // Error(kUsage) for a --compare that names an implementation of the processor, where a device is measured.
  void check_nothing_to_compare(const std::string& compare) const;

  MeasureOptions measure_options() const;
  // Size of the arrays that memory bandwidth is measured with; 0 = the meter's own choice.
  int64_t bandwidth_bytes() const { return cold_bytes_; }
  int64_t num_threads() const { return num_threads_; }
  bool json() const { return json_; }

  // Prints a title and a table header, or a row; with --json no header, and the row as JSON. Flushed at once,
  // since a benchmark takes minutes.
  void show_header(const std::string& title, const std::string& unit, const std::string& compared_with) const;
  void show(const BenchLine& line, const ThreadPool& pool) const;

 private:
  int64_t num_threads_ = 0;
  double seconds_ = 0;
  int64_t rounds_ = 7;
  int64_t cold_bytes_ = 0;
  bool json_ = false;
  std::string weights_ = "as_dtype";
  DeviceKind device_ = DeviceKind::kCpu;
};

// Parses the values of a list flag as whole numbers from 1 to `max`. Error(kUsage).
std::vector<int64_t> parse_sizes(const std::string& flag, const std::vector<std::string>& texts,
                                 int64_t max = int64_t{1} << 30);

// The best implementation of that name that this machine can run, other than the chosen one; empty for "none"
// or if the chosen one is the only one of this name. "auto" is onednn, or nothing where it does not run.
// Error(kUsage) for any other name that no implementation has here.
template <typename Kernels>
std::vector<Implementation<Kernels>> implementations_to_compare(const DispatchTable<Kernels>& table,
                                                                const std::string& name) {
  if (name == "none") return {};
  const bool is_auto = name == "auto";
  const std::string wanted = is_auto ? "onednn" : name;
  const Implementation<Kernels>& chosen = table.chosen_implementation();
  std::vector<std::string> names = {"none"};
  for (const Implementation<Kernels>& row : table.usable()) {
    const bool is_chosen = row.name == chosen.name && row.isa == chosen.isa;
    if (row.name == wanted) return is_chosen ? std::vector<Implementation<Kernels>>() : std::vector{row};
    if (std::find(names.begin(), names.end(), row.name) == names.end()) names.emplace_back(row.name);
  }
  if (is_auto) return {};
  fail(ExitCode::kUsage, "--compare {}: this machine runs {}", name, fmt::join(names, ", "));
}

std::unique_ptr<Command> make_bench_gemm_command();
std::unique_ptr<Command> make_bench_attention_command();
std::unique_ptr<Command> make_bench_elementwise_command();
std::unique_ptr<Command> make_bench_comm_command();
std::unique_ptr<Command> make_bench_load_command();
std::unique_ptr<Command> make_bench_checkpoint_command();
std::unique_ptr<Command> make_bench_disk_command();
std::unique_ptr<Command> make_bench_plan_command();
std::unique_ptr<Command> make_bench_optimizer_command();
std::unique_ptr<Command> make_bench_tiles_command();
std::unique_ptr<Command> make_bench_tokenizer_command();
std::unique_ptr<Command> make_bench_train_step_command();

}  // namespace tessera
