#include "comm/node/node_rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/ranks/proof.h"
#include "comm/socket/refusal_log.h"

namespace tessera {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kWaitSlice = 20ms;
constexpr uint64_t kMagic = 0x3165646F4E737354;  // "TssNode1": protocol and its version

// The first message of a connecting rank.
struct Hello {
  uint64_t magic;
  uint64_t job;  // hash of the run id
  int32_t rank;
  int32_t world_size;
  int32_t local_rank;
  int32_t local_world_size;
  int32_t node_rank;
  int32_t restart_count;
};

enum class MessageType : int32_t { kWelcome = 0, kRefused, kFailed, kPeer, kMemory, kNoMemory };

// A message from the node's rank 0 to another rank.
struct Message {
  uint64_t magic = kMagic;
  MessageType type;
  int32_t index = 0;               // kPeer: the rank at the other end of the descriptor; kFailed: the culprit
  int32_t errno_value = 0;         // kNoMemory
  int64_t size_bytes = 0;          // kWelcome, kMemory: of the descriptor
  std::array<char, 240> reason{};  // kRefused, kFailed

  void set_reason(std::string_view text) {
    std::memcpy(reason.data(), text.data(), std::min(text.size(), reason.size() - 1));
  }
};

template <typename T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// The first process to bind an abstract name owns it: if there is a secret, no other user of the machine can
// know this one before it is bound.
std::string socket_name(const World& world) {
  const Mac mac = hmac_sha256(world.secret, {"socket of a node",
                                             fmt::format("{} {} {} {}", geteuid(), world.master_port,
                                                         world.node_rank, world.restart_count),
                                             world.run_id});
  return "tessera-" + hex(text_of(mac));
}

Hello own_hello(const World& world) {
  return {.magic = kMagic,
          .job = hash_name(world.run_id),
          .rank = world.rank,
          .world_size = world.world_size,
          .local_rank = world.local_rank,
          .local_world_size = world.local_world_size,
          .node_rank = world.node_rank,
          .restart_count = world.restart_count};
}

class Deadline {
 public:
  explicit Deadline(const NodeState& state, std::chrono::milliseconds grace = {})
      : state_(state), end_(Clock::now() + state.timeout() + grace) {}
  // Throws if a failure has been recorded.
  bool passed() const {
    state_.failures().check();
    return Clock::now() >= end_;
  }
  std::string text() const {
    return fmt::format("{:.1f} s", static_cast<double>(state_.timeout().count()) / 1e3);
  }

 private:
  const NodeState& state_;
  const Clock::time_point end_;
};

void send_to(const NodeState& state, int index, const Message& message, int fd) {
  const Deadline deadline(state);
  for (;;) {
    const Transfer sent = send_message(state.peers[static_cast<size_t>(index)].get(),
                                       std::as_bytes(std::span(&message, 1)), fd);
    if (sent == Transfer::kDone) return;
    if (sent == Transfer::kClosed) state.blame_closed(index, index, "to take shared memory");
    if (deadline.passed()) {
      state.fail_because(index, fmt::format("{} has not taken what {} sent it for {}", state.describe(index),
                                            state.describe(0), deadline.text()));
    }
    std::this_thread::sleep_for(1ms);
  }
}

Message receive_from_first(const NodeState& state, std::string_view purpose, UniqueFd& fd) {
  // Rank 0 knows who is missing and is given time to say so.
  const Deadline deadline(state, 1s);
  const int socket = state.peers[0].get();
  for (;;) {
    Message message{.type = MessageType::kFailed};
    const Transfer received = receive_message(socket, bytes_of(message), &fd);
    if (received == Transfer::kDone && message.magic == kMagic) {
      message.reason.back() = '\0';
      if (message.type != MessageType::kFailed) return message;
      state.fail_because(message.index, message.reason.data());
    }
    if (received != Transfer::kNotYet) state.blame_closed(0, 0, purpose);
    if (deadline.passed()) {
      state.fail_because(0, fmt::format("{} waited {} for {}: {}", state.describe(state.index()),
                                        deadline.text(), state.describe(0), purpose));
    }
    pollfd readable{.fd = socket, .events = POLLIN, .revents = 0};
    poll(&readable, 1, static_cast<int>(kWaitSlice.count()));
  }
}

// Why rank 0 refuses the sender of `hello`; "" = it accepts.
std::string objection(const NodeState& state, const Hello& hello) {
  const World& world = state.world();
  const Hello own = own_hello(world);
  if (hello.magic != own.magic) return "it is another program, or another version of this one";
  if (hello.job != own.job || hello.node_rank != own.node_rank || hello.restart_count != own.restart_count) {
    return fmt::format("it belongs to another job: node {} and restart {} expected, {} and {} found",
                       own.node_rank, own.restart_count, hello.node_rank, hello.restart_count);
  }
  if (hello.world_size != own.world_size || hello.local_world_size != own.local_world_size) {
    return fmt::format("world size {} with {} per node expected, {} with {} found", own.world_size,
                       count_of(own.local_world_size, "rank"), hello.world_size, hello.local_world_size);
  }
  if (hello.local_rank <= 0 || hello.local_rank >= own.local_world_size ||
      hello.rank != state.rank_of(hello.local_rank)) {
    return fmt::format("rank {} with local rank {} is not among the {} of node {}", hello.rank,
                       hello.local_rank, count_of(own.local_world_size, "rank"), own.node_rank);
  }
  if (state.peers[static_cast<size_t>(hello.local_rank)]) {
    return fmt::format("another process is already rank {} (local rank {})", hello.rank, hello.local_rank);
  }
  return "";
}

void refuse(int socket, const std::string& why, RefusalLog* log) {
  Message message{.type = MessageType::kRefused};
  message.set_reason(why);
  send_message(socket, bytes_of(message));
  log->warn("refused a process that wants to join the ranks of this node", why, why);
}

// Connections that have not identified themselves.
class LocalListener {
 public:
  explicit LocalListener(const World& world) : listener_(listen_local(socket_name(world))) {}

