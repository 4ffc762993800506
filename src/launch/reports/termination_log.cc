#include "launch/reports/termination_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace tessera {
namespace {

// The most whole characters of `text` that fit.
std::string cut(std::string text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  constexpr std::string_view kCut = "...";
  size_t end = max_bytes - kCut.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // within a character
  return text.substr(0, end).append(kCut);
}

}  // namespace

void leave_termination_message(std::string_view message, EarlierMessage earlier,
                               const Environment& environment) {
  const std::string asked = environment(kTerminationLogVariable).value_or("");
  const std::string path = asked.empty() ? kTerminationLog : asked;
  // Never blocks, whatever kind of file is at this path.
  const int flags = O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (asked.empty() ? 0 : O_CREAT);
  const UniqueFd file(open(path.c_str(), flags, 0644));
  struct stat state = {};
  if (file.get() < 0 || fstat(file.get(), &state) != 0 || !S_ISREG(state.st_mode)) {
    if (!asked.empty()) log_warning("{}={}: cannot be written", kTerminationLogVariable, printable(asked));
    return;
  }
  if (earlier == EarlierMessage::kKept && state.st_size > 0) return;
  const std::string text =
      cut(printable(message, static_cast<int64_t>(kMaxTerminationBytes)), kMaxTerminationBytes - 1) + "\n";
  // Not as a new file: the kubelet has mounted this one into the container.
  if (ftruncate(file.get(), 0) != 0 || pwrite(file.get(), text.data(), text.size(), 0) < std::ssize(text))
    log_debug("{}: {}", path, std::strerror(errno));
}

}  // namespace tessera
