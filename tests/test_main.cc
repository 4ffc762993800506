// main() for every test program.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "platform/system.h"

namespace {

// The state of the process that runs the cases, in memory that it shares with the process that watches it.
struct Progress {
  std::atomic<int> num_passed, num_failed, num_skipped;
  std::atomic<bool> has_ended;
  std::atomic<int> result;
  char current[2048];  // the case that runs, "" between two
  char done[1 << 20];  // "Suite.Case:Suite.Other:"

  void finish_current() {
    const size_t length = std::strlen(done);
    std::snprintf(done + length, sizeof(done) - length, "%s:", current);
    current[0] = '\0';
  }
};

class Reporter : public testing::EmptyTestEventListener {
 public:
  Reporter(Progress* progress, unsigned limit_s) : progress_(progress), limit_s_(limit_s) {}

  // alarm() ends the process if nothing sets it again in time.
  void OnTestSuiteStart(const testing::TestSuite&) override { ::alarm(limit_s_); }
  void OnTestStart(const testing::TestInfo& test) override {
    ::alarm(limit_s_);
    std::snprintf(progress_->current, sizeof(progress_->current), "%s.%s", test.test_suite_name(),
                  test.name());
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    ::alarm(limit_s_);
    const testing::TestResult& result = *test.result();
    ++(result.Failed()    ? progress_->num_failed
       : result.Skipped() ? progress_->num_skipped
                          : progress_->num_passed);
    progress_->finish_current();
  }

 private:
  Progress* progress_;
  unsigned limit_s_;
};

// Runs the cases that are not done yet, and returns the exit code.
int run_cases(Progress* progress, unsigned limit_s) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (progress->done[0] != '\0') testing::GTEST_FLAG(filter) += std::string("-") + progress->done;
  testing::UnitTest::GetInstance()->listeners().Append(new Reporter(progress, limit_s));
  progress->result = RUN_ALL_TESTS();
  progress->has_ended = true;
  return progress->result;
}

std::string reason(int status, unsigned limit_s) {
  if (!WIFSIGNALED(status)) return "exit code " + std::to_string(WEXITSTATUS(status));
  if (WTERMSIG(status) == SIGALRM) return "ran longer than " + std::to_string(limit_s) + " s";
  return ::strsignal(WTERMSIG(status));
}

// Runs the cases in a process of their own. After a crash, another one runs those that are left.
int run_watched(unsigned limit_s) {
  void* const memory =
      ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    return 1;
  }
  auto* const progress = new (memory) Progress();
  while (true) {
    std::fflush(nullptr);
    const pid_t process = ::fork();
    if (process == 0) return run_cases(progress, limit_s);
    int status = 0;
    if (process < 0 || ::waitpid(process, &status, 0) < 0) {
      std::perror("fork");
      return 1;
    }
    if (progress->has_ended && WIFEXITED(status) && WEXITSTATUS(status) == progress->result) break;
    ++progress->num_failed;
    const bool has_case = progress->current[0] != '\0';
    std::printf("[  CRASHED ] %s (%s)\n",
                has_case ? progress->current : "outside of a case: those that are left did not run",
                reason(status, limit_s).c_str());
    if (!has_case) break;
    progress->finish_current();
  }
  const int num_passed = progress->num_passed, num_failed = progress->num_failed,
            num_skipped = progress->num_skipped;
  std::printf("cases: %d passed, %d failed, %d skipped\n", num_passed, num_failed, num_skipped);
  if (num_failed > 0) return 1;
  if (num_passed > 0) return 0;
  return num_skipped > 0 ? 77 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  // The usual limit of 1,024 is too low for many ranks in one process.
  tessera::raise_open_file_limit();
  testing::InitGoogleMock(&argc, argv);
  const char* const limit = std::getenv("TESSERA_CASE_SECONDS");  // set by ctest
  if (limit == nullptr) return RUN_ALL_TESTS();
  const auto limit_s = static_cast<unsigned>(std::atoi(limit));
  ::unsetenv("TESSERA_CASE_SECONDS");  // not for programs that the cases start
  return run_watched(limit_s);
}
