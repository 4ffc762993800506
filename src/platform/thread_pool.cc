#include "platform/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <latch>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/divide_up.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "platform/background_thread.h"
#include "platform/subnormals.h"

// oneDNN runs on OpenMP; our loops are the only parallelism, so every thread of the pool sets one OpenMP
// thread.
extern "C" void omp_set_num_threads(int num_threads);

namespace tessera {
namespace {

thread_local int64_t current_thread_index = 0;
thread_local bool inside_parallel_region = false;

// The number of polls of a waiting thread before it sleeps: some 50 us, longer than the gap between two
// kernels. A thread without its own processor sleeps at once: spinning would take time from the thread it
// waits for and from a container's CPU quota.
constexpr int kSpinsBeforeSleep = 1000;

// A share [next, end) of a loop's indices packed into one number, so that it is read and claimed atomically.
// The upper half is the end. A claim adds one to the lower half; on an exhausted share that is harmless.
class Share {
 public:
  static constexpr int64_t kMaxCount = int64_t{1} << 31;

  void set(int64_t begin, int64_t end) {
    packed_.store(static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(begin), std::memory_order_release);
  }
  std::optional<int64_t> claim() {
    if (!has_indices(packed_.load(std::memory_order_acquire))) return std::nullopt;
    const uint64_t packed = packed_.fetch_add(1, std::memory_order_acq_rel);
    if (!has_indices(packed)) return std::nullopt;
    return static_cast<int64_t>(packed & 0xFFFFFFFFu);
  }

 private:
  static bool has_indices(uint64_t packed) { return (packed & 0xFFFFFFFFu) < packed >> 32; }

  alignas(kCacheLineBytes) std::atomic<uint64_t> packed_{0};
};

// Waits until value() differs from `old`: spinning first, then asleep in the kernel (futex).
template <typename Value>
void wait_for_change(const std::atomic<Value>& value, Value old, int num_spins) {
  for (int spin = 0; spin < num_spins; ++spin) {
    if (value.load(std::memory_order_acquire) != old) return;
    __builtin_ia32_pause();
  }
  value.wait(old, std::memory_order_acquire);
}

[[noreturn]] void fail_refused_thread(size_t num_started, int64_t num_threads,
                                      const std::system_error& error) {
  fail(ExitCode::kBadConfig, "the system allows {} of {} ({}): raise the limit of processes or ask for fewer",
       num_started, count_of(num_threads, "thread"), error.code().message());
}

}  // namespace

// A loop is published by writing the body, then the number of indices left, then every thread's share, then a
// new generation. Threads first work on their own share of consecutive indices, then help the others. Whoever
// claims an index has therefore seen its body, and the loop cannot end before that index is done: a thread
// that wakes up late finds nothing to claim, or claims from the next loop. The end of a loop waits for
// indices, not for threads.
struct ThreadPool::State {
  explicit State(int64_t num_threads) : shares(static_cast<size_t>(num_threads)), starting(num_threads - 1) {
    workers.reserve(shares.size() - 1);
  }

  std::vector<std::thread> workers;
  std::vector<Share> shares;          // one per thread
  std::latch starting;                // until every worker has made its initial heap allocations
  std::optional<ClaimedCpus> pinned;  // nullopt: the system places the threads
  int64_t threads_per_core = 1;
  int num_spins = 0;
  std::atomic<bool> stopping{false};
  std::atomic<bool> is_busy{false};  // running a loop
  std::atomic<bool> has_exception{false};
  std::exception_ptr first_exception;
  std::atomic<const FunctionRef<void(int64_t)>*> body{nullptr};
  alignas(kCacheLineBytes) std::atomic<uint32_t> generation{0};
  alignas(kCacheLineBytes) std::atomic<uint32_t> indices_left{0};

  // Claims indices until there are none.
  void run_indices(int64_t thread_index) {
    const SubnormalsAreZero scope;
    inside_parallel_region = true;
    uint32_t num_done = 0;
    for (size_t i = 0; i < shares.size(); ++i) {
      Share& share = shares[(static_cast<size_t>(thread_index) + i) % shares.size()];
      for (std::optional<int64_t> index; (index = share.claim()); ++num_done) run_index(*index);
    }
    inside_parallel_region = false;
    // Once nothing is left, the caller may return and publish the next loop.
    if (num_done > 0 && indices_left.fetch_sub(num_done, std::memory_order_acq_rel) == num_done) {
      indices_left.notify_one();
    }
  }

  void run_index(int64_t index) {
    try {
      (*body.load(std::memory_order_relaxed))(index);
    } catch (...) {
      if (!has_exception.exchange(true)) first_exception = std::current_exception();
    }
  }

