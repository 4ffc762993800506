#include <filesystem>

#include "base/log.h"
#include "base/text.h"
#include "bench/bench_line.h"
#include "bench/comm/comm_network.h"
#include "bench/comm/comm_ranks.h"
#include "bench/commands/bench_command.h"
#include "bench/measure.h"
#include "bench/step/other_program.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "comm/network/fabric/fabric_choice.h"
#include "platform/system.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxRanks = 64;

constexpr const char* kCommRow = "{:>5} {:>9} {:>9} {:>6} {:>6} {:>5}  {:<26} {:>6}\n";

// Runs per second in a turn, after one uncounted run that wakes the ranks and refills their caches.
double turn(OtherProgram& side, const std::string& command) {
  constexpr double kTurnSeconds = 0.05;  // a few runs of the slowest side with the smallest buffer
  side.run(command);
  double seconds = 0;
  int64_t runs = 0;
  do {
    seconds += side.run(command);
    ++runs;
  } while (seconds < kTurnSeconds);
  return static_cast<double>(runs) / seconds;
}

// The sum of one float32 buffer per rank, which every rank can read in float32 afterwards: the work of
// reduce_scatter and all_gather. Verifies every element on every rank of each side, then measures. Counts the
// bytes that shared memory must read and write once: (num_ranks + 1) buffers.
BenchLine run_node_sum_case(int num_ranks, int64_t buffer_bytes, OtherProgram& ours,
                            const std::vector<OtherProgram*>& others, const MeasureOptions& options,
                            BandwidthMeter& bandwidth) {
  const int64_t count = buffer_bytes / static_cast<int64_t>(sizeof(float));
  BenchLine line;
  line.benchmark = "comm";
  line.operation = "reduce_scatter_all_gather";
  line.shape = {{"ranks", num_ranks}, {"bytes", buffer_bytes}};
  line.dtype = "F32";
  line.implementation = ours.name();
  line.unit = "GB/s";
  line.peak_name = "memory bandwidth";
  line.amount = static_cast<double>((num_ranks + 1) * buffer_bytes) / 1e9;

  const std::string verify = fmt::format("verify {}", count), run = fmt::format("run {}", count);
  line.verification.num_checked = static_cast<int64_t>(ours.run(verify));
  std::vector<Participant> participants = {[&] { return line.amount * turn(ours, run); },
                                           [&] { return bandwidth.measure_best(options.turn_seconds); }};
  for (OtherProgram* other : others) {
    other->run(verify);
    line.others.push_back({other->name(), {}, {}});
    participants.push_back([&, other] { return line.amount * turn(*other, run); });
  }
  fill_statistics(measure_in_turn(participants, options), &line);
  return line;
}

class BenchCommCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench comm"; }
  std::string summary() const override { return "Measure collectives among several ranks"; }
  std::string description() const override {
    return "Ranks on one machine, as processes: each has a float32 buffer, and at the end every rank can "
           "read the float32 sum of all buffers. Tessera's ranks each sum their part of the buffers in "
           "shared memory; Gloo runs its ring all-reduce over TCP on the loopback interface, MPI its "
           "MPI_Reduce_scatter and MPI_Allgather. All are first verified in every element on every rank, "
           "then measured in turn. GB/s counts the bytes that the sum in shared memory must read and write "
           "once; the last column is the median speedup over each of the others.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera-bench comm --ranks 2 --buffer_mb 32 --peers gloo"};
  }

  void declare_flags(FlagTable* table) override {
    table
        ->add("parts", &parts_,
              "What to measure: node, the ranks of one machine; network, two hosts simulated with network "
              "namespaces, against iperf3 (needs root).")
        .value_name = "NAME...";
    limit_flag(table->add("connections", &connections_, "Connections between the two hosts."), 1, 64);
    table
        ->add(
            "fabric", &fabric_,
            "Transport between the two hosts: tcp, or a provider of libfabric such as tcp;ofi_rxm, which is "
            "compared with tcp in the same rounds.")
        .value_name = "tcp|PROVIDER";
    table->add("ranks", &ranks_, "Numbers of ranks.").value_name = "N...";
    table->add("buffer_mb", &buffer_mb_, "Sizes of each rank's buffer, in MiB.").value_name = "MB...";
    table->add("peers", &peers_, "What to compare with: gloo, mpi (if installed), or none.").value_name =
        "NAME...";
    table->add("mpirun", &mpirun_, "Command that starts MPI programs, without -n and the number of ranks.");
    table->add("serve", &serve_,
               "Act as one side instead, shared or gloo, with the first number in --ranks: answer the "
               "commands 'verify COUNT' and 'run COUNT' from standard input on standard output.");
    declare_common_flags(table, /*seconds=*/1);
  }

  void run(FlagTable*) override {
    const std::vector<int64_t> all_ranks = parse_sizes("ranks", ranks_, kMaxRanks);
    sizes_mb_ = parse_sizes("buffer_mb", buffer_mb_);
    check_names();
    if (!serve_.empty()) {
      serve_comm_ranks(serve_, static_cast<int>(all_ranks[0]), threads_of_rank(all_ranks[0]));
      return;
    }
    for (const std::string& part : parts_) part == "node" ? run_node(all_ranks) : run_network();
  }

 private:
  void run_node(const std::vector<int64_t>& all_ranks) {
    std::vector<std::string> missing;
    peers_here_ = available_peers(&missing);
    ThreadPool pool(threads_for_pool(num_threads()));
    BandwidthMeter bandwidth(pool, bandwidth_bytes());
    if (json()) {
      for (const std::string& reason : missing) log_warning("{}", reason);
    } else {
      print("comm, ranks of one node, F32, {} in all\n", count_of(pool.num_threads(), "thread"));
      for (const std::string& reason : missing) print("{}\n", reason);
      print(kCommRow, "ranks", "buffer", "ms", "GB/s", "peak", "share", "against", "faster");
      flush_output();
    }
    for (const int64_t ranks : all_ranks) run_ranks(static_cast<int>(ranks), pool, bandwidth);
  }

  void run_network() {
    std::vector<int64_t> sizes_bytes;
    for (const int64_t size : sizes_mb_) sizes_bytes.push_back(size << 20);
    const NetworkOptions options = {.connections = static_cast<int>(connections_),
                                    .fabric = parse_fabric(fabric_)};
    show_header(fmt::format("comm, two network namespaces, fabric {}, {}; peak is iperf3", fabric_,
                            count_of(connections_, "connection")),
                "Gbit/s", fabric_ == "tcp" ? "" : "tcp");
    const std::vector<BenchLine> lines = run_network_bench(sizes_bytes, options, measure_options());
    ThreadPool pool(1);
    for (const BenchLine& line : lines) show(line, pool);
  }

  void check_names() const {
    for (const std::string& part : parts_) {
      if (part != "node" && part != "network") {
        fail(ExitCode::kUsage, "--parts: expected node or network, found '{}'", printable(part));
      }
    }
    for (const std::string& peer : peers_) {
      if (peer != "gloo" && peer != "mpi" && peer != "none") {
        fail(ExitCode::kUsage, "--peers: expected gloo, mpi or none, found '{}'", printable(peer));
      }
    }
    const std::vector<std::string> sides = comm_sides();
    if (!serve_.empty() && std::find(sides.begin(), sides.end(), serve_) == sides.end()) {
      fail(ExitCode::kUsage, "--serve: this program has {}, found '{}'", fmt::join(sides, ", "),
           printable(serve_));
    }
  }

  // The ranks divide the processors, as under `tessera launch`.
  int64_t threads_of_rank(int64_t ranks) const {
    return std::max<int64_t>(1, threads_for_pool(num_threads()) / ranks);
  }

  static fs::path mpi_program() { return program_path().parent_path() / "tessera_mpi_ranks"; }

  std::vector<std::string> available_peers(std::vector<std::string>* missing) const {
    std::vector<std::string> result;
    for (const std::string& peer : peers_) {
      if (peer == "gloo" && comm_sides().size() < 2) {
        missing->push_back("Gloo not installed when this was built: not compared");
      } else if (peer == "mpi" && !fs::exists(mpi_program())) {
        missing->push_back("Open MPI not installed when this was built: not compared");
      } else if (peer != "none") {
        result.push_back(peer);
      }
    }
    return result;
  }

  std::string command_of(const std::string& side, int ranks) const {
    if (side == "mpi") return fmt::format("exec {} -n {} '{}'", mpirun_, ranks, mpi_program().string());
    return fmt::format("exec '{}' comm --serve {} --ranks {} --num_threads {}", program_path().string(), side,
                       ranks, num_threads());
  }

  void run_ranks(int ranks, const ThreadPool& pool, BandwidthMeter& bandwidth) {
    OtherProgram ours(command_of("shared", ranks));
    std::vector<std::unique_ptr<OtherProgram>> programs;
    std::vector<OtherProgram*> others;
    for (const std::string& peer : peers_here_) {
      programs.push_back(std::make_unique<OtherProgram>(command_of(peer, ranks)));
      others.push_back(programs.back().get());
    }
    for (const int64_t size : sizes_mb_) {
      const BenchLine line = run_node_sum_case(ranks, size << 20, ours, others, measure_options(), bandwidth);
      if (json()) {
        show(line, pool);
      } else {
        print_line(line, ranks, size);
      }
    }
  }

  static void print_line(const BenchLine& line, int ranks, int64_t size) {
    const std::string first = fmt::format("{:>5} {:>9} {:>9.2f} {:>6.1f} {:>6.1f} {:>5.2f}", ranks,
                                          fmt::format("{} MiB", size), 1e3 * line.amount / line.speed.median,
                                          line.speed.median, line.peak.median, line.share.median);
    if (line.others.empty()) print("{}\n", first);
    for (size_t i = 0; i < line.others.size(); ++i) {
      const Comparison& other = line.others[i];
      print("{:<45}  {:<26} {:>5.1f}x\n", i == 0 ? first : "", fmt::format("{:.26}", other.implementation),
            other.ratio.median);
    }
    flush_output();
  }

  std::vector<std::string> parts_ = {"node"};
  int64_t connections_ = 4;
  std::string fabric_ = "tcp";
  std::vector<std::string> ranks_ = {"2", "4"};
  std::vector<std::string> buffer_mb_ = {"32", "512"};
  std::vector<int64_t> sizes_mb_;  // buffer_mb_ as numbers
  std::vector<std::string> peers_ = {"gloo", "mpi"};
  std::string mpirun_ = "mpirun --oversubscribe --allow-run-as-root";
  std::string serve_;
  std::vector<std::string> peers_here_;
};

}  // namespace

std::unique_ptr<Command> make_bench_comm_command() { return std::make_unique<BenchCommCommand>(); }

}  // namespace tessera
