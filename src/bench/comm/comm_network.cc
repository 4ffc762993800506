#include "bench/comm/comm_network.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <barrier>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "bench/surroundings.h"
#include "comm/network/fabric/fabric_choice.h"
#include "comm/network/network_group.h"
#include "kernels/quantized_weight/int8_blocks.h"
#include "kernels/rank_sum/rank_sum.h"

namespace tessera {
namespace {

// Two network namespaces connected by a veth pair: two hosts, as far as TCP can tell.
class NetworkPair {
 public:
  // Needs root and the program `ip` (iproute2). Error(kBadConfig) says what is missing.
  NetworkPair() {
    if (::geteuid() != 0) {
      fail(ExitCode::kBadConfig,
           "network namespaces need root: run this as root, or in a container with CAP_NET_ADMIN "
           "and CAP_SYS_ADMIN");
    }
    for (size_t side = 0; side < 2; ++side) names_[side] = fmt::format("tessera-{}-{}", ::getpid(), side);
    try {
      for (const std::string& name : names_) run_shell("ip netns add " + name);
      run_shell(
          fmt::format("ip link add veth0 netns {} type veth peer name veth0 netns {}", names_[0], names_[1]));
      for (size_t side = 0; side < 2; ++side) {
        const std::string ip = fmt::format("ip -n {}", names_[side]);
        run_shell(fmt::format("{0} addr add {1}/24 dev veth0 && {0} link set lo up && {0} link set veth0 up",
                              ip, addresses_[side]));
      }
    } catch (const Error& error) {
      for (const std::string& name : names_)
        std::ignore = std::system(("ip netns del " + name + " 2>/dev/null").c_str());
      fail(ExitCode::kBadConfig, "cannot create two network namespaces (iproute2 and root are needed): {}",
           error.what());
    }
  }
  ~NetworkPair() {
    // Deleting the namespaces also deletes the veth pair.
    for (const std::string& name : names_) std::ignore = std::system(("ip netns del " + name).c_str());
  }
  NetworkPair(const NetworkPair&) = delete;
  NetworkPair& operator=(const NetworkPair&) = delete;

  const std::string& address(int side) const { return addresses_[static_cast<size_t>(side)]; }
  // Moves the calling thread, and whatever it starts from now on, to that side (0 or 1).
  void enter(int side) const {
    const std::string path = "/run/netns/" + names_[static_cast<size_t>(side)];
    const UniqueFd handle(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!handle || ::setns(handle.get(), CLONE_NEWNET) != 0) {
      fail_errno(ExitCode::kIoError, errno, fmt::format("{}: cannot enter", path));
    }
  }
  // Runs a shell command on that side and returns its output. Error(kIoError) with the output if it fails.
  std::string run(int side, const std::string& command) const {
    return run_shell(fmt::format("ip netns exec {} sh -c '{}'", names_[static_cast<size_t>(side)], command));
  }

