#include "launch/ranks/output_relay.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace tessera {
namespace {

// A descriptor that poll() reports writable takes this much without blocking (PIPE_BUF on Linux).
constexpr size_t kWriteBytes = 4096;
constexpr size_t kReadBytes = 65536;
// A source is not read while its target has this much left to write: the rank blocks, as with any slow
// reader.
constexpr size_t kMaxPendingBytes = size_t{1} << 18;
// A longer line is shown in pieces, so that an endless one takes no more memory than this.
constexpr size_t kMaxLineBytes = size_t{1} << 20;
// The maximum size of a pipe (fs.pipe-max-size).
constexpr int64_t kMaxPipeBytes = int64_t{1} << 20;
// Clears a progress line of rank 0 that a terminal may show; it is soon redrawn.
constexpr std::string_view kClearLine = "\r\x1b[K";

bool is_writable(int fd) {
  pollfd wanted = {fd, POLLOUT, 0};
  return ::poll(&wanted, 1, 0) == 1;
}

// The part of a redrawn line that a terminal would show in the end.
std::string_view last_state(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  const size_t redrawn = line.rfind('\r');
  return redrawn == std::string_view::npos ? line : line.substr(redrawn + 1);
}

}  // namespace

OutputRelay::OutputRelay(const std::vector<RelaySource>& sources) {
  targets_.reserve(sources.size());  // sources hold pointers into it
  for (const RelaySource& how : sources) {
    fcntl(how.pipe, F_SETFL, fcntl(how.pipe, F_GETFL) | O_NONBLOCK);
    sources_.push_back({.how = how,
                        .target = how.shown_on < 0 ? nullptr : target_of(how.shown_on),
                        .is_open = true,
                        .line = {}});
  }
}

OutputRelay::~OutputRelay() {
  for (Source& source : sources_) {
    if (source.is_open) close(source.how.pipe);
    if (source.how.file >= 0) close(source.how.file);
  }
}

OutputRelay::Target* OutputRelay::target_of(int fd) {
  for (Target& target : targets_) {
    if (target.fd == fd) return &target;
  }
  targets_.push_back({.fd = fd,
                      .shows_status = isatty(fd) == 1 && terminal_takes_escapes(),
                      .is_open = true,
                      .pending = {}});
  return &targets_.back();
}

bool OutputRelay::has_room(const Source& source) const {
  return source.is_open && (source.target == nullptr || source.target->pending.size() < kMaxPendingBytes);
}

void OutputRelay::append_polls(std::vector<pollfd>* polls) const {
  for (const Source& source : sources_) {
    if (has_room(source)) polls->push_back({source.how.pipe, POLLIN, 0});
  }
  for (const Target& target : targets_) {
    if (!target.pending.empty()) polls->push_back({target.fd, POLLOUT, 0});
  }
}

void OutputRelay::move() {
  for (Source& source : sources_) {
    if (has_room(source)) read_from(&source);
  }
  for (Target& target : targets_) write_to(&target);
}

void OutputRelay::end_sources() {
  for (Source& source : sources_) {
    // Bounded, as a process that a rank left running may keep writing.
    int64_t left = kMaxPipeBytes;
    for (int64_t count = 1; source.is_open && left > 0 && count > 0; left -= count)
      count = read_from(&source);
    end(&source);
  }
}

bool OutputRelay::has_pending() const {
  return std::any_of(targets_.begin(), targets_.end(), [](const Target& t) { return !t.pending.empty(); });
}

// Returns the number of bytes; 0 if there was nothing to read.
int64_t OutputRelay::read_from(Source* source) {
  std::array<char, kReadBytes> buffer;
  const ssize_t count = read(source->how.pipe, buffer.data(), buffer.size());
  if (count > 0) {
    take(source, {buffer.data(), static_cast<size_t>(count)});
    return count;
  }
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  end(source);
  return 0;
}

void OutputRelay::take(Source* source, std::string_view text) {
  write_file(source, text);
  if (source->target == nullptr || !source->target->is_open) return;
  const bool plain = source->how.prefix.empty();
  const size_t last = plain ? text.find_last_of("\n\r") : text.rfind('\n');
  if (last == std::string_view::npos) {
    source->line += text;
  } else {
    source->line += text.substr(0, last + 1);
    show(source, source->line);
    source->line = text.substr(last + 1);
  }
  // Drops states of a progress bar that will never be shown.
  if (!plain && source->line.size() > kReadBytes) source->line = std::string(last_state(source->line));
  if (source->line.size() <= kMaxLineBytes) return;
  show(source, plain ? source->line : source->line + "\n");
  source->line.clear();
}

// `lines` are whole lines, including their line ends.
void OutputRelay::show(Source* source, std::string_view lines) {
  Target* target = source->target;
  if (target->shows_status) target->pending += kClearLine;
  if (source->how.prefix.empty()) {
    target->pending += lines;
    return;
  }
  while (!lines.empty()) {
    const size_t end = lines.find('\n');
    target->pending += source->how.prefix;
    target->pending += last_state(lines.substr(0, end));
    target->pending += '\n';
    lines.remove_prefix(end + 1);
  }
}

void OutputRelay::end(Source* source) {
  if (!source->is_open) return;
  source->is_open = false;
  close(source->how.pipe);
  if (source->line.empty() || source->target == nullptr || !source->target->is_open) return;
  show(source, source->line + "\n");
  source->line.clear();
}

void OutputRelay::write_file(Source* source, std::string_view text) {
  while (source->how.file >= 0 && !text.empty()) {
    const ssize_t count = write(source->how.file, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      log_warning("a rank's log file: {}; the job continues without it", std::strerror(errno));
      close(std::exchange(source->how.file, -1));
    }
  }
}

void OutputRelay::write_to(Target* target) {
  size_t done = 0;
  while (done < target->pending.size() && is_writable(target->fd)) {
    const size_t size = std::min(kWriteBytes, target->pending.size() - done);
    const ssize_t count = write(target->fd, target->pending.data() + done, size);
    if (count >= 0) {
      done += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      log_warning("standard {}: {}; the job continues without it",
                  target->fd == STDERR_FILENO ? "error" : "output", std::strerror(errno));
      target->is_open = false;
      done = target->pending.size();
    }
  }
  target->pending.erase(0, done);
}

}  // namespace tessera
