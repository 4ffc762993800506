// Command lines of accelerate, ipexrun and DeepSpeed's launcher.
#pragma once

#include <string>
#include <vector>

namespace tessera {

// Translates the command as the end of the message "unknown command 'accelerate'": "; the same here: tessera
// launch --nproc_per_node 4 train ..." and the flags without a counterpart. Returns "" if the words do not
// begin with the name of such a launcher.
std::string hint_for_launcher(const std::vector<std::string>& words);

}  // namespace tessera
