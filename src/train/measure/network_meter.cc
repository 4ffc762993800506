#include "train/measure/network_meter.h"

#include <utility>

#include "base/error.h"

namespace tessera {

void NetworkMeter::start() {
  TESSERA_CHECK(!running_, "the meter counts already");
  running_ = true;
  begin_ = group_->counters();
}

void NetworkMeter::stop() {
  TESSERA_CHECK(running_, "the meter does not count");
  group_->wait_for_all();
  running_ = false;
  counted_.add(group_->counters().since(begin_));
}

NetworkCounters NetworkMeter::take() {
  TESSERA_CHECK(!running_, "the meter counts");
  return std::exchange(counted_, {});
}

}  // namespace tessera
