#include "bench/comm/comm_ranks.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <span>

#include "base/error.h"
#include "base/log.h"
#include "bench/comm/comm_side.h"
#include "bench/measure.h"
#include "bench/surroundings.h"
#include "comm/node/node_group.h"
#include "kernels/rank_sum/rank_sum_impl.h"

#ifdef TESSERA_WITH_GLOO
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#endif

namespace tessera {
namespace {

// One rank's part of a side.
class Side {
 public:
  virtual ~Side() = default;
  // Collective: allocates buffers for `count` elements.
  virtual void prepare(int64_t count) = 0;
  // Fills this rank's buffer: with comm_input(), or with zeros, which stay zero when summed.
  virtual void fill(bool with_pattern) = 0;
  // The timed operation.
  virtual void run() = 0;
  virtual const float* output() const = 0;
};

// Every rank writes its gradients to shared memory and sums its part of all of them in rank order, as in
// training; all ranks read the result in place.
class SharedMemorySide : public Side {
 public:
  SharedMemorySide(NodeGroup& group, int64_t num_threads)
      : group_(group), pool_(num_threads), counters_(group.make_counters("progress", 2)) {}

  void prepare(int64_t count) override {
    count_ = count;
    segments_.clear();
    inputs_.clear();
    for (int rank = 0; rank < group_.size(); ++rank) {
      segments_.push_back(group_.allocate("input", count * 4));
    }
    output_ = group_.allocate("output", count * 4);
    // Parts consist of whole cache lines.
    const int64_t part = (count + group_.size() - 1) / group_.size() + 15;
    begin_ = std::min(count, group_.index() * (part / 16 * 16));
    end_ = std::min(count, (group_.index() + 1) * (part / 16 * 16));
    for (const PageBuffer& segment : segments_) inputs_.emplace_back(segment.as<float>().data() + begin_);
    fill(false);
    // The rank that writes output pages touches them first.
    std::fill(output_.as<float>().data() + begin_, output_.as<float>().data() + end_, 1.0f);
  }

  void fill(bool with_pattern) override {
    float* const own = segments_[static_cast<size_t>(group_.index())].as<float>().data();
    for (int64_t i = 0; i < count_; ++i) own[i] = with_pattern ? comm_input(group_.index(), i) : 0;
  }

  void run() override {
    ++turn_;
    counters_.publish(0, turn_);
    counters_.wait_all(0, turn_, {"inputs"}, count_ * 4);
    rank_sum(inputs_, Update::kOverwrite, output_.as<float>().data() + begin_, end_ - begin_, &pool_);
    counters_.publish(1, turn_);
    counters_.wait_all(1, turn_, {"sums"}, count_ * 4);
  }

  const float* output() const override { return output_.as<float>().data(); }

 private:
  NodeGroup& group_;
  ThreadPool pool_;
  SharedCounters counters_;
  std::vector<PageBuffer> segments_;  // one per rank
  std::vector<RankInput> inputs_;     // this rank's part of them
  PageBuffer output_;
  int64_t count_ = 0, begin_ = 0, end_ = 0;
  uint64_t turn_ = 0;
};

#ifdef TESSERA_WITH_GLOO
// Over TCP on the loopback interface; in place, so that only the ring copies data.
class GlooSide : public Side {
 public:
  // Collective. The ranks find each other's addresses in `folder`.
  GlooSide(const std::string& folder, int rank, int num_ranks)
      : context_(std::make_shared<gloo::rendezvous::Context>(rank, num_ranks)), rank_(rank) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    gloo::rendezvous::FileStore store(folder);
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
    context_->connectFullMesh(store, device);
  }

  void prepare(int64_t count) override {
    buffer_ = PageBuffer(count * 4);
    fill(false);
  }
  void fill(bool with_pattern) override {
    const std::span<float> values = buffer_.as<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = with_pattern ? comm_input(rank_, static_cast<int64_t>(i)) : 0;
    }
  }
  void run() override {
    const std::span<float> buffer = buffer_.as<float>();
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(buffer.data(), buffer.size());
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    options.setTag(turn_++);
    gloo::allreduce(options);
  }
  const float* output() const override { return buffer_.as<float>().data(); }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
  int rank_;
  uint32_t turn_ = 0;
  PageBuffer buffer_;
};
#endif

// A command from rank 0 to the other ranks.
struct Board {
  enum Command : int64_t { kVerify, kRun, kEnd } command;
  int64_t count;
};
struct alignas(kCacheLineBytes) RankAnswer {
  int64_t errors;
  double seconds;
};

// Leads all ranks through commands; the others sleep between them.
class Conductor {
 public:
  Conductor(NodeGroup& group, std::unique_ptr<Side> side)
      : group_(group),
        side_(std::move(side)),
        turns_(group.make_counters("turns", 3)),
        board_(group.allocate("board", sizeof(Board))),
        answers_(group.allocate("answers", group.size() * static_cast<int64_t>(sizeof(RankAnswer)))) {}

