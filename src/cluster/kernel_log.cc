#include "cluster/kernel_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "base/text.h"
#include "base/unique_fd.h"

namespace tessera {
namespace {

// What the kernel writes, and what it means.
struct Symptom {
  const char* text;
  const char* meaning;
};
constexpr Symptom kSymptoms[] = {
    {"Uncorrected hardware memory error", "memory is damaged: replace the node"},
    {"Memory failure: 0x", "memory is damaged: replace the node"},
    {"event severity: fatal", "the hardware reports a fatal error: replace the node"},
    {"event severity: recoverable", "the hardware reports an error: replace the node"},
    {"Machine check: Processor context corrupt", "the processor is damaged: replace the node"},
    {" UE memory ", "memory is damaged: replace the node"},
    {"soft lockup - CPU#", "a processor was stuck: look at the hypervisor, or replace the node"},
    {"Watchdog detected hard LOCKUP", "a processor was stuck: replace the node"},
    {" self-detected stall on CPU", "a processor was stuck: look at the hypervisor, or replace the node"},
    {"blocked for more than", "a task was stuck, often in storage: see doctor --storage"},
    {"I/O error, dev ", "a disk fails: replace the node"},
    {"critical medium error, dev ", "a disk fails: replace the node"},
    {"EXT4-fs error", "a file system is damaged: replace the node"},
    {"Corruption detected. Unmount and run xfs_repair", "a file system is damaged: replace the node"},
    {"Remounting filesystem read-only", "a file system is damaged: replace the node"},
    {"NETDEV WATCHDOG", "a network interface was stuck: replace the node"},
    {"clock throttled", "the processor is too hot: replace the node"},
    {"clock is throttled", "the processor is too hot: replace the node"},  // since Linux 5.5
};

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

const Symptom* symptom_in(const std::string& text) {
  for (const char* drive : kEmptyDrives) {
    if (text.find(drive) != std::string::npos) return nullptr;
  }
  for (const Symptom& symptom : kSymptoms) {
    if (text.find(symptom.text) != std::string::npos) return &symptom;
  }
  return nullptr;
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
  const Symptom* last = nullptr;
  std::string text;
  for (const KernelMessage& message : *messages) {
    const Symptom* symptom =
        message.seconds < uptime - kKernelLogSeconds ? nullptr : symptom_in(message.text);
    if (symptom == nullptr) continue;
    ++num_found;
    last = symptom;
    text = message.text;
  }
  return at_most("kernel_log", static_cast<double>(num_found), 0, "messages",
                 last == nullptr ? "no errors of the last day"
                                 : fmt::format("{} of the last day, the last one '{}': {}",
                                               count_of(num_found, "error"), printable(text), last->meaning));
}

}  // namespace tessera
