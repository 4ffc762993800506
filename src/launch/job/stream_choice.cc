#include "launch/job/stream_choice.h"

#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

std::optional<StreamChoice> choice_of(const std::string& digit) {
  if (digit.size() != 1 || digit[0] < '0' || digit[0] > '3') return std::nullopt;
  const int bits = digit[0] - '0';
  return StreamChoice{.out = (bits & 1) != 0, .err = (bits & 2) != 0};
}

}  // namespace

std::vector<StreamChoice> parse_stream_choice(const std::string& flag, const std::string& text,
                                              int num_ranks) {
  if (const auto all = choice_of(text))
    return std::vector<StreamChoice>(static_cast<size_t>(num_ranks), *all);
  std::vector<StreamChoice> choices(static_cast<size_t>(num_ranks));
  for (const std::string& field : split(text, ',')) {
    const std::vector<std::string> parts = split(field, ':');
    const auto rank = parse_integer(parts[0]);
    const auto choice = parts.size() == 2 ? choice_of(parts[1]) : std::nullopt;
    if (!rank || !choice) {
      fail(ExitCode::kUsage,
           "{}: expected 0 to 3 (1 standard output, 2 standard error) or LOCAL_RANK:0-3,..., found '{}'",
           flag, printable(text));
    }
    if (*rank < 0 || *rank >= num_ranks) {
      fail(ExitCode::kUsage, "{}: local rank {} of '{}': this node has local ranks 0 to {}", flag, *rank,
           printable(text), num_ranks - 1);
    }
    choices[static_cast<size_t>(*rank)] = *choice;
  }
  return choices;
}

}  // namespace tessera
