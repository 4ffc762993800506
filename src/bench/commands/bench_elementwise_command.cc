#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "bench/commands/bench_command.h"
#include "bench/kernels/elementwise_bench.h"
#include "cli/threads.h"
#include "ops/cpu_ops.h"
#include "settings/choices.h"

namespace tessera {
namespace {

class BenchElementwiseCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench elementwise"; }
  std::string summary() const override {
    return "Measure norms, rotary embedding, SwiGLU, loss and the like";
  }
  std::string description() const override {
    return "Memory-bound operations in the widths of a preset. GB/s counts the bytes that an operation must "
           "read and write once; peak is the memory bandwidth, measured in turn, so a speed above it means "
           "that caches helped. Each line is first verified against float64 on a sample.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera-bench elementwise --operations swiglu swiglu_backward --rows 512"};
  }

  void declare_flags(FlagTable* table) override {
    table->add("preset", &preset_, "Preset that gives the widths.").value_name = preset_value_name();
    table->add("rows", &rows_, "Numbers of tokens T.").value_name = "T...";
    table->add("operations", &operations_, "Operations to measure.").value_name = "NAME...";
    limit_flag(table->add("vocab_size", &vocab_size_, "Vocabulary size if the preset has none."), 2, 1e7);
    table->add_choice("dtype", &dtype_, kTrainingDTypeWords, "Type of the activations.");
    declare_common_flags(table, /*seconds=*/0.5);
  }

  void run(FlagTable*) override {
    ElementwiseCase c;
    c.config = preset_config(preset_);
    if (c.config.vocab_size == 0) c.config.vocab_size = vocab_size_;
    c.dtype = dtype_;
    const std::vector<int64_t> rows = parse_sizes("rows", rows_);
    check_operations();
    ThreadPool pool(threads_for_products(num_threads()));
    const auto ops = make_cpu_ops(pool);
    BandwidthMeter bandwidth(pool, bandwidth_bytes());
    show_header(
        fmt::format("elementwise, {}, {}", dtype_name(c.dtype), count_of(pool.num_threads(), "thread")),
        "GB/s", "");
    for (const int64_t T : rows) {
      c.num_tokens = T;
      for (const std::string& operation : operations_) {
        c.operation = operation;
        show(run_elementwise_case(c, *ops, measure_options(), bandwidth, pool), pool);
      }
    }
  }

 private:
  void check_operations() const {
    const std::vector<std::string> known = elementwise_operations();
    for (const std::string& operation : operations_) {
      if (std::ranges::find(known, operation) != known.end()) continue;
      fail(ExitCode::kUsage, "--operations: expected {}, found '{}'", fmt::join(known, ", "),
           printable(operation));
    }
  }

  std::string preset_ = "llama3-8b";
  std::vector<std::string> rows_ = {"2048"};
  std::vector<std::string> operations_ = elementwise_operations();
  int64_t vocab_size_ = 8192;
  DType dtype_ = DType::kBF16;
};

}  // namespace

std::unique_ptr<Command> make_bench_elementwise_command() {
  return std::make_unique<BenchElementwiseCommand>();
}

}  // namespace tessera
