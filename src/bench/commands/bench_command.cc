#include "bench/commands/bench_command.h"

#include "base/text.h"
#include "cli/terminal/terminal.h"

namespace tessera {

void BenchCommand::declare_common_flags(FlagTable* table, double seconds) {
  seconds_ = seconds;
  table->begin_section("Measuring");
  Flag& threads =
      table->add("num_threads", &num_threads_,
                 "Compute threads; 0 uses OMP_NUM_THREADS, or else one per core this process may use.");
  threads.aliases = {"threads"};
  limit_flag(threads, 0, kMaxThreads);
  limit_flag(table->add("seconds", &seconds_, "Minimum measuring time per line, in seconds."), 0, 3600);
  limit_flag(
      table->add("rounds", &rounds_, "Minimum rounds per line; in each round every participant has a turn."),
      1, 1e6);
  limit_flag(
      table->add("cold_bytes", &cold_bytes_,
                 "Bytes that operands rotate through so that no cache holds them, and size of the arrays for "
                 "measuring memory bandwidth; 0 means 256 MiB and twice the last-level cache."),
      0, 1e15);
  table->add("json", &json_, "Print one JSON object per line instead of the table.");
}

void BenchCommand::declare_weights_flag(FlagTable* table, const std::string& help) {
  table->add_choice("weights", &weights_, {"as_dtype", "int8", "nf4", "nf4_double"}, help);
}

void BenchCommand::declare_device_flag(FlagTable* table) {
  table->add_choice("device", &device_,
                    "What computes: the processor, or an NVIDIA card, whose operations are then measured in "
                    "its own time, against products of 8192 x 8192 matrices as the peak.");
}

void BenchCommand::check_nothing_to_compare(const std::string& compare) const {
  if (compare == "auto" || compare == "none") return;
  fail(ExitCode::kUsage, "--compare {}: with --device {} there is one implementation; leave it out", compare,
       device_);
}

Quantization BenchCommand::weights_form() const {
  return weights_ == "int8"         ? Quantization::kInt8
         : weights_ == "nf4"        ? Quantization::kNf4
         : weights_ == "nf4_double" ? Quantization::kNf4Double
                                    : Quantization::kNone;
}

MeasureOptions BenchCommand::measure_options() const {
  MeasureOptions options;
  options.seconds = seconds_;
  options.min_rounds = rounds_;
  if (cold_bytes_ > 0) options.cold_bytes = cold_bytes_;
  return options;
}

void BenchCommand::show_header(const std::string& title, const std::string& unit,
                               const std::string& compared_with) const {
  if (json_) return;
  print("{}\n{}", title, table_header(unit, compared_with));
  flush_output();
}

void BenchCommand::show(const BenchLine& line, const ThreadPool& pool) const {
  write_output(json_ ? json_line(line, pool.num_threads()) : table_row(line));
  flush_output();
}

std::vector<int64_t> parse_sizes(const std::string& flag, const std::vector<std::string>& texts,
                                 int64_t max) {
  std::vector<int64_t> sizes;
  for (const std::string& text : texts) {
    const int64_t size = parse_integer(text).value_or(0);
    if (size < 1 || size > max) {
      fail(ExitCode::kUsage, "--{}: expected whole numbers from 1 to {}, found '{}'", flag, max,
           printable(text));
    }
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace tessera
