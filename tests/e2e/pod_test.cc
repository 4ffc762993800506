// The environment that Kubernetes gives a pod: probes of the run's health, names that appear after the pods,
// clocks.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/socket/tcp_socket.h"
#include "e2e/process.h"
#include "e2e/tiny_model.h"
#include "support/web/tls_server.h"
#include "test_paths.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

std::vector<std::string> command(const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {tessera_binary()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

// The variables that Kubeflow Trainer gives pod `rank` of two.
std::vector<std::string> trainer_variables(int rank, const std::string& first, int port) {
  return {"PET_NNODES=2",
          "PET_NPROC_PER_NODE=1",
          fmt::format("PET_NODE_RANK={}", rank),
          "PET_MASTER_ADDR=" + first,
          fmt::format("PET_MASTER_PORT={}", port),
          "TESSERA_RDZV_SECRET=0123456789abcdef"};
}

class Pod : public testing::Test {
 protected:
  const TemporaryFolder folder_;
};

TEST_F(Pod, TrainJobIsToldHowFarTheRunIs) {
  const TestCertificate certificate;
  const TlsServer server(certificate);
  const TinyModel tiny;
  std::vector<std::string> arguments = {"launch", "--nproc_per_node", "2"};
  const std::vector<std::string> train = tiny.train_arguments(tiny.folder / "out", {"--max_steps", "4"});
  arguments.insert(arguments.end(), train.begin(), train.end());
  run_well(
      arguments,
      {.environment = {fmt::format("KUBEFLOW_TRAINER_SERVER_URL=https://localhost:{}/status", server.port()),
                       "KUBEFLOW_TRAINER_SERVER_CA_CERT=" + folder_.write("ca.crt", certificate.pem()),
                       "KUBEFLOW_TRAINER_SERVER_TOKEN=" + folder_.write("token", "a-token")}});
  const std::vector<TlsServer::Request> requests = server.requests();
  ASSERT_FALSE(requests.empty());
  EXPECT_LE(requests.size(), 10u) << "not one for each step";
  const json last = json::parse(requests.back().body)["trainerStatus"];
  EXPECT_EQ(last["progressPercentage"], 100);
  EXPECT_THAT(last["metrics"].dump(), HasSubstr(R"({"name":"step","value":"4"})"));
}

// The DNS has the name of a pod some time after the pod runs, also for the pod itself; until then it says
// that there is no such name, and may go on saying so for a while.
TEST_F(Pod, NodesMeetOnceTheNameOfTheFirstIsThere) {
  const std::string hosts = folder_.write("hosts", "127.0.0.1 localhost\n");
  const int port = local_port(listen_on("127.0.0.1", 0));
  const auto node = [&](int rank) {
    const StartOptions options = {.environment = trainer_variables(rank, "llama-node-0-0.llama", port)};
    return std::make_unique<StartedProcess>(
        std::vector<std::string>{"unshare", "--mount", "/bin/sh", "-c",
                                 "mount --bind \"$0\" /etc/hosts && exec \"$@\"", hosts, tessera_binary(),
                                 "launch", "--", "/bin/sh", "-c",
                                 "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR"},
        options);
  };
  StartedProcess probe({"unshare", "--mount", "/bin/sh", "-c", "mount --bind \"$0\" /etc/hosts", hosts}, {});
  if (!probe.wait(30s) || probe.result().exit_code != 0)
    GTEST_SKIP() << "no mount namespaces: " << probe.err();
  const auto second = node(1);
  const auto first = node(0);
  EXPECT_FALSE(second->wait(1500ms)) << second->err();
  EXPECT_FALSE(first->has_ended()) << first->err();
  // In place, as the DNS changes: the mount is of this very file.
  folder_.write("hosts", "127.0.0.1 localhost\n127.0.0.1 llama-node-0-0.llama\n");
  ASSERT_TRUE(first->wait(60s)) << first->err();
  ASSERT_TRUE(second->wait(60s)) << second->err();
  EXPECT_EQ(first->out(), "rank 0 of 2 at llama-node-0-0.llama\n") << first->err();
  EXPECT_THAT(second->out(), HasSubstr("rank 1 of 2 at llama-node-0-0.llama")) << second->err();
  EXPECT_EQ(first->result().exit_code, 0);
  EXPECT_EQ(second->result().exit_code, 0);
}

// An hour apart: the same run, bit for bit, as one whose nodes agree about the time, also when it resumes.
TEST_F(Pod, ClocksThatDifferChangeNothing) {
  const TinyModel tiny;
  const auto train = [&](const std::string& out, const std::string& max_steps, int shift_s) {
    const int port = local_port(listen_on("127.0.0.1", 0));
    std::vector<std::unique_ptr<StartedProcess>> nodes;
    for (const int rank : {0, 1}) {
      std::vector<std::string> arguments = {"launch"};
      const std::vector<std::string> more =
          tiny.train_arguments(out, {"--max_steps", max_steps, "--save_steps", "3",
                                     "--resume_from_checkpoint", "auto", "--lr_scheduler_type", "constant"});
      arguments.insert(arguments.end(), more.begin(), more.end());
      StartOptions options = {.environment = trainer_variables(rank, "127.0.0.1", port)};
      if (shift_s != 0) {
        options.environment.push_back("LD_PRELOAD=" SHIFTED_CLOCK);
        options.environment.push_back(fmt::format("SHIFTED_CLOCK_S={}", rank == 0 ? shift_s : -shift_s));
        options.environment.push_back("ASAN_OPTIONS=verify_asan_link_order=0");
      }
      nodes.push_back(std::make_unique<StartedProcess>(command(arguments), options));
    }
    for (const auto& node : nodes) {
      ASSERT_TRUE(node->wait(60s)) << node->err();
      EXPECT_EQ(node->result().exit_code, 0) << node->err();
    }
  };
  const std::string same = tiny.folder / "same", apart = tiny.folder / "apart";
  train(same, "6", 0);
  train(apart, "3", 3600);
  train(apart, "6", -1800);  // other pods, whose clocks differ the other way round
  EXPECT_EQ(read_file(same + "/model.safetensors"), read_file(apart + "/model.safetensors"));
  std::istringstream events(read_file(apart + "/events.jsonl"));
  std::string line;
  std::getline(events, line);
  EXPECT_GT(json::parse(line)["time"].get<double>(), static_cast<double>(time(nullptr)) + 3000)
      << "the clock was not shifted";
}

}  // namespace
}  // namespace tessera
