#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/flag_parser.h"
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
    limit_flag(table->add("seconds", &seconds_,
                          "Measuring time of each direction of each link; with --preflight a tenth of it."),
               0.01, 600);
    limit_flag(
        table->add("connections", &connections_, "TCP connections of Tessera's transport for each pair."), 1,
        64);
    limit_flag(table->add("min_share", &min_share_, "Links below this share of the typical one are slow."), 0,
               1);
    limit_flag(table->add("min_gbit_per_s", &min_gbit_per_s_, "Links below this are slow, too."), 0, 1e6);
    table->add("preflight", &preflight_,
               "Check quickly, with at most eight partners for each node and without plain TCP; exit code 75 "
               "if a link is slow or there is none.");
    table->add("json", &json_, "Print one JSON object instead of the tables.");
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
      // By which the ranks decide alike which pairs are measured again.
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
