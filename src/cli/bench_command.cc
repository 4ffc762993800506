#include "cli/bench_command.h"

#include <charconv>

#include "base/text.h"
#include "cli/terminal.h"

namespace tessera {

void BenchCommand::declare_common_flags(FlagTable* table, double seconds) {
  seconds_ = seconds;
  table->begin_section("Measuring");
  Flag& threads = table->add("num_threads", &num_threads_,
                             "Threads to compute with; 0 takes OMP_NUM_THREADS, or else one for each core "
                             "this process may use.");
  threads.aliases = {"threads"};
  limit_flag(threads, 0, kMaxThreads);
  limit_flag(table->add("seconds", &seconds_, "How long a line measures at least."), 0, 3600);
  limit_flag(
      table->add("rounds", &rounds_, "Rounds of a line at least; in each one every participant has a turn."),
      1, 1e6);
  limit_flag(
      table->add("cold_bytes", &cold_bytes_,
                 "Size of what operands rotate through so that no cache holds them, and of the arrays that "
                 "memory bandwidth is measured with; 0 takes 256 MiB and twice the last-level cache."),
      0, 1e15);
  table->add("json", &json_, "One JSON object per line instead of the table.");
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

void limit_flag(Flag& flag, double low, double high) {
  flag.set = [set = flag.set, get = flag.get, name = flag.name, low,
              high](const std::vector<std::string>& values) {
    set(values);
    for (const std::string& text : get()) {
      const double value = std::stod(text);
      if (!(low <= value && value <= high)) {
        fail(ExitCode::kUsage, "--{}: expected a number from {} to {}, found {}", name, low, high, text);
      }
    }
  };
}

std::vector<int64_t> parse_sizes(const std::string& flag, const std::vector<std::string>& texts) {
  constexpr int64_t kMaxSize = int64_t{1} << 30;
  std::vector<int64_t> sizes;
  for (const std::string& text : texts) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || end != text.data() + text.size() || size < 1 || size > kMaxSize) {
      fail(ExitCode::kUsage, "--{}: expected whole numbers from 1 to {}, found '{}'", flag, kMaxSize,
           printable(text));
    }
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace tessera
