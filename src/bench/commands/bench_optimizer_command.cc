#include "base/text.h"
#include "bench/commands/bench_command.h"
#include "bench/kernels/optimizer_bench.h"
#include "cli/threads.h"

namespace tessera {
namespace {

class BenchOptimizerCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench optimizer"; }
  std::string summary() const override { return "Measure AdamW and the gradient norm"; }
  std::string description() const override {
    return "One AdamW update of bf16 weights with their 16-bit remainders, and one of float32 weights, each "
           "reading and writing 28 bytes per parameter, the first also with moments in 8 bits (16 bytes), "
           "and "
           "the sum of squares for the gradient norm, 4 "
           "bytes. peak is the memory bandwidth, measured in turn. Each line is first verified against "
           "the reference on a sample.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera-bench optimizer --num_parameters 1e9"};
  }

  void declare_flags(FlagTable* table) override {
    limit_flag(table->add("num_parameters", &num_parameters_,
                          "Number of parameters; each takes 18 bytes of memory."),
               1, 1e12);
    table->add("compare", &compare_, "Implementation to compare with, or none.").value_name = "NAME";
    declare_common_flags(table, /*seconds=*/1);
  }

  void run(FlagTable*) override {
    const auto& table = update_table<AdamWRule>();
    const std::vector<AdamWImplementation> others = implementations_to_compare(table, compare_);
    const AdamWImplementation& ours = table.chosen_implementation();
    ThreadPool pool(threads_for_products(num_threads()));
    BandwidthMeter bandwidth(pool, bandwidth_bytes());
    show_header(
        fmt::format("optimizer {}, {}", implementation_text(ours), count_of(pool.num_threads(), "thread")),
        "GB/s", others.empty() ? "" : compare_);
    for (const OptimizerCase& c : {OptimizerCase{DType::kBF16, num_parameters_, false},
                                   {DType::kBF16, num_parameters_, true},
                                   {DType::kF32, num_parameters_, false}}) {
      show(run_optimizer_case(c, ours, others, measure_options(), bandwidth, pool), pool);
    }
    show(run_gradient_norm_case(num_parameters_, elementwise_table().chosen_implementation(),
                                measure_options(), bandwidth, pool),
         pool);
  }

 private:
  int64_t num_parameters_ = 200'000'000;
  std::string compare_ = "none";
};

}  // namespace

std::unique_ptr<Command> make_bench_optimizer_command() { return std::make_unique<BenchOptimizerCommand>(); }

}  // namespace tessera
