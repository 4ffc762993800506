#include "launch/reports/rank_report.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "comm/ranks/launch_variables.h"
#include "launch/job/rank_environment.h"
#include "platform/system.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr int64_t kMaxMessageChars = 4000;
constexpr size_t kMaxFileBytes = size_t{1} << 20;

int number_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int>() : 0;
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

bool write_all(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

std::string signal_text(int number) {
  const char* name = sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : fmt::format("signal {} (SIG{})", number, name);
}

bool leave_error_report(ErrorReport report) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return false;
  const char* rank = std::getenv("RANK");
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const json object = {{"message", report.message},
                       {"code", report.code},
                       {"rank", rank == nullptr ? 0 : std::atoi(rank)},
                       {"host", host_name()},
                       {"timestamp", std::chrono::duration_cast<std::chrono::seconds>(now).count()},
                       {"caused_by_peer", report.caused_by_peer},
                       {"stop_signal", report.stop_signal}};
  const std::string text = object.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  const bool written = write_all(fd, text);
  return close(fd) == 0 && written;
}

void leave_progress_mark() {
  const char* path = std::getenv(kProgressFileVariable);
  if (path == nullptr || *path == '\0') return;
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  write_all(fd, "1");
  close(fd);
}

bool agent_shows_errors(pid_t parent) {
  const char* agent = std::getenv(kAgentPidVariable);
  return agent != nullptr && std::atol(agent) == parent;
}

std::optional<ErrorReport> read_error_report(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxFileBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("message")) return std::nullopt;
  const json& message = object["message"];  // PyTorch nests the text one level deeper
  ErrorReport report;
  report.message = printable(message.is_object() ? text_of(message, "message") : text_of(object, "message"),
                             kMaxMessageChars);
  if (report.message.empty()) return std::nullopt;
  report.code = number_of(object, "code");
  report.rank = number_of(object, "rank");
  report.host = text_of(object, "host");
  const auto peer = object.find("caused_by_peer");
  report.caused_by_peer = peer != object.end() && peer->is_boolean() && peer->get<bool>();
  report.stop_signal = number_of(object, "stop_signal");
  return report;
}

}  // namespace tessera
