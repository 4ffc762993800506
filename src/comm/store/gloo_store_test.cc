#include "comm/store/gloo_store.h"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <gtest/gtest.h>

#include <array>

#include "support/store_test_support.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(GlooStore, GlooMeetsThroughTheStore) {
  constexpr int kRanks = 3;
  StoreServer server(quick_server_options(kRanks));
  run_ranks(kRanks, [&](int rank) {
    const auto store =
        StoreClient::join(test_world(rank, kRanks, kRanks, server.port()), quick_store_options());
    GlooStore rendezvous(*store, "gloo", seconds(10));
    gloo::transport::tcp::attr attributes;
    attributes.hostname = store->local_address();
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, kRanks);
    context->setTimeout(seconds(10));
    context->connectFullMesh(rendezvous, device);

    std::array<float, 4> values{1, 2, 3, static_cast<float>(rank)};
    gloo::AllreduceOptions options(context);
    options.setOutput(values.data(), values.size());
    options.setReduceFunction(
        [](void* c, const void* a, const void* b, size_t n) { gloo::sum<float>(c, a, b, n); });
    gloo::allreduce(options);
    EXPECT_EQ(values, (std::array<float, 4>{3, 6, 9, 3}));
  });
}

TEST(GlooStore, PrefixesKeepGroupsApart) {
  StoreServer server(quick_server_options(1));
  const auto store = StoreClient::join(test_world(0, 1, 1, server.port()), quick_store_options());
  GlooStore a(*store, "a", milliseconds(100));
  GlooStore b(*store, "b", milliseconds(100));
  a.set("key", {'x', '\0', 'y'});
  EXPECT_EQ(a.get("key"), (std::vector<char>{'x', '\0', 'y'}));
  a.wait({"key"});
  EXPECT_THROW(b.wait({"key"}), Error);
  EXPECT_THROW(b.wait({"key"}, milliseconds(10)), Error);
}

}  // namespace
}  // namespace tessera
