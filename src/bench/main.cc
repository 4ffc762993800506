// tessera-bench: `tessera-bench gemm` is what `tessera bench gemm` runs.
#include "bench/commands/bench_command.h"
#include "cli/program/app.h"

namespace tessera {
namespace {

Commands benchmarks() {
  Commands all;
  all.push_back(make_bench_gemm_command());
  all.push_back(make_bench_attention_command());
  all.push_back(make_bench_elementwise_command());
  all.push_back(make_bench_comm_command());
  all.push_back(make_bench_load_command());
  all.push_back(make_bench_checkpoint_command());
  all.push_back(make_bench_disk_command());
  all.push_back(make_bench_plan_command());
  all.push_back(make_bench_optimizer_command());
  all.push_back(make_bench_tiles_command());
  all.push_back(make_bench_tokenizer_command());
  all.push_back(make_bench_train_step_command());
  return all;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  // The others ask for the program itself: its version, a report of a crash.
  const bool names_benchmark = arguments.empty() || !arguments[0].starts_with('-');
  if (names_benchmark || arguments[0] == "-h" || arguments[0] == "--help")
    arguments.insert(arguments.begin(), "bench");
  return tessera::program_main(arguments, tessera::benchmarks());
}
