// Tests specific to libfabric: loading it, choosing a provider, registered slots, unauthenticated peers.
// Requirements on every transport are in the tests of network groups.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <random>
#include <set>

#include "comm/network/fabric/fabric_device.h"
#include "comm/network/fabric/fabric_link.h"
#include "comm/network/link/chunk_count.h"
#include "support/ranks/network_test_support.h"
#include "support/ranks/store_test_support.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kProvider = "tcp;ofi_rxm";

class FabricTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = TestFabric{kProvider}.why_missing();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

bool is_library_loaded() { return ::dlopen("libfabric.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr; }

TEST(FabricChoice, TcpAndMachinesWithoutDevicesLoadNothing) {
  const bool before = is_library_loaded();
  EXPECT_TRUE(choose_fabric(parse_fabric("tcp")).is_tcp());
  EXPECT_EQ(choose_fabric(parse_fabric("efa")).provider, "efa");
  const std::filesystem::path devices = "/sys/class/infiniband";
  if (!std::filesystem::exists(devices) || std::filesystem::is_empty(devices)) {
    EXPECT_TRUE(choose_fabric(parse_fabric("auto")).is_tcp());
  }
  EXPECT_EQ(is_library_loaded(), before);
}

TEST(FabricChoice, NamesThatCannotBeProvidersAreRefused) {
  for (const char* name : {"", "tcp ofi_rxm", "efa\n"}) {
    EXPECT_THAT(error_of([&] { choose_fabric(parse_fabric(name)); }),
                HasSubstr("--fabric: expected auto, tcp or a provider"))
        << name;
  }
}

TEST(FabricDevice, MissingDevicesAndLocksAreNamedWithTheCure) {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / fmt::format("tessera-fabric-{}", ::getpid());
  const auto problem = [&](const std::string& provider, int64_t lockable_bytes) {
    return fabric_device_problem(provider, 1 << 20, {.root = root, .lockable_bytes = lockable_bytes});
  };
  EXPECT_THAT(problem("efa", -1), HasSubstr("attach an EFA interface"));
  EXPECT_THAT(problem("verbs;ofi_rxm", -1), HasSubstr("/sys/class/infiniband is empty"));
  EXPECT_THAT(problem(kProvider, 0), IsEmpty());
  std::filesystem::create_directories(root / "sys/class/infiniband/efa_0");
  EXPECT_THAT(problem("efa", -1), HasSubstr("vpc.amazonaws.com/efa"));
  std::filesystem::create_directories(root / "dev/infiniband/uverbs0");
  EXPECT_THAT(problem("efa", -1), IsEmpty());
  EXPECT_THAT(problem("efa", 1 << 20), IsEmpty());
  EXPECT_THAT(problem("efa", 64 << 10),
              AllOf(HasSubstr("registers 1.00 MiB"), HasSubstr("may lock 64"), HasSubstr("IPC_LOCK")));
  std::filesystem::remove_all(root);
}

// Some of its libraries install handlers for crashes and for the end.
TEST_F(FabricTest, LoadingLeavesSignalHandlersAlone) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGINT, SIGTERM, SIGFPE}) {
    struct sigaction action {};
    ASSERT_EQ(::sigaction(signal, nullptr, &action), 0);
    Dl_info owner{};
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) continue;
    ASSERT_NE(::dladdr(reinterpret_cast<void*>(action.sa_sigaction), &owner), 0) << signal;
    for (const char* library : {"fabric", "psm", "infinipath", "ibverbs", "efa"}) {
      EXPECT_EQ(std::string(owner.dli_fname).find(library), std::string::npos)
          << "signal " << signal << ": " << owner.dli_fname;
    }
  }
}

TEST_F(FabricTest, UnknownProviderIsRefusedByName) {
  EXPECT_THAT(error_of([] { FabricEndpoint("nonsense", "", 0, 2); }),
              AllOf(HasSubstr("--fabric nonsense"), HasSubstr("fi_info")));
  EXPECT_THAT(error_of([] { FabricEndpoint(kProvider, "203.0.113.7", 0, 2); }),
              HasSubstr("cannot open an endpoint at 203.0.113.7"));
}

TEST_F(FabricTest, ListsWhatThereIs) {
  const std::vector<FabricDomain> domains = list_fabrics();
  EXPECT_TRUE(std::ranges::any_of(
      domains, [](const FabricDomain& each) { return each.provider == kProvider && each.domain == "lo"; }));
}

TEST(FabricTags, AreDifferentForEveryMessage) {
  const FabricTags tags(0x0123456789ABCDEF);
  std::set<uint64_t> seen;
  for (const auto kind : {FabricTags::Kind::kHeader, FabricTags::Kind::kPayload, FabricTags::Kind::kReady,
                          FabricTags::Kind::kHandshake}) {
    for (const int from : {0, 1, 2, 65'535}) {
      for (const uint64_t number : {0u, 1u, 2u, 1u << 31}) {
        EXPECT_TRUE(seen.insert(tags.tag(kind, from, number)).second);
        EXPECT_LT(tags.tag(kind, from, number), uint64_t{1} << 58);
        EXPECT_NE(tags.tag(kind, from, number), FabricTags(1).tag(kind, from, number));
      }
    }
  }
}

// Two links of one process.
class TwoLinks {
 public:
  explicit TwoLinks(bool is_staged) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    std::array<std::unique_ptr<FabricEndpoint>, 2> endpoints;
    for (auto& endpoint : endpoints) {
      endpoint = std::make_unique<FabricEndpoint>(kProvider, "127.0.0.1", 0, 2);
    }
    for (int side = 0; side < 2; ++side) {
      FabricPeers peers;
      peers.index = side;
      peers.tags = FabricTags(77);
      peers.addresses.resize(2);
      peers.sockets.resize(2);
      const auto other = static_cast<size_t>(1 - side);
      peers.addresses[other] = endpoints[static_cast<size_t>(side)]->add_peer(endpoints[other]->address());
      peers.sockets[other] = UniqueFd(ends[side]);
      all_peers_[static_cast<size_t>(side)] = std::move(peers);
    }
    for (size_t side = 0; side < 2; ++side) {
      links_[side] =
          std::make_unique<FabricLink>(std::move(endpoints[side]), std::move(all_peers_[side]), is_staged);
    }
  }
  FabricLink& operator[](int side) { return *links_[static_cast<size_t>(side)]; }
  void close(int side) { links_[static_cast<size_t>(side)].reset(); }

 private:
  std::array<FabricPeers, 2> all_peers_;
  std::array<std::unique_ptr<FabricLink>, 2> links_;
};

