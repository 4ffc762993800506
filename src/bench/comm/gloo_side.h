// Gloo's all-reduce between processes of this machine, for comparison; empty if Gloo's headers were not
// found.
#pragma once

#include <memory>
#include <span>
#include <string>

namespace tessera {

class GlooRing {
 public:
  static bool is_built();

  // Collective: connects all ranks over TCP on the loopback interface. They find each other's addresses in
  // `folder`.
  GlooRing(const std::string& folder, int rank, int num_ranks);
  ~GlooRing();

  // Every rank's buffer becomes the sum of all.
  void all_reduce(std::span<float> buffer);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
