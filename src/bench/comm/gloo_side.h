// Gloo's all-reduce between processes of this machine, for comparison; empty if Gloo's headers were not
// found.
#pragma once

#include <memory>
#include <span>
#include <string>

namespace tessera {

// A folder in which the ranks find each other's addresses; removed by the process that created it.
class GlooFolder {
 public:
  GlooFolder();
  ~GlooFolder();
  GlooFolder(const GlooFolder&) = delete;
  GlooFolder& operator=(const GlooFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int owner_;  // id of the process that created it
};

class GlooRing {
 public:
  static bool is_built();

  // Collective: connects all ranks over TCP on the loopback interface.
  GlooRing(const std::string& folder, int rank, int num_ranks);
  ~GlooRing();

  // Every rank's buffer becomes the sum of all.
  void all_reduce(std::span<float> buffer);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