  void worker_loop(int64_t thread_index) {
    current_thread_index = thread_index;
    omp_set_num_threads(1);
    starting.count_down();
    for (uint32_t seen = 0;;) {
      wait_for_change(generation, seen, num_spins);
      seen = generation.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_relaxed)) return;
      run_indices(thread_index);
    }
  }

  void publish(int64_t count, const FunctionRef<void(int64_t)>& new_body) {
    body.store(&new_body, std::memory_order_relaxed);
    indices_left.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
    const auto num_threads = static_cast<int64_t>(shares.size());
    for (int64_t i = 0; i < num_threads; ++i) {
      shares[static_cast<size_t>(i)].set(i * count / num_threads, (i + 1) * count / num_threads);
    }
    announce();
  }

  void announce() {
    generation.fetch_add(1, std::memory_order_acq_rel);
    generation.notify_all();
  }

  void stop() {
    stopping.store(true, std::memory_order_relaxed);
    announce();
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int64_t num_threads, const CpuLimits& limits) {
  if (num_threads == 0) num_threads = limits.num_threads();
  TESSERA_CHECK(num_threads >= 1, "num_threads={}", num_threads);
  state_ = std::make_unique<State>(num_threads);
  if (limits.cpus.empty()) return;  // only its size matters
  omp_set_num_threads(1);
  state_->num_spins = limits.can_spin(num_threads) ? kSpinsBeforeSleep : 0;
  state_->threads_per_core = limits.threads_per_core(num_threads);
  const std::vector<int> pinned = limits.pinned_cpus(num_threads);
  try {
    const UnpinnedScope workers_start_free;  // the calling thread may be pinned by another pool
    const AsynchronousSignalsBlocked inherited;
    for (int64_t i = 1; i < num_threads; ++i) {
      const std::optional<int> cpu =
          pinned.empty() ? std::nullopt : std::optional(pinned[static_cast<size_t>(i)]);
      state_->workers.emplace_back([state = state_.get(), i, cpu] {
        if (cpu) pin_this_thread(*cpu);
        state->worker_loop(i);
      });
    }
  } catch (const std::system_error& error) {
    const size_t num_started = state_->workers.size() + 1;
    state_->stop();
    fail_refused_thread(num_started, num_threads, error);
  }
  state_->starting.wait();
  if (pinned.empty()) return;
  pin_this_thread(pinned.front());
  state_->pinned.emplace(pinned);
}

ThreadPool::~ThreadPool() {
  state_->stop();
  if (state_->pinned) unpin_this_thread();
}

int64_t ThreadPool::num_threads() const { return std::ssize(state_->shares); }

int64_t ThreadPool::threads_per_core() const { return state_->threads_per_core; }

int64_t ThreadPool::thread_index() { return current_thread_index; }

void ThreadPool::parallel_for(int64_t count, FunctionRef<void(int64_t)> body) {
  if (inside_parallel_region || state_->workers.empty() || count <= 1) {
    const SubnormalsAreZero scope;
    for (int64_t index = 0; index < count; ++index) body(index);
    return;
  }
  TESSERA_CHECK(count < Share::kMaxCount, "a loop over {} indices", count);
  State& state = *state_;
  TESSERA_CHECK(!state.is_busy.exchange(true, std::memory_order_acquire), "two threads share a pool");
  state.publish(count, body);
  state.run_indices(/*thread_index=*/0);
  for (uint32_t left; (left = state.indices_left.load(std::memory_order_acquire)) != 0;) {
    wait_for_change(state.indices_left, left, state.num_spins);
  }
  std::exception_ptr thrown;
  if (state.has_exception.load(std::memory_order_relaxed)) {
    state.has_exception.store(false, std::memory_order_relaxed);
    thrown = std::exchange(state.first_exception, nullptr);
  }
  state.is_busy.store(false, std::memory_order_release);
  if (thrown) std::rethrow_exception(std::move(thrown));
}

void ThreadPool::parallel_blocks(int64_t count, int64_t block,
                                 FunctionRef<void(int64_t begin, int64_t end)> body) {
  TESSERA_CHECK(block >= 1, "block={}", block);
  parallel_for(divide_up(count, block),
               [&](int64_t index) { body(index * block, std::min(count, (index + 1) * block)); });
}

void ThreadPool::run_on_each(int64_t min_threads, FunctionRef<void()> body) {
  std::vector<std::exception_ptr> errors(
      static_cast<size_t>(std::max<int64_t>(0, min_threads - num_threads())));
  {
    std::vector<std::jthread> temporary;
    try {
      const UnpinnedScope unpinned(spare_cpus());
      for (std::exception_ptr& error : errors) {
        temporary.emplace_back([&body, &error] {
          const SubnormalsAreZero as_in_a_body;
          inside_parallel_region = true;
          omp_set_num_threads(1);
          try {
            body();
          } catch (...) {
            error = std::current_exception();
          }
        });
      }
    } catch (const std::system_error& error) {
      fail_refused_thread(state_->workers.size() + 1 + temporary.size(), min_threads, error);
    }
    parallel_for(num_threads(), [&](int64_t /*thread*/) { body(); });
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace tessera
