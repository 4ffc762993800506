// Slurm's lists of hosts and of tasks per node, as found in the environment: any text is either expanded
// within the node limit or refused with a one-line Error(kBadConfig). The first byte chooses which list.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/ranks/node_list.h"
#include "support/fuzz_support.h"

namespace {

constexpr std::array kWords = {"[",  "]",  "[1-", "-",       ",",       "cn",
                               "08", "(x", ")",   "[0-999]", "1048576", "99999999999"};
constexpr const char* kNodes = "0cn[08-10,12],gpu-a,r[1-2]n[1-2]";
constexpr const char* kTasks = "14(x2),3,16(x10)";

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return tessera::mutate_text(data, size, max_size, seed, kWords, seed % 2 == 0 ? kNodes : kTasks);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 2 == 0) {
      for (const std::string& name : tessera::expand_node_list(text, "LIST")) TESSERA_CHECK(!name.empty());
    } else {
      for (const int tasks : tessera::expand_tasks_per_node(text, "LIST")) TESSERA_CHECK(tasks > 0);
    }
  } catch (const tessera::Error& error) {
    tessera::check_refusal(error, tessera::ExitCode::kBadConfig);
  }
  return 0;
}