  // Accepts new connections for at most one time slice. Returns how many became peers.
  int serve(NodeState& state) {
    std::vector<pollfd> sockets{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const UniqueFd& peer : pending_) {
      sockets.push_back({.fd = peer.get(), .events = POLLIN, .revents = 0});
    }
    if (poll(sockets.data(), sockets.size(), static_cast<int>(kWaitSlice.count())) <= 0) return 0;
    int num_welcome = 0;
    for (size_t i = 0; i + 1 < sockets.size(); ++i) {
      if (sockets[i + 1].revents != 0 && hear(state, pending_[i])) ++num_welcome;
    }
    std::erase_if(pending_, [](const UniqueFd& fd) { return !fd; });
    if (sockets[0].revents != 0) let_in();
    return num_welcome;
  }

 private:
  void let_in() {
    UniqueFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer) return;
    if (same_user(peer.get())) {
      pending_.push_back(std::move(peer));
    } else {
      refuse(peer.get(), "it runs as another user", &refusals_);
    }
  }

  // Whether the process has become a peer; closes its socket if it never will.
  bool hear(NodeState& state, UniqueFd& peer) {
    Hello hello{};
    const Transfer received = receive_message(peer.get(), bytes_of(hello));
    if (received == Transfer::kNotYet) return false;
    const std::string why =
        received == Transfer::kDone ? objection(state, hello) : "it does not speak this protocol";
    if (!why.empty()) {
      refuse(peer.get(), why, &refusals_);
      peer.reset();
      return false;
    }
    state.peers[static_cast<size_t>(hello.local_rank)] = std::move(peer);
    return true;
  }

  UniqueFd listener_;
  std::vector<UniqueFd> pending_;
  RefusalLog refusals_;
};

[[noreturn]] void fail_memory(std::string_view name, int64_t size_bytes, int errno_value) {
  fail(ExitCode::kBadConfig, "cannot create {} of shared memory for {}: {}{}", format_bytes(size_bytes), name,
       std::strerror(errno_value),
       errno_value == EFBIG
           ? "; `ulimit -f` limits the size of files and with it that of shared memory: raise it"
           : "");
}

int64_t control_bytes(const NodeState& state) {
  return state.size() * static_cast<int64_t>(sizeof(RankSlot));
}

// Aborts the opening of the node for all ranks that have arrived so far.
[[noreturn]] void give_up(const NodeState& state, int culprit, const std::string& evidence) {
  Message message{.type = MessageType::kFailed, .index = culprit};
  message.set_reason(evidence);
  for (const UniqueFd& peer : state.peers) {
    if (peer) send_message(peer.get(), std::as_bytes(std::span(&message, 1)));
  }
  state.fail_because(culprit, evidence);
}

// Returns once every rank has arrived.
void let_all_in(NodeState& state) {
  LocalListener listener(state.world());
  const Deadline deadline(state);
  for (int num_peers = 1; num_peers < state.size();) {
    num_peers += listener.serve(state);
    state.for_closed_peers([&](int lost) {
      give_up(state, lost,
              fmt::format("{} was lost: its process ended without a word while the ranks of its node met",
                          state.describe(lost)));
    });
    if (num_peers == state.size() || !deadline.passed()) continue;
    int missing = 1;
    while (state.peers[static_cast<size_t>(missing)]) ++missing;
    give_up(state, missing,
            fmt::format("{} waited {} for the other ranks of its node: {} of {} came, {} is missing",
                        state.describe(0), deadline.text(), num_peers - 1, state.size() - 1,
                        state.describe(missing)));
  }
}

