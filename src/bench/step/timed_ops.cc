#include "bench/step/timed_ops.h"

#include <string_view>

#include "bench/measure.h"

namespace tessera {

void TimedOps::around(const OpCall& call, FunctionRef<void()> run) {
  constexpr std::string_view kLoss = "cross_entropy";
  const double seconds = seconds_of([&] {
    run();
    device().synchronize();
  });
  add_seconds(std::string_view(call.name).starts_with(kLoss) ? std::string(kLoss) : call.name, seconds);
}

}  // namespace tessera
