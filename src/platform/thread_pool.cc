#include "platform/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "platform/cpu.h"
#include "platform/subnormals.h"

// oneDNN runs on OpenMP; our loops are the only parallelism, so every thread of the pool asks for one OpenMP
// thread.
extern "C" void omp_set_num_threads(int num_threads);

namespace tessera {
namespace {

thread_local int64_t current_thread_index = 0;
thread_local bool inside_parallel_region = false;

// How often a waiting thread looks again before it sleeps: about 20-50 us, longer than the gap between two
// kernels.
constexpr int kSpinsBeforeSleep = 2000;

}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  std::atomic<uint64_t> generation{0};
  std::atomic<int64_t> next_index{0};
  std::atomic<int64_t> busy_workers{0};
  int64_t count = 0;
  const FunctionRef<void(int64_t)>* body = nullptr;
  std::exception_ptr first_exception;
  bool stopping = false;

  void run_indices() {
    const SubnormalsAreZero scope;
    inside_parallel_region = true;
    for (int64_t index; (index = next_index.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        (*body)(index);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first_exception) first_exception = std::current_exception();
      }
    }
    inside_parallel_region = false;
  }

  void worker_loop(int64_t thread_index) {
    current_thread_index = thread_index;
    omp_set_num_threads(1);
    for (uint64_t seen = 0;;) {
      for (int spin = 0; spin < kSpinsBeforeSleep && generation.load(std::memory_order_acquire) == seen;
           ++spin) {
        __builtin_ia32_pause();
      }
      if (generation.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return generation.load(std::memory_order_relaxed) != seen; });
      }
      seen = generation.load(std::memory_order_acquire);
      if (stopping) return;
      run_indices();
      if (busy_workers.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const std::lock_guard lock(mutex);
        done.notify_one();
      }
    }
  }

  void publish() {
    const std::lock_guard lock(mutex);
    generation.fetch_add(1, std::memory_order_release);
    wake.notify_all();
  }
};

ThreadPool::ThreadPool(int64_t num_threads) : state_(std::make_unique<State>()) {
  const std::vector<int> cpus = usable_cpus();
  if (num_threads == 0) num_threads = usable_cpu_count();
  TESSERA_CHECK(num_threads >= 1, "num_threads={}", num_threads);
  omp_set_num_threads(1);
  for (int64_t i = 1; i < num_threads; ++i) {
    state_->workers.emplace_back([this, i] { state_->worker_loop(i); });
    if (num_threads <= static_cast<int64_t>(cpus.size())) {
      cpu_set_t mask;
      CPU_ZERO(&mask);
      CPU_SET(cpus[static_cast<size_t>(i)], &mask);
      // A refusal costs locality, nothing else.
      pthread_setaffinity_np(state_->workers.back().native_handle(), sizeof(mask), &mask);
    }
  }
}

ThreadPool::~ThreadPool() {
  state_->stopping = true;
  state_->publish();
  for (std::thread& worker : state_->workers) worker.join();
}

int64_t ThreadPool::num_threads() const { return static_cast<int64_t>(state_->workers.size()) + 1; }

int64_t ThreadPool::thread_index() { return current_thread_index; }

void ThreadPool::parallel_for(int64_t count, FunctionRef<void(int64_t)> body) {
  if (inside_parallel_region || state_->workers.empty() || count <= 1) {
    const SubnormalsAreZero scope;
    for (int64_t index = 0; index < count; ++index) body(index);
    return;
  }
  State& state = *state_;
  state.count = count;
  state.body = &body;
  state.next_index.store(0, std::memory_order_relaxed);
  state.busy_workers.store(static_cast<int64_t>(state.workers.size()), std::memory_order_relaxed);
  state.publish();
  state.run_indices();
  for (int spin = 0; spin < kSpinsBeforeSleep && state.busy_workers.load(std::memory_order_acquire) != 0;
       ++spin) {
    __builtin_ia32_pause();
  }
  if (state.busy_workers.load(std::memory_order_acquire) != 0) {
    std::unique_lock lock(state.mutex);
    state.done.wait(lock, [&] { return state.busy_workers.load(std::memory_order_acquire) == 0; });
  }
  if (state.first_exception) std::rethrow_exception(std::exchange(state.first_exception, nullptr));
}

void ThreadPool::parallel_blocks(int64_t count, int64_t block,
                                 FunctionRef<void(int64_t begin, int64_t end)> body) {
  TESSERA_CHECK(block >= 1, "block={}", block);
  parallel_for((count + block - 1) / block,
               [&](int64_t index) { body(index * block, std::min(count, (index + 1) * block)); });
}

}  // namespace tessera
