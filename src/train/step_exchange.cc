#include "train/step_exchange.h"

#include <span>

namespace tessera {

StepExchange::StepExchange(int world_size)
    : parts(static_cast<size_t>(world_size)),
      stops(parts.size()),
      checkpoints(parts.size()),
      peaks(parts.size()),
      messages_(parts.size()) {}

void StepExchange::gather(const StepPart& part, const StopAgreement::Share& stop,
                          const CheckpointShare& checkpoint, const JobPeak::Share& peak, Communicator& comm) {
  comm.all_gather(Message{part, stop, checkpoint, peak}, std::span(messages_), {"loss and gradient norm"});
  for (size_t rank = 0; rank < messages_.size(); ++rank) {
    parts[rank] = messages_[rank].part;
    stops[rank] = messages_[rank].stop;
    checkpoints[rank] = messages_[rank].checkpoint;
    peaks[rank] = messages_[rank].peak;
  }
}

}  // namespace tessera
