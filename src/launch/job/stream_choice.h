// torchrun's --redirects and --tee: which output streams of which ranks.
#pragma once

#include <string>
#include <vector>

namespace tessera {

struct StreamChoice {
  bool out = false;
  bool err = false;
};

// "0" none, "1" standard output, "2" standard error, "3" both, for all ranks; or per local rank, none for
// those not listed: "0:3,1:2". The result is by local rank. Error(kUsage) names the flag.
std::vector<StreamChoice> parse_stream_choice(const std::string& flag, const std::string& text,
                                              int num_ranks);

}  // namespace tessera
