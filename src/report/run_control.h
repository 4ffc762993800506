// Requests of a run's caller while the run is going.
#pragma once

namespace tessera {

// Once a step is done, before what is due after it. DefaultFlowCallback's fields of Hugging Face's
// TrainerControl.
struct RunRequests {
  bool log = false;
  bool evaluate = false;
  bool save = false;
  bool stop = false;  // the run ends as if this step had been its last

  RunRequests& operator|=(const RunRequests& more) {
    log |= more.log, evaluate |= more.evaluate, save |= more.save, stop |= more.stop;
    return *this;
  }
};

class RunControl {
 public:
  virtual ~RunControl() = default;
  // Requests in response to everything reported to observers so far. May wait for an answer.
  virtual RunRequests requests() = 0;
};

}  // namespace tessera
