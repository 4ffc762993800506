#include "platform/stop_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace tessera {
namespace {

TEST(StopSignals, NotesTheFirstSignalAndRestoresTheHandlers) {
  {
    const StopSignals signals;
    EXPECT_EQ(signals.received(), 0);
    std::raise(SIGTERM);
    EXPECT_EQ(signals.received(), SIGTERM);
    std::raise(SIGTERM);
  }
  const StopSignals again;
  EXPECT_EQ(again.received(), 0);
}

TEST(StopSignals, AHangupIsOneUnlessItIsIgnored) {
  {
    const StopSignals signals;
    std::raise(SIGHUP);
    EXPECT_EQ(signals.received(), SIGHUP);
  }
  const auto before = std::signal(SIGHUP, SIG_IGN);  // as nohup does
  {
    const StopSignals signals;
    std::raise(SIGHUP);
    EXPECT_EQ(signals.received(), 0);
  }
  EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN);
}

TEST(StopSignals, ASecondInterruptEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        const StopSignals signals(
            [] { [[maybe_unused]] const ssize_t count = write(STDERR_FILENO, "cleared", 7); });
        std::raise(SIGINT);
        std::raise(SIGTERM);
        std::raise(SIGINT);  // sent to the process and to its group
        std::this_thread::sleep_for(std::chrono::milliseconds(150));
        [[maybe_unused]] const ssize_t count = write(STDERR_FILENO, "goes on, ", 9);
        std::raise(SIGINT);
      },
      testing::ExitedWithCode(130), "^goes on, cleared$");
}

}  // namespace
}  // namespace tessera