 private:
  std::array<std::string, 2> names_;
  std::array<std::string, 2> addresses_{"10.77.0.1", "10.77.0.2"};
};

constexpr int kSides = 2;
// TCP needs this long to settle its window sizes; iperf3 counts whole seconds.
constexpr double kMinTurnSeconds = 0.5;
constexpr int64_t kBitsPerGigabit = 1'000'000'000;

// Both hosts are threads of this process, so a map serves as their store.
class ProcessRendezvous {
 public:
  void set(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) {
      fail(ExitCode::kTryAgain, "the other side has not published its {}", key);
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

class SideRendezvous : public Rendezvous {
 public:
  SideRendezvous(ProcessRendezvous& values, const std::string& address)
      : values_(values), address_(address) {}
  void set(const std::string& key, const std::string& value) override { values_.set(key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return values_.get(key, timeout);
  }
  std::string host(int rank) const override { return fmt::format("side-{}", rank); }
  std::string local_address() const override { return address_; }

 private:
  ProcessRendezvous& values_;
  std::string address_;
};

// The two members, each on a thread in its namespace; both run the given work at the same time.
class TwoSides {
 public:
  using Work = std::function<void(NetworkGroup& group)>;

  TwoSides(const NetworkPair& pair, const NetworkOptions& options) {
    for (int side = 0; side < kSides; ++side) {
      threads_.emplace_back([this, &pair, options, side] { serve(pair, options, side); });
    }
    barrier_.arrive_and_wait();
    try {
      rethrow();
    } catch (...) {
      end();
      throw;
    }
  }
  ~TwoSides() { end(); }

  void run(const Work& work) {
    work_ = work;
    barrier_.arrive_and_wait();
    barrier_.arrive_and_wait();
    rethrow();
  }

 private:
  void end() {
    work_ = nullptr;
    barrier_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }

  void serve(const NetworkPair& pair, const NetworkOptions& options, int side) {
    std::unique_ptr<NetworkGroup> group;
    guarded(side, [&] {
      pair.enter(side);
      SideRendezvous rendezvous(values_, pair.address(side));
      group = std::make_unique<NetworkGroup>("bench", std::vector<int>{0, 1}, side, &rendezvous, options,
                                             failures_[static_cast<size_t>(side)]);
    });
    barrier_.arrive_and_wait();
    for (;;) {
      barrier_.arrive_and_wait();
      if (!work_) return;
      guarded(side, [&] { work_(*group); });
      barrier_.arrive_and_wait();
    }
  }

  void guarded(int side, const std::function<void()>& body) {
    try {
      body();
    } catch (...) {
      errors_[static_cast<size_t>(side)] = std::current_exception();
    }
  }
  void rethrow() const {
    for (const std::exception_ptr& error : errors_) {
      if (error) std::rethrow_exception(error);
    }
  }

  ProcessRendezvous values_;
  std::array<FailureDetector, kSides> failures_;
  std::array<std::exception_ptr, kSides> errors_;
  std::barrier<> barrier_{kSides + 1};
  Work work_;
  std::vector<std::thread> threads_;
};

std::vector<Part> halves(int64_t count) { return {{0, count / 2}, {count / 2, count}}; }

// Integers that bf16 and the sums represent exactly.
float element(int side, int64_t i) { return static_cast<float>((i * 5 + side * 11) % 61 - 30); }

struct MeasuredCollective {
  const char* name;
  int64_t bytes;  // on the link, both directions
  int64_t num_elements;
  bool sums;
  bool is_bf16;      // the elements in memory, at the start of the buffer; otherwise float32
  double tolerance;  // of an element
  std::function<NetworkGroup::Ticket(NetworkGroup& group, std::span<float> buffer)> issue;
  std::function<float(int side, int64_t i)> expected;
};

std::vector<MeasuredCollective> collectives_of(int64_t bytes) {
  const int64_t floats = bytes / static_cast<int64_t>(sizeof(float));
  const int64_t halfs = bytes / 2;
  const int64_t codes =
      bytes * kInt8Block / int8_blocks_bytes(kInt8Block) / (2 * kInt8Block) * (2 * kInt8Block);
  return {{"all_gather", floats * static_cast<int64_t>(sizeof(float)), floats, false, false, 0,
           [floats](NetworkGroup& group, std::span<float> buffer) {
             std::vector<Part> parts = halves(floats);
             for (Part& part : parts) part = {part.begin * 4, part.end * 4};
             return group.all_gather(std::as_writable_bytes(buffer), parts, {"benchmark"});
           },
           [floats](int, int64_t i) { return element(i < floats / 2 ? 0 : 1, i); }},
          // Half a step of a block whose largest value is 30.
          {"all_gather_int8", int8_blocks_bytes(codes), codes, false, true, 30.0 / 254 + 0.01,
           [codes](NetworkGroup& group, std::span<float> buffer) {
             const std::span<bf16> values(reinterpret_cast<bf16*>(buffer.data()), static_cast<size_t>(codes));
             return group.all_gather_int8(values, halves(codes), {"benchmark"});
           },
           [codes](int, int64_t i) { return element(i < codes / 2 ? 0 : 1, i); }},
          {"reduce_scatter", halfs * 2, halfs, true, false, 0,
           [halfs](NetworkGroup& group, std::span<float> buffer) {
             return group.reduce_scatter(buffer, halves(halfs), {"benchmark"});
           },
           [halfs](int side, int64_t i) {
             const bool own = (i < halfs / 2) == (side == 0);
             return own ? element(0, i) + element(1, i) : element(side, i);
           }}};
}

Verification verify(const MeasuredCollective& collective, TwoSides& sides,
                    std::array<std::span<float>, kSides> buffers) {
  std::atomic<int64_t> wrong = -1;
  std::array<double, kSides> worst = {};
  sides.run([&](NetworkGroup& group) {
    const std::span<float> buffer = buffers[static_cast<size_t>(group.index())];
    auto* const halfs = reinterpret_cast<bf16*>(buffer.data());
    for (int64_t i = 0; i < collective.num_elements; ++i) {
      const float value = element(group.index(), i);
      if (collective.is_bf16) {
        halfs[i] = to_bf16(value);
      } else {
        buffer[static_cast<size_t>(i)] = value;
      }
    }
    group.wait(collective.issue(group, buffer));
    double& error = worst[static_cast<size_t>(group.index())];
    for (int64_t i = 0; i < collective.num_elements; ++i) {
      const float found = collective.is_bf16 ? to_float(halfs[i]) : buffer[static_cast<size_t>(i)];
      const double off = std::abs(static_cast<double>(found) - collective.expected(group.index(), i));
      error = std::max(error, off);
      if (!(off <= collective.tolerance)) wrong = i;
    }
  });
  TESSERA_CHECK(wrong < 0, "{} of {} bytes: element {} is wrong", collective.name, collective.bytes,
                wrong.load());
  return {.num_checked = kSides * collective.num_elements, .worst_error = std::max(worst[0], worst[1])};
}

double measure_collective(const MeasuredCollective& collective, TwoSides& sides,
                          std::array<std::span<float>, kSides> buffers, double turn_seconds) {
  // Both sides must run the same number: a first run tells how long one takes.
  const auto repeat = [&](int64_t times) {
    return seconds_of([&] {
      sides.run([&](NetworkGroup& group) {
        for (int64_t i = 0; i < times; ++i) {
          group.wait(collective.issue(group, buffers[static_cast<size_t>(group.index())]));
        }
      });
    });
  };
  const auto times =
      std::max<int64_t>(1, static_cast<int64_t>(std::max(turn_seconds, kMinTurnSeconds) / repeat(1)));
  return static_cast<double>(collective.bytes * times) * 8 / kBitsPerGigabit / repeat(times);
}

// The computation of reduce_scatter without the network: one thread per side rounds what the other side would
// receive and adds as many elements to its own part.
double measure_sums(const MeasuredCollective& collective, TwoSides& sides,
                    std::array<std::span<float>, kSides> buffers, double turn_seconds) {
  constexpr int64_t kChunk = 64 << 10;
  const auto once = [&](NetworkGroup& group) {
    const std::span<float> buffer = buffers[static_cast<size_t>(group.index())];
    const int64_t half = std::ssize(buffer) / 2;
    float* const own = buffer.data() + group.index() * half;
    const float* const others = buffer.data() + (1 - group.index()) * half;
    std::vector<bf16> rounded(kChunk);
    for (int64_t begin = 0; begin < half; begin += kChunk) {
      const int64_t count = std::min(kChunk, half - begin);
      round_to_bf16(others + begin, rounded.data(), count, nullptr);
      const std::array<RankInput, 2> inputs = {own + begin, rounded.data()};
      rank_sum(inputs, Update::kOverwrite, own + begin, count, nullptr);
    }
  };
  return speed_of([&] { sides.run(once); }, static_cast<double>(collective.bytes) * 8 / kBitsPerGigabit,
                  turn_seconds);
}

double measure_iperf(const NetworkPair& pair, double turn_seconds) {
  pair.run(1, "iperf3 --server --one-off --daemon");
  const std::string output = pair.run(
      0, fmt::format("for i in 1 2 3 4 5 6 7 8 9; do iperf3 --client {} --parallel 8 --time {:.1f} --json "
                     "&& exit 0; sleep 0.1; done; exit 1",
                     pair.address(1), std::max(1.0, turn_seconds)));
  const size_t begin = output.rfind("{\n\t\"start\"");
  const nlohmann::json report =
      begin == std::string::npos
          ? nlohmann::json()
          : nlohmann::json::parse(output.substr(begin), nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer speed("/end/sum_received/bits_per_second");
  if (!report.is_object() || !report.contains(speed) || !report[speed].is_number())
    fail(ExitCode::kIoError, "iperf3: expected a report with end.sum_received.bits_per_second, found '{}'",
         printable(output.substr(begin == std::string::npos ? 0 : begin)));
  return report[speed].get<double>() / kBitsPerGigabit;
}

}  // namespace

std::vector<BenchLine> run_network_bench(const std::vector<int64_t>& sizes_bytes,
                                         const NetworkOptions& options, const MeasureOptions& measure) {
  const NetworkPair pair;
  try {
    measure_iperf(pair, 1.0);
  } catch (const Error& error) {
    fail(ExitCode::kBadConfig, "iperf3, which this compares with, does not run: {}", error.what());
  }
  TwoSides sides(pair, options);
  NetworkOptions tcp = options;
  tcp.fabric = {};
  std::optional<TwoSides> over_tcp;
  if (!options.fabric.is_tcp()) over_tcp.emplace(pair, tcp);
  std::vector<BenchLine> lines;
  for (const int64_t bytes : sizes_bytes) {
    for (const MeasuredCollective& collective : collectives_of(bytes)) {
      std::array<PageBuffer, kSides> memory;
      std::array<std::span<float>, kSides> buffers;
      for (size_t side = 0; side < kSides; ++side) {
        memory[side] = PageBuffer(collective.num_elements * static_cast<int64_t>(sizeof(float)));
        buffers[side] = memory[side].as<float>();
      }
      BenchLine& line = lines.emplace_back();
      line.benchmark = "comm_network";
      line.operation = collective.name;
      line.shape = {{"bytes", bytes}, {"connections", options.connections}};
      line.dtype = "BF16";
      line.implementation = fabric_name(options.fabric);
      line.unit = "Gbit/s";
      line.peak_name = "iperf3 --parallel 8";
      line.amount = static_cast<double>(collective.bytes) * 8 / kBitsPerGigabit;
      line.verification = verify(collective, sides, buffers);
      std::vector<Participant> participants = {
          [&] { return measure_collective(collective, sides, buffers, measure.turn_seconds); },
          [&] { return measure_iperf(pair, measure.turn_seconds); }};
      if (collective.sums) {
        participants.push_back(
            [&] { return measure_sums(collective, sides, buffers, measure.turn_seconds); });
      }
      if (over_tcp) {
        verify(collective, *over_tcp, buffers);
        participants.push_back(
            [&] { return measure_collective(collective, *over_tcp, buffers, measure.turn_seconds); });
      }
      std::vector<std::vector<double>> speeds = measure_in_turn(participants, measure);
      BenchLine beside_sums = line;
      if (over_tcp) {
        line.others.push_back({"tcp", {}, {}});
        fill_statistics({speeds[0], speeds[1], speeds.back()}, &line);
      } else {
        fill_statistics({speeds[0], speeds[1]}, &line);
      }
      if (!collective.sums) continue;
      for (size_t i = 0; i < speeds[1].size(); ++i) speeds[1][i] = 1 / (1 / speeds[1][i] + 1 / speeds[2][i]);
      beside_sums.operation += "_bound";
      beside_sums.peak_name = "iperf3 --parallel 8 and the sums, one after the other";
      fill_statistics({speeds[0], speeds[1]}, &beside_sums);
      lines.push_back(std::move(beside_sums));
    }
  }
  return lines;
}

}  // namespace tessera