OperationId operation_of(int64_t bytes) { return {.number = 1, .total_bytes = bytes, .label = {"weights"}}; }

// Payloads of 0 bytes up to the largest, in both directions, a window at a time.
TEST_F(FabricTest, PayloadsArriveDirectlyAndThroughRegisteredSlots) {
  const std::vector<int64_t> sizes = {0, 1, 104, 4099, 70'001, kMaxComputedChunkBytes, kMaxChunkBytes, 3};
  for (const bool is_staged : {false, true}) {
    TwoLinks links(is_staged);
    std::mt19937_64 random(5);
    std::vector<std::vector<std::byte>> sent, received;
    for (const int64_t size : sizes) {
      sent.emplace_back(static_cast<size_t>(size));
      for (std::byte& byte : sent.back()) byte = static_cast<std::byte>(random());
      received.emplace_back(static_cast<size_t>(size));
    }
    const int window = links[0].window();
    for (size_t begin = 0; begin < sizes.size(); begin += static_cast<size_t>(window)) {
      const size_t end = std::min(sizes.size(), begin + static_cast<size_t>(window));
      for (int from = 0; from < 2; ++from) {
        std::vector<OutgoingMessage> out(end - begin);
        std::vector<IncomingMessage> in(end - begin);
        for (size_t i = begin; i < end; ++i) {
          std::ranges::fill(received[i], std::byte{0});
          OutgoingMessage& message = out[i - begin];
          message.peer = 1 - from;
          message.payload = sent[i].data();
          message.payload_bytes = sizes[i];
          message.header = make_header(operation_of(sizes[i]), static_cast<int64_t>(i), sent[i]);
          links[from].begin(message);
          IncomingMessage& awaited = in[i - begin];
          awaited.peer = from;
          awaited.payload = received[i].data();
          awaited.payload_bytes = sizes[i];
          links[1 - from].begin(awaited);
        }
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        for (size_t i = begin; i < end; ++i) {
          while (!out[i - begin].done() || !in[i - begin].done()) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline);
            links[from].advance(out[i - begin]);
            links[1 - from].advance(in[i - begin]);
          }
          EXPECT_TRUE(is_intact(in[i - begin].header));
          EXPECT_EQ(in[i - begin].crc, in[i - begin].header.payload_crc);
          EXPECT_EQ(received[i], sent[i]) << sizes[i] << " bytes, " << (is_staged ? "staged" : "direct");
        }
      }
    }
  }
}

// Posted receives must not write after that, wherever their messages are.
TEST_F(FabricTest, DestructionCancelsWhatIsPosted) {
  TwoLinks links(false);
  auto memory = std::make_unique<std::vector<std::byte>>(kMaxChunkBytes);
  std::vector<std::byte> payload(kMaxChunkBytes, std::byte{7});
  IncomingMessage in;
  in.peer = 0;
  in.payload = memory->data();
  in.payload_bytes = kMaxChunkBytes;
  links[1].begin(in);
  OutgoingMessage out;
  out.peer = 1;
  out.payload = payload.data();
  out.payload_bytes = kMaxChunkBytes;
  out.header = make_header(operation_of(kMaxChunkBytes), 0, payload);
  links[0].begin(out);
  for (int i = 0; i < 20; ++i) {
    links[0].advance(out);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  links.close(1);
  memory.reset();
  links.close(0);
}

// Another process's address is stored in place of a member's: nothing is sent to a peer without the secret.
TEST_F(FabricTest, IntruderInPlaceOfAMemberIsNotBelieved) {
  FabricEndpoint intruder(kProvider, "127.0.0.1", 0, 2);
  std::string hex;
  for (const char byte : intruder.address()) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  LocalRendezvous rendezvous([&](const std::string& key, const std::string& value) {
    return key == "network/test/1/fabric" ? hex + " " : value;
  });
  NetworkOptions options;
  options.timeout = std::chrono::milliseconds(1500);
  options.connections = 1;
  options.fabric = parse_fabric(kProvider);
  const auto errors = run_members({.options = options, .rendezvous = &rendezvous}, [](NetworkGroup&) {});
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1 on host b did not answer rank 0 on host a over fabric "),
                               HasSubstr("within 1.5 s")));
}

TEST_F(FabricTest, OtherFabricsAreRefusedWithBothNames) {
  LocalRendezvous rendezvous([](const std::string& key, const std::string& value) {
    return key == "network/test/1" ? value.substr(0, value.rfind(' ')) + " efa" : value;
  });
  NetworkOptions options;
  options.timeout = std::chrono::milliseconds(500);
  options.fabric = parse_fabric(kProvider);
  const auto errors = run_members({.options = options, .rendezvous = &rendezvous}, [](NetworkGroup&) {});
  EXPECT_THAT(errors[0], HasSubstr("rank 1 on host b uses fabric efa, rank 0 on host a tcp;ofi_rxm"));
}

}  // namespace
}  // namespace tessera
