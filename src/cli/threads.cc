#include "cli/threads.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "comm/ranks/launch_variables.h"

namespace tessera {
namespace {

PoolThreads threads_of_this_process(int64_t asked) {
  PoolThreads threads = pool_threads(asked, process_environment(), cpu_limits());
  if (!threads.choice.warning.empty()) log_warning("{}", threads.choice.warning);
  return threads;
}

}  // namespace

PoolThreads pool_threads(int64_t asked, const Environment& environment, CpuLimits limits) {
  const std::string omp_num_threads = environment("OMP_NUM_THREADS").value_or("");
  const auto share = parse_integer(environment(kProcessorShareVariable).value_or(""));
  if (share && *share >= 1 && *share < std::ssize(limits.cpus)) {
    const auto processors = static_cast<double>(*share);
    limits.quota = std::min(processors, limits.quota.value_or(processors));
  }
  ThreadChoice choice = choose_threads(asked, omp_num_threads.c_str(), limits);
  // A number that differs from the agent's was set by the program the agent started.
  const bool by_agent = share && asked == 0 && choice.num_threads == limits.num_threads();
  if (by_agent) choice = choose_threads(0, nullptr, limits);
  return {std::move(limits), std::move(choice)};
}

int64_t threads_for_pool(int64_t asked) { return threads_of_this_process(asked).num_threads(); }

int64_t threads_for_products(int64_t asked) {
  PoolThreads threads = threads_of_this_process(asked);
  if (threads.choice.is_default) threads.calibration = calibrate_threads(threads.limits);
  if (threads.num_threads() != threads.choice.num_threads) {
    log_info("starting two threads per core: a product measured just now ran faster on them ({})",
             threads.calibration->describe());
  }
  return threads.num_threads();
}

PoolThreads examine_threads() {
  PoolThreads threads = threads_of_this_process(0);
  threads.calibration = calibrate_threads(threads.limits);
  return threads;
}

}  // namespace tessera
