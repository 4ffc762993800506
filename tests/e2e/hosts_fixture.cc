#include "e2e/hosts_fixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <thread>

namespace tessera {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::vector<std::string> HostsFixture::train(int64_t max_steps, const std::vector<std::string>& more) const {
  std::vector<std::string> arguments =
      tiny_->train_arguments("out", {"--per_device_train_batch_size", "1", "--max_steps",
                                     std::to_string(max_steps), "--num_train_epochs", "1000000"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

bool HostsFixture::wait_for_rank(HostJob& job, int rank) {
  const auto deadline = Clock::now() + kStart;
  while (job.rank(rank) == 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return job.rank(rank) != 0;
}

void HostsFixture::expect_error(HostJob& job, int node, int code,
                                const testing::Matcher<std::string>& error) {
  const ProcessResult result = job.agent(node).result();
  EXPECT_EQ(result.exit_code, code) << "node " << node << ", signal " << result.signal << "\n" << result.err;
  ASSERT_EQ(result.errors().size(), 1u) << "node " << node << "\n" << result.err;
  EXPECT_THAT(result.errors()[0], error) << "node " << node;
}

std::string HostsFixture::iptables(int host, const std::string& rule) const {
  std::vector<std::string> argv = {"iptables", "--wait"};
  std::istringstream words(rule);
  for (std::string word; words >> word;) argv.push_back(word);
  try {
    const auto process = hosts_.start(host, argv);
    if (process->wait(std::chrono::seconds(10)) && process->result().exit_code == 0) return "";
    return fmt::format("iptables {}: {}", rule, process->err());
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::vector<fs::path> files_named(const fs::path& folder, const std::string& prefix,
                                  const std::string& suffix) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix)) files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace tessera
