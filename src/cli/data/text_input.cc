#include "cli/data/text_input.h"

#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "io/file.h"
#include "platform/memory_info.h"

namespace tessera {
namespace {

std::string read_standard_input() {
  constexpr size_t kPieceBytes = 1 << 16;
  std::string text;
  for (;;) {
    const size_t size = text.size();
    text.resize(size + kPieceBytes);
    const ssize_t count = read(STDIN_FILENO, text.data() + size, kPieceBytes);
    text.resize(size + static_cast<size_t>(count > 0 ? count : 0));
    if (count == 0) return text;
    if (count < 0 && errno != EINTR) fail_errno(ExitCode::kIoError, errno, "standard input");
  }
}

}  // namespace

std::string read_input(const std::string& name) {
  if (name == "-") return read_standard_input();
  return read_text_file(name, memory_info().free_for_process_bytes / 2);
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

}  // namespace tessera