void open_as_first(NodeState& state) {
  let_all_in(state);
  UniqueFd memory = memory_file("tessera control", control_bytes(state));
  if (!memory) fail_memory("the ranks of a node", control_bytes(state), errno);
  Message message{.type = MessageType::kWelcome, .size_bytes = control_bytes(state)};
  for (int i = 1; i < state.size(); ++i) send_to(state, i, message, memory.get());
  state.control = PageBuffer(std::move(memory), control_bytes(state));
  message.type = MessageType::kPeer;
  for (int i = 1; i < state.size(); ++i) {
    for (int j = i + 1; j < state.size(); ++j) {
      const auto [end_of_i, end_of_j] = connected_pair();
      message.index = j;
      send_to(state, i, message, end_of_i.get());
      message.index = i;
      send_to(state, j, message, end_of_j.get());
    }
  }
}

void connect_to_first(NodeState& state) {
  const std::string name = socket_name(state.world());
  const Deadline deadline(state);
  while (!state.peers[0]) {
    if (std::optional<UniqueFd> connection = connect_local(name)) {
      state.peers[0] = std::move(*connection);
    } else if (deadline.passed()) {
      state.fail_because(0, fmt::format("{} waited {} for {} to open the node's socket",
                                        state.describe(state.index()), deadline.text(), state.describe(0)));
    } else {
      std::this_thread::sleep_for(2ms);
    }
  }
  if (!same_user(state.peers[0].get())) {
    fail(ExitCode::kBadConfig, "the Unix socket @{} belongs to another user's process", name);
  }
  const Hello hello = own_hello(state.world());
  // The reply, or its absence, tells more than a failed send.
  send_message(state.peers[0].get(), std::as_bytes(std::span(&hello, 1)));
}

void open_as_other(NodeState& state) {
  connect_to_first(state);
  UniqueFd fd;
  const Message welcome = receive_from_first(state, "to be let in", fd);
  if (welcome.type == MessageType::kRefused) {
    fail(ExitCode::kBadConfig, "{} may not join the ranks of its node: {}", state.describe(state.index()),
         welcome.reason.data());
  }
  TESSERA_CHECK(welcome.type == MessageType::kWelcome && fd && welcome.size_bytes == control_bytes(state),
                "message type {}, {} bytes", static_cast<int>(welcome.type), welcome.size_bytes);
  state.control = PageBuffer(std::move(fd), welcome.size_bytes);
  for (int i = 1; i < state.size(); ++i) {
    if (i == state.index()) continue;
    const Message peer = receive_from_first(state, "a connection to the other ranks", fd);
    TESSERA_CHECK(peer.type == MessageType::kPeer && fd && peer.index > 0 && peer.index < state.size() &&
                      !state.peers[static_cast<size_t>(peer.index)],
                  "message type {}, index {}", static_cast<int>(peer.type), peer.index);
    state.peers[static_cast<size_t>(peer.index)] = std::move(fd);
  }
}

}  // namespace

void open_node(NodeState& state) {
  const World& world = state.world();
  TESSERA_CHECK(world.local_rank >= 0 && world.local_rank < world.local_world_size, "local rank {} of {}",
                world.local_rank, world.local_world_size);
  if (world.local_world_size == 1) return;
  if (world.local_world_size > kMaxLocalRanks) {
    fail(ExitCode::kBadConfig, "{} ranks on one node: expected at most {}; use fewer ranks with more threads",
         world.local_world_size, kMaxLocalRanks);
  }
  if (world.local_rank == 0) {
    open_as_first(state);
  } else {
    open_as_other(state);
  }
  state.agree("the node's ranks meet");
}

PageBuffer give_segment(NodeState& state, std::string_view name, int64_t size_bytes) {
  UniqueFd memory = memory_file(fmt::format("tessera {}", name), size_bytes);
  const Message message{.type = memory ? MessageType::kMemory : MessageType::kNoMemory,
                        .errno_value = memory ? 0 : errno,
                        .size_bytes = size_bytes};
  for (int i = 1; i < state.size(); ++i) send_to(state, i, message, memory.get());
  if (!memory) fail_memory(name, size_bytes, message.errno_value);
  return PageBuffer(std::move(memory), size_bytes);
}

PageBuffer take_segment(NodeState& state, std::string_view name, int64_t size_bytes) {
  UniqueFd fd;
  const Message message =
      receive_from_first(state, fmt::format("{} of {}", count_of(size_bytes, "byte"), name), fd);
  if (message.type == MessageType::kNoMemory) fail_memory(name, size_bytes, message.errno_value);
  TESSERA_CHECK(message.type == MessageType::kMemory && fd && message.size_bytes == size_bytes,
                "message type {}, {} bytes", static_cast<int>(message.type), message.size_bytes);
  return PageBuffer(std::move(fd), size_bytes);
}

}  // namespace tessera
