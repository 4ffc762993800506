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
  const NetworkCounters end = group_->counters();
  counted_.sent_bytes += end.sent_bytes - begin_.sent_bytes;
  counted_.received_bytes += end.received_bytes - begin_.received_bytes;
  counted_.busy_s += end.busy_s - begin_.busy_s;
  counted_.wait_s += end.wait_s - begin_.wait_s;
}

NetworkCounters NetworkMeter::take() {
  TESSERA_CHECK(!running_, "the meter counts");
  return std::exchange(counted_, {});
}

}  // namespace tessera
