#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/run/rank.h"
#include "cli/terminal/terminal.h"
#include "cluster/network/network_report.h"

namespace tessera {
namespace {

class BenchNetworkCommand : public Command {
 public:
  std::string name() const override { return "bench network"; }
  bool is_for_ranks() const override { return true; }

  void declare_flags(FlagTable* table) override {
    declare(table, "seconds", &seconds_);
    declare(table, "connections", &connections_);
    declare(table, "min_share", &min_share_);
    declare(table, "min_gbit_per_s", &min_gbit_per_s_);
    declare(table, "preflight", &preflight_);
    declare(table, "json", &json_);
  }

  void run(FlagTable*) override {
    const World world = detect_world();
    if (world.num_nodes < 2) {
      fail(ExitCode::kUsage,
           "bench network needs several nodes: tessera launch --nnodes N --node_rank I --rdzv_endpoint "
           "HOST:PORT bench network");
    }
    std::vector<NetworkFinding> findings;
    run_as_rank(world, {{.connections = static_cast<int>(connections_)}, {}}, [&](Communicator& comm) {
      // The ranks decide alike by these which pairs are measured again.
      comm.check_same_settings({{"preflight", preflight_ ? "true" : "false"},
                                {"min_share", fmt::format("{}", min_share_)},
                                {"min_gbit_per_s", fmt::format("{}", min_gbit_per_s_)},
                                {"connections", fmt::format("{}", connections_)},
                                {"version of tessera", TESSERA_VERSION}});
      findings = measure(comm);
    });
    if (!preflight_ || findings.empty()) return;
    std::string message = findings.front().message;
    if (findings.size() > 1)
      message += fmt::format("; and {}", count_of(std::ssize(findings) - 1, "more finding"));
    fail(ExitCode::kTryAgain, "{}", message);
  }

 private:
  std::vector<NetworkFinding> measure(Communicator& comm) const {
    NetworkMatrixOptions options = {.seconds = seconds_,
                                    .connections = static_cast<int>(connections_),
                                    .min_share = min_share_,
                                    .min_gbit_per_s = min_gbit_per_s_};
    if (preflight_) {
      options.seconds *= kPreflightShare;
      options.max_rounds = kPreflightRounds;
      options.plain_tcp = false;
    }
    const NetworkMatrix matrix = measure_network(comm, options);
    const std::vector<NetworkFinding> findings =
        judge_network(matrix, {.min_share = min_share_, .min_gbit_per_s = min_gbit_per_s_});
    if (comm.world().rank != 0) return findings;
    if (json_) {
      print("{}\n", network_json(matrix, findings).dump());
    } else if (!preflight_) {
      print("{}", network_text(matrix, findings));
    } else {
      for (const NetworkFinding& finding : findings) print("{}\n", finding.message);
    }
    flush_output();
    return findings;
  }

  static constexpr double kPreflightShare = 0.1;
  static constexpr int kPreflightRounds = 8;

  double seconds_ = 0.5;
  int64_t connections_ = 4;
  double min_share_ = 0.6;
  double min_gbit_per_s_ = 0;
  bool preflight_ = false;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_bench_network_command() { return std::make_unique<BenchNetworkCommand>(); }

}  // namespace tessera
