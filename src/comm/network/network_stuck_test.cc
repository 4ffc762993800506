// A worker of a group that does not return from a call, as in a provider that hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/sanitizers.h"
#include "support/ranks/network_test_support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// Stops single threads of the process that made it, as a process that traces them.
class ThreadStopper {
 public:
  explicit ThreadStopper(const std::vector<pid_t>& threads) {
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    int ends[2];
    if (::pipe(ends) != 0) return;
    process_ = ::fork();
    if (process_ == 0) {
      bool have_stopped = true;
      for (const pid_t thread : threads) {
        have_stopped = have_stopped && ::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0 &&
                       ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0 &&
                       ::waitpid(thread, nullptr, __WALL) == thread;
      }
      if (::write(ends[1], &have_stopped, 1) == 1) {
        // Until they are gone.
        while (::waitpid(-1, nullptr, __WALL) > 0) continue;
      }
      ::_exit(0);
    }
    ::close(ends[1]);
    if (::read(ends[0], &have_stopped_, 1) != 1) have_stopped_ = false;
    ::close(ends[0]);
  }
  ~ThreadStopper() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ThreadStopper(const ThreadStopper&) = delete;
  ThreadStopper& operator=(const ThreadStopper&) = delete;

  bool have_stopped() const { return have_stopped_; }

 private:
  pid_t process_ = -1;
  bool have_stopped_ = false;
};

std::set<pid_t> threads_of_this_process() {
  std::set<pid_t> threads;
  for (const auto& task : fs::directory_iterator("/proc/self/task"))
    threads.insert(std::stoi(task.path().filename()));
  return threads;
}

// Whether a process may be traced here.
bool may_stop_threads() {
  std::atomic<pid_t> number = 0;
  std::atomic<bool> is_over = false;
  std::thread thread([&] {
    number = ::gettid();
    while (!is_over) std::this_thread::sleep_for(milliseconds(1));
  });
  while (number == 0) std::this_thread::sleep_for(milliseconds(1));
  const bool may = ThreadStopper({number}).have_stopped();
  is_over = true;
  thread.join();
  return may;
}

// Stops the workers of two groups, for so long, and returns what each member threw that waits for them.
std::vector<std::string> wait_for_stuck_workers(milliseconds time) {
  std::mutex mutex;
  std::set<pid_t> others = {::gettid()};
  std::barrier all_do(2);
  std::optional<ThreadStopper> stopper;
  std::thread resuming;
  std::vector<std::string> errors = run_members(
      {.size = 2, .options = {.timeout = milliseconds(300), .connections = 1}}, [&](NetworkGroup& group) {
        {
          const std::lock_guard lock(mutex);
          others.insert(::gettid());
        }
        all_do.arrive_and_wait();
        if (group.index() == 0) {
          std::vector<pid_t> workers;
          std::ranges::set_difference(threads_of_this_process(), others, std::back_inserter(workers));
          stopper.emplace(workers);
          resuming = std::thread([&stopper, time] {
            std::this_thread::sleep_for(time);
            stopper.reset();
          });
        }
        all_do.arrive_and_wait();
        std::vector<std::byte> buffer(100);
        group.wait(group.all_gather(buffer, even_parts(100, 2), {"weights", 3}));
      });
  resuming.join();
  return errors;
}

TEST(StuckWorker, EndsTheProcessSoonAfterTheDeadline) {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  GTEST_SKIP() << "a sanitizer has threads and handlers of its own";
#endif
  if (!may_stop_threads()) GTEST_SKIP() << "this process may not trace another one";
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(wait_for_stuck_workers(std::chrono::minutes(5)), testing::ExitedWithCode(75),
              "error: rank . on host .: fabric tcp has not returned from a call for .* s, in all_gather 1 of "
              "weights of "
              "group 3, 100 bytes: its provider hangs");
}

// Whoever has waited beyond the deadline by then still gets an error.
TEST(StuckWorker, ThatComesBackEndsTheWait) {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  GTEST_SKIP() << "a sanitizer has threads and handlers of its own";
#endif
  if (!may_stop_threads()) GTEST_SKIP() << "this process may not trace another one";
  EXPECT_THAT(wait_for_stuck_workers(std::chrono::seconds(7)),
              testing::Each(testing::Not(testing::IsEmpty())));
}

}  // namespace
}  // namespace tessera
