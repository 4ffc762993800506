// Ctrl-C as a wish to stop what is being done, not the program.
#pragma once

namespace tessera {

// While it exists, SIGINT sets a flag and interrupts a blocking read. One at a time.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  // Whether SIGINT has arrived since the last call.
  static bool take();
};

}  // namespace tessera
