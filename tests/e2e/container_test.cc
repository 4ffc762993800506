// tessera as the init process of a container (a PID namespace), which the kernel treats specially: a signal
// without a handler does not end it, and orphaned processes become its children.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <sstream>

#include "e2e/process.h"
#include "e2e/tiny_model.h"
#include "test_paths.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;

// Command line that runs tessera with these arguments in a container.
std::vector<std::string> in_container(const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {"unshare",      "--pid",        "--fork",
                                   "--mount-proc", "--kill-child", tessera_binary()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

class Container : public testing::Test {
 protected:
  void SetUp() override {
    StartedProcess probe(in_container({"--version"}), {});
    if (!probe.wait(30s) || probe.result().exit_code != 0) {
      GTEST_SKIP() << "no PID namespaces here: " << probe.err();
    }
  }

  // The container's exit code; the signal is sent to its init process once that has written `text`.
  static int exit_code_after(int signal, const std::string& text, const std::vector<std::string>& arguments) {
    StartedProcess container(in_container(arguments), {});
    EXPECT_TRUE(container.wait_for_output(text, 60s)) << container.out() << container.err();
    pid_t first = 0;
    std::istringstream(read_file("/proc/" + std::to_string(container.pid()) + "/task/" +
                                 std::to_string(container.pid()) + "/children")) >>
        first;
    EXPECT_GT(first, 0);
    if (first <= 0) return -1;
    kill(first, signal);
    if (!container.wait(60s)) return -1;
    return container.result().exit_code;
  }
};

TEST_F(Container, EndedBySignalIsNoSuccess) {
  EXPECT_EQ(exit_code_after(SIGTERM, "ready", {"launch", "--", "/bin/sh", "-c", "echo ready; sleep 60"}),
            143);
  EXPECT_EQ(exit_code_after(SIGINT, "ready", {"launch", "--", "/bin/sh", "-c", "echo ready; sleep 60"}), 130);
  EXPECT_EQ(exit_code_after(SIGTERM, "threads", {"bench", "gemm"}), 143) << "without an agent";
}

TEST_F(Container, EvictedTrainingSavesAndIsNoSuccess) {
  const TinyModel tiny;
  EXPECT_EQ(exit_code_after(SIGTERM, "{'loss'",
                            tiny.train_arguments("out", {"--max_steps", "1000000", "--logging_steps", "1"})),
            143);
  int num_checkpoints = 0;
  for (const auto& entry : std::filesystem::directory_iterator(tiny.folder / "out")) {
    if (entry.path().filename().string().starts_with("checkpoint-")) ++num_checkpoints;
  }
  EXPECT_EQ(num_checkpoints, 1);
}

// Processes left behind by ranks become children of the agent.
TEST_F(Container, OrphansOfManyStartsAreReaped) {
  const std::string script =
      "if [ $TORCHELASTIC_RESTART_COUNT -lt 20 ]; then (setsid sleep 0.01 &); sleep 0.1; exit 75; fi; "
      "grep -l 'State:.Z' /proc/[0-9]*/status | wc -l";
  StartedProcess container(in_container({"launch", "--max_restarts", "20", "--", "/bin/sh", "-c", script}),
                           {});
  ASSERT_TRUE(container.wait(60s)) << container.err();
  EXPECT_EQ(container.result().exit_code, 0) << container.err();
  // One may have ended just now.
  EXPECT_LE(std::stoi(container.out()), 1) << container.out();
}

}  // namespace
}  // namespace tessera
