#include "cluster/kernel_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "base/embedded_text.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace tessera {

std::span<const EmbeddedText> cluster_tables();  // cluster/tables/*.tsv

namespace {

// "6,339,5140900,-;text": level, number, microseconds, flags. Lines that continue a message begin with a
// blank.
std::optional<KernelMessage> parse_record(std::string_view line) {
  if (line.empty() || line[0] == ' ') return std::nullopt;
  const size_t first = line.find(','), second = line.find(',', first + 1), text = line.find(';');
  if (first == std::string_view::npos || second == std::string_view::npos || text == std::string_view::npos ||
      second > text) {
    return std::nullopt;
  }
  return KernelMessage{
      std::strtod(std::string(line.substr(second + 1, text - second - 1)).c_str(), nullptr) * 1e-6,
      std::string(line.substr(text + 1))};
}

// Drives of virtual machines that have no medium: whatever looks at them causes an error.
constexpr const char* kEmptyDrives[] = {"I/O error, dev fd", "I/O error, dev sr"};

// Returns the symptom that a message shows; nullopt if it is not an error.
std::optional<std::string_view> symptom_of(const std::string& text) {
  static const auto kSymptoms = read_cells("kernel_log", text_named(cluster_tables(), "kernel_log"), 2);
  for (const char* drive : kEmptyDrives) {
    if (text.find(drive) != std::string::npos) return std::nullopt;
  }
  for (const auto& symptom : kSymptoms) {
    if (text.find(symptom[0]) != std::string::npos) return symptom[1];
  }
  return std::nullopt;
}

}  // namespace

// The device gives one message for each read; a file of a test gives many.
std::optional<std::vector<KernelMessage>> kernel_messages(const std::filesystem::path& root) {
  const UniqueFd file(::open((root / "dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file) return std::nullopt;
  std::vector<KernelMessage> messages;
  std::array<char, 8192> buffer;
  std::string rest;
  while (messages.size() < kMaxKernelMessages) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: overwritten meanwhile
    if (count < 0 && errno != EAGAIN) return std::nullopt;
    if (count <= 0) break;
    rest.append(buffer.data(), static_cast<size_t>(count));
    size_t begin = 0;
    for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
      if (auto message = parse_record(std::string_view(rest).substr(begin, end - begin))) {
        messages.push_back(std::move(*message));
      }
    }
    rest.erase(0, begin);
  }
  return messages;
}

Check check_kernel_log(const std::optional<std::vector<KernelMessage>>& messages, double uptime) {
  if (!messages) return skipped("kernel_log", "not readable here: needs /dev/kmsg and CAP_SYSLOG");
  int64_t num_found = 0;
  std::string_view last, text;
  for (const KernelMessage& message : *messages) {
    if (message.seconds < uptime - kKernelLogSeconds) continue;
    const auto meaning = symptom_of(message.text);
    if (!meaning) continue;
    ++num_found;
    last = *meaning;
    text = message.text;
  }
  return at_most("kernel_log", static_cast<double>(num_found), 0, "messages",
                 num_found == 0 ? "no errors of the last day"
                                : fmt::format("{} of the last day, the last one '{}': {}",
                                              count_of(num_found, "error"), printable(text), last));
}

}  // namespace tessera