  // On rank 0.
  int64_t verify(int64_t count) {
    command(Board::kVerify, count);
    int64_t errors = 0;
    for (const RankAnswer& answer : answers_.as<RankAnswer>()) errors += answer.errors;
    return errors;
  }
  double run(int64_t count) {
    command(Board::kRun, count);
    double seconds = 0;
    for (const RankAnswer& answer : answers_.as<RankAnswer>()) seconds = std::max(seconds, answer.seconds);
    return seconds;
  }
  void end() { turns_.publish(0, post(Board::kEnd, 0)); }

  // On the other ranks, until the end.
  void follow() {
    for (;;) {
      turns_.wait(0, 0, ++turn_, {"command"});
      if (board().command == Board::kEnd) return;
      obey();
    }
  }

 private:
  Board& board() const { return board_.as<Board>()[0]; }

  uint64_t post(Board::Command command, int64_t count) {
    board() = {command, count};
    return ++turn_;
  }

  void command(Board::Command command, int64_t count) {
    turns_.publish(0, post(command, count));
    obey();
    turns_.wait_all(2, turn_, {"answers"});
  }

  void obey() {
    const Board now = board();
    if (now.count != prepared_) side_->prepare(now.count);
    prepared_ = now.count;
    RankAnswer& answer = answers_.as<RankAnswer>()[static_cast<size_t>(group_.index())];
    if (now.command == Board::kVerify) side_->fill(/*with_pattern=*/true);
    turns_.publish(1, turn_);
    turns_.wait_all(1, turn_, {"start"});
    answer.seconds = seconds_of([&] { side_->run(); });
    if (now.command == Board::kVerify) {
      answer.errors = count_comm_errors(side_->output(), now.count, group_.size());
    }
    turns_.publish(2, turn_);
    // No rank may change its input while others are still checking the sum.
    if (now.command == Board::kVerify) {
      turns_.wait_all(2, turn_, {"answers"});
      side_->fill(/*with_pattern=*/false);
    }
  }

  NodeGroup& group_;
  const std::unique_ptr<Side> side_;
  SharedCounters turns_;  // commands of rank 0, ready to start, done
  PageBuffer board_;
  PageBuffer answers_;
  uint64_t turn_ = 0;
  int64_t prepared_ = 0;
};

// Returns this process's rank.
int fork_ranks(int num_ranks, std::vector<pid_t>* children) {
  for (int rank = 1; rank < num_ranks; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) fail_errno(ExitCode::kIoError, errno, "cannot start a rank");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      return rank;
    }
    children->push_back(pid);
  }
  return 0;
}

std::unique_ptr<Side> make_side(const std::string& name, const std::string& folder, NodeGroup& group,
                                int64_t num_threads) {
#ifdef TESSERA_WITH_GLOO
  if (name == "gloo") return std::make_unique<GlooSide>(folder, group.index(), group.size());
#endif
  return std::make_unique<SharedMemorySide>(group, num_threads);
}

std::string title(const std::string& side) {
  if (side == "gloo") return "Gloo ring all-reduce, TCP";
  return fmt::format("shared memory ({})", isa_name(rank_sum_table().chosen_implementation().isa));
}

void serve_rank(const std::string& name, const World& world, const std::string& folder, int64_t num_threads) {
  FailureDetector failures;
  // Commands may be any time apart.
  NodeGroup group(world, {.timeout = std::chrono::hours(24)}, failures);
  Conductor conductor(group, make_side(name, folder, group, num_threads));
  if (world.rank > 0) {
    conductor.follow();
    return;
  }
  serve_comm_side(
      title(name), world.world_size, [&](int64_t count) { return conductor.verify(count); },
      [&](int64_t count) { return conductor.run(count); });
  conductor.end();
}

}  // namespace

std::vector<std::string> comm_sides() {
#ifdef TESSERA_WITH_GLOO
  return {"shared", "gloo"};
#else
  return {"shared"};
#endif
}

void serve_comm_ranks(const std::string& side, int num_ranks, int64_t num_threads) {
  const ScratchFolder folder;  // the ranks that are forked below leave it alone
  World world;
  world.run_id = fmt::format("bench comm {}", getpid());
  world.world_size = world.local_world_size = num_ranks;
  world.host = "this machine";
  std::vector<pid_t> children;
  world.rank = world.local_rank = fork_ranks(num_ranks, &children);
  if (world.rank == 0) {
    serve_rank(side, world, folder.path().string(), num_threads);
    for (const pid_t child : children) waitpid(child, nullptr, 0);
    return;
  }
  int exit_code = 0;
  try {
    serve_rank(side, world, folder.path().string(), num_threads);
  } catch (const Error& error) {
    log_warning("rank {}: {}", world.rank, error.what());
    exit_code = static_cast<int>(error.code());
  }
  _exit(exit_code);
}

}  // namespace tessera
