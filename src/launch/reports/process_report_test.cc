#include "launch/reports/process_report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

namespace tessera {

// Functions to be found on the stacks; not inlined, and with work after the call, so that they have frames.
[[gnu::noinline]] void stand_still_in_here() {
  raise(SIGSTOP);
  _exit(0);
}
[[gnu::noinline]] void wait_for_ever_in_here() {
  while (true) pause();
}

namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

// Runs the body in a child of this process until the scope ends.
class Child {
 public:
  template <typename Body>
  explicit Child(const Body& body) : pid_(fork()) {
    if (pid_ == 0) {
      body();
      _exit(0);
    }
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// Retries until everything is there: states change while a process starts and after it was traced.
std::string describe_until(pid_t pid, const std::vector<std::string>& wanted) {
  std::string text;
  for (int attempt = 0; attempt < 100; ++attempt) {
    text = describe_process(pid);
    const bool has_all = std::all_of(wanted.begin(), wanted.end(), [&](const std::string& fragment) {
      return text.find(fragment) != std::string::npos;
    });
    if (has_all) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return text;
}

TEST(ProcessReport, OfAStoppedProcessNamesWhereItStands) {
  const Child child(stand_still_in_here);
  int status = 0;
  ASSERT_EQ(waitpid(child.pid(), &status, WUNTRACED), child.pid());
  for (int repeat = 0; repeat < 2; ++repeat) {
    const std::string text = describe_until(child.pid(), {"stopped"});
    EXPECT_THAT(text, HasSubstr("stopped"));
    if (text.find("stacks are incomplete") != std::string::npos) GTEST_SKIP() << text;
    EXPECT_THAT(text, HasSubstr("stand_still_in_here"));
  }
  EXPECT_EQ(waitpid(child.pid(), &status, WNOHANG), 0) << "it should still be running";
}

TEST(ProcessReport, LooksAtEveryThread) {
  const Child child([] {
    std::thread other([] { wait_for_ever_in_here(); });
    other.join();
  });
  const std::string text = describe_until(child.pid(), {"wait_for_ever_in_here()", "sleeping"});
  if (text.find("stacks are incomplete") != std::string::npos) GTEST_SKIP() << text;
  EXPECT_THAT(text, AllOf(HasSubstr("sleeping"), HasSubstr("wait_for_ever_in_here()"),
                          HasSubstr("kB resident"), ContainsRegex("thread [0-9]+(.|\n)*thread [0-9]+")));
}

TEST(ProcessReport, LeavesTheProcessAsItWas) {
  const Child child([] { wait_for_ever_in_here(); });
  EXPECT_THAT(describe_until(child.pid(), {"sleeping"}), HasSubstr("sleeping"));
  EXPECT_THAT(describe_until(child.pid(), {"sleeping"}), HasSubstr("sleeping"));
  kill(child.pid(), SIGTERM);
  int status = 0;
  waitpid(child.pid(), &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

TEST(ProcessReport, OfAProcessThatIsGoneSaysSo) {
  pid_t pid = 0;
  {
    const Child child([] { wait_for_ever_in_here(); });
    pid = child.pid();
  }
  EXPECT_EQ(describe_process(pid), fmt::format("process {} is gone", pid));
}

}  // namespace
}  // namespace tessera
