#include "bench/comm/gloo_side.h"

#include "base/error.h"

#ifdef TESSERA_WITH_GLOO
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#endif

namespace tessera {

#ifdef TESSERA_WITH_GLOO

struct GlooRing::State {
  std::shared_ptr<gloo::rendezvous::Context> context;
  uint32_t turn = 0;
};

bool GlooRing::is_built() { return true; }

GlooRing::GlooRing(const std::string& folder, int rank, int num_ranks) : state_(std::make_unique<State>()) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  gloo::rendezvous::FileStore store(folder);
  state_->context = std::make_shared<gloo::rendezvous::Context>(rank, num_ranks);
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
  state_->context->connectFullMesh(store, device);
}

void GlooRing::all_reduce(std::span<float> buffer) {
  gloo::AllreduceOptions options(state_->context);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setOutput(buffer.data(), buffer.size());
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
  options.setTag(state_->turn++);
  gloo::allreduce(options);
}

#else

struct GlooRing::State {};

bool GlooRing::is_built() { return false; }
GlooRing::GlooRing(const std::string& /*folder*/, int /*rank*/, int /*num_ranks*/) {
  fail(ExitCode::kUsage, "this program was built without Gloo");
}
void GlooRing::all_reduce(std::span<float> /*buffer*/) {}

#endif

GlooRing::~GlooRing() = default;

}  // namespace tessera
