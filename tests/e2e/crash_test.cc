// The line that a process prints when it dies of a signal (launch/reports/crash_handler.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>

#include "base/sanitizers.h"
#include "launch/reports/crash_handler.h"
#include "test_paths.h"

namespace tessera {

// Functions to be found on the stacks: not inlined, and with work after the call, so that they have frames.
[[gnu::noinline]] void read_at_0x10() {
  volatile int* place = reinterpret_cast<int*>(0x10);
  asm volatile("" : "+r"(place));
  [[maybe_unused]] const int value = *place;
  asm volatile("");
}
[[gnu::noinline]] void fault_on_another_thread() {
  std::thread([] { read_at_0x10(); }).join();
  asm volatile("");
}
[[gnu::noinline]] void give_up() {
  std::abort();
  asm volatile("");
}
[[gnu::noinline]] void run_generated_code() {
  void* code = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  static_cast<unsigned char*>(code)[0] = 0x0F;  // UD2
  static_cast<unsigned char*>(code)[1] = 0x0B;
  reinterpret_cast<void (*)()>(code)();
  asm volatile("");
}
[[gnu::noinline]] int overflow_the_stack(int depth) {
  volatile int frame[4096];
  frame[0] = depth;
  return depth < 0 ? 0 : overflow_the_stack(depth + 1) + frame[0];
}
[[gnu::noinline]] void overflow_the_stack_of_a_thread() {
  std::thread([] { overflow_the_stack(0); }).join();
  asm volatile("");
}
[[gnu::noinline]] void overflow_the_stack_of_a_task() {
  std::thread([] { std::async(std::launch::async, [] { overflow_the_stack(0); }).get(); }).join();
  asm volatile("");
}
[[gnu::noinline]] void wait_to_be_killed() {
  kill(getpid(), SIGSTOP);
  for (;;) pause();
}

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

struct Ending {
  int signal = 0;
  std::string err;
};

// The ending of a child that installs the handler and runs the body; if it stops itself, it is sent
// `from_outside`.
Ending ending_of(void (*body)(), int from_outside = 0, const char* program = tessera_binary()) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t pid = fork();
  if (pid == 0) {
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    unsetenv("TORCHELASTIC_ERROR_FILE");
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    install_crash_handler(program, nullptr);
    body();
    _exit(0);
  }
  close(ends[1]);
  Ending ending;
  int status = 0;
  if (from_outside != 0) {
    waitpid(pid, &status, WUNTRACED);
    kill(pid, from_outside);
    kill(pid, SIGCONT);
  }
  std::array<char, 4096> piece;
  for (ssize_t count = 0; (count = read(ends[0], piece.data(), piece.size())) > 0;) {
    ending.err.append(piece.data(), static_cast<size_t>(count));
  }
  close(ends[0]);
  waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) ending.signal = WTERMSIG(status);
  return ending;
}

class Crash : public testing::Test {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  void SetUp() override { GTEST_SKIP() << "the sanitizer reports crashes itself"; }
#endif
};

TEST_F(Crash, LeavesOneLineThatSaysWhereAndDiesOfTheSignal) {
  struct Case {
    void (*body)();
    int from_outside;
    int signal;
    std::string line;
  };
  const std::string sender = std::to_string(getpid());
  const std::vector<Case> cases = {
      {read_at_0x10, 0, SIGSEGV,
       "error: killed by signal 11 \\(SIGSEGV\\), segmentation fault at address 0x10, in "
       "tessera::read_at_0x10.* <- .*ending_of.*\n"},
      {fault_on_another_thread, 0, SIGSEGV, "error: .* at address 0x10, in tessera::read_at_0x10.*\n"},
      {give_up, 0, SIGABRT, "error: killed by signal 6 \\(SIGABRT\\), in tessera::give_up.*\n"},
      {run_generated_code, 0, SIGILL,
       "error: killed by signal 4 \\(SIGILL\\), illegal instruction at address 0x[0-9a-f]+, in unknown "
       "code at 0x[0-9a-f]+.*tessera::run_generated_code.*\n"},
      {[] { overflow_the_stack(0); }, 0, SIGSEGV, "error: .* in tessera::overflow_the_stack.*\n"},
      {overflow_the_stack_of_a_thread, 0, SIGSEGV, "error: .* in tessera::overflow_the_stack.*\n"},
      {overflow_the_stack_of_a_task, 0, SIGSEGV, "error: .* in tessera::overflow_the_stack.*\n"},
      {wait_to_be_killed, SIGBUS, SIGBUS,
       "error: killed by signal 7 \\(SIGBUS\\), sent by process " + sender + ", in .*wait_to_be_killed.*\n"}};
  for (const Case& c : cases) {
    const Ending ending = ending_of(c.body, c.from_outside);
    EXPECT_EQ(ending.signal, c.signal) << ending.err;
    EXPECT_THAT(ending.err, MatchesRegex(c.line));
    EXPECT_EQ(std::count(ending.err.begin(), ending.err.end(), '\n'), 1) << ending.err;
  }
}

TEST_F(Crash, WithoutTheProgramThatKnowsTheNamesTheLineHasAddresses) {
  for (const char* program : {"/nowhere/at/all", "/bin/false"}) {
    const Ending ending = ending_of(read_at_0x10, 0, program);
    EXPECT_EQ(ending.signal, SIGSEGV);
    EXPECT_THAT(ending.err,
                MatchesRegex("error: killed by signal 11 \\(SIGSEGV\\), at tessera\\+0x[0-9a-f]+ <- .*\n"));
  }
}

}  // namespace
}  // namespace tessera
