// A fixed set of pinned worker threads for data-parallel loops. One pool serves the whole process: kernels,
// tokenizer and file conversion.
#pragma once

#include <cstdint>
#include <memory>

#include "base/function_ref.h"
#include "platform/cpu.h"

namespace tessera {

class ThreadPool {
 public:
  // `num_threads` includes the calling thread; 0 = limits.num_threads(). If limits.can_pin(), all threads are
  // pinned to limits.pinned_cpus(), the caller until the pool is destroyed, on the same thread. Starts none
  // without a processor in `limits`, to plan for other machines. Error(kBadConfig) if one is refused.
  explicit ThreadPool(int64_t num_threads = 0, const CpuLimits& limits = cpu_limits());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int64_t num_threads() const;
  // The most threads that share a core with its L1 and L2: CpuLimits::threads_per_core().
  int64_t threads_per_core() const;

  // Runs body(index) exactly once for every index in [0, count), on any thread and in any order, and returns
  // when all are done. The first exception is rethrown here after the others have finished. Calls from inside
  // a body run on the calling thread alone; otherwise only one thread may call at a time. Allocates nothing,
  // takes no lock. Thread t of n begins with the t-th of n consecutive shares, then helps the others: results
  // must not depend on which thread runs what. Inside a body subnormal floats are read and written as zero,
  // on all threads alike (subnormals.h).
  void parallel_for(int64_t count, FunctionRef<void(int64_t index)> body);

  // Splits [0, count) into blocks of `block` indices (the last one may be shorter) and runs body(begin, end)
  // for each. The split depends only on `count` and `block`, so a fixed-order reduction over blocks does not
  // depend on num_threads().
  void parallel_blocks(int64_t count, int64_t block, FunctionRef<void(int64_t begin, int64_t end)> body);

  // Runs body() once on every thread of the pool and, if these are fewer than `min_threads`, on temporary
  // unpinned threads as well: for work that mostly waits. Loops inside body run on the calling thread alone,
  // whichever it is; thread_index() is 0 on all temporary threads, so body must not use per-thread scratch
  // memory. The first exception is rethrown after all have finished. Error(kBadConfig) if the system refuses
  // a thread.
  void run_on_each(int64_t min_threads, FunctionRef<void()> body);

  // Index of the calling thread in [0, num_threads()), for per-thread scratch memory. 0 outside the pool's
  // threads.
  static int64_t thread_index();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
