// Fixture for tests of a small training run on two hosts (hosts.h).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "e2e/host_job.h"
#include "e2e/tiny_model.h"

namespace tessera {

// Limit for the start-up of a run on a busy machine.
inline constexpr std::chrono::seconds kStart{30};
// The others end within a second; the rest is what a busy machine may add.
inline constexpr std::chrono::seconds kSoon{4};
inline constexpr std::chrono::seconds kSilence{5};

class HostsFixture : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.problem().empty()) GTEST_SKIP() << hosts_.problem();
    tiny_.emplace();
  }

  std::filesystem::path output() const { return tiny_->folder / "out"; }

  // A run with one row per rank and step, for many epochs.
  std::vector<std::string> train(int64_t max_steps, const std::vector<std::string>& more = {}) const;
  // A run that would last for hours.
  std::vector<std::string> endless(const std::vector<std::string>& more = {}) const {
    return train(1'000'000, more);
  }

  // Waits until its agent has started it.
  static bool wait_for_rank(HostJob& job, int rank);
  // Expects this exit code and one error line.
  static void expect_error(HostJob& job, int node, int code, const testing::Matcher<std::string>& error);

  // Changes a rule of the host's firewall; returns "" or the problem.
  std::string iptables(int host, const std::string& rule) const;

  Hosts hosts_{2};
  std::optional<TinyModel> tiny_;
};

// The files in a folder whose names begin with `prefix` and end with `suffix`; none if the folder does not
// exist.
std::vector<std::filesystem::path> files_named(const std::filesystem::path& folder, const std::string& prefix,
                                               const std::string& suffix);

}  // namespace tessera
