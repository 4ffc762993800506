// A memory file held by the agent, in which a rank records its position.
#pragma once

#include <string>

#include "comm/rank_position.h"
#include "comm/socket/local_socket.h"

namespace tessera {

class RankPositionFile {
 public:
  // Error(kIoError).
  RankPositionFile();

  // For TESSERA_POSITION_FILE.
  const std::string& path() const { return path_; }
  PositionReading read() const { return position_.read(); }

 private:
  UniqueFd fd_;
  std::string path_;
  RankPosition position_;
};

}  // namespace tessera
