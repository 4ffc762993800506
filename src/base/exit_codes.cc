#include "base/exit_codes.h"

namespace tessera {

std::span<const ExitCodeMeaning> exit_code_meanings() {
  static constexpr ExitCodeMeaning kMeanings[] = {
      {0, "done"},           {64, "bad command line"},  {65, "bad data"},
      {66, "missing input"}, {70, "internal error"},    {74, "I/O error"},
      {75, "try again"},     {78, "bad configuration"}, {79, "numerical failure"},
  };
  return kMeanings;
}

}  // namespace tessera
