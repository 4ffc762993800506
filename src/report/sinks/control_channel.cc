#include "report/sinks/control_channel.h"

#include <asio/buffer.hpp>
#include <asio/read_until.hpp>
#include <asio/write.hpp>
#include <csignal>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "comm/ranks/launch_variables.h"
#include "report/files/metrics_file.h"

namespace tessera {
namespace {

constexpr double kProgressStep = 0.01;  // between messages about the same thing

}  // namespace

std::unique_ptr<ControlChannel> ControlChannel::open(const RunSpec& spec, const Environment& environment) {
  const std::string socket = environment(kControlVariable).value_or("");
  return socket.empty() ? nullptr : std::make_unique<ControlChannel>(spec, socket);
}

ControlChannel::ControlChannel(const RunSpec& spec, const std::string& socket) : RunEvents(spec) {
  try {
    socket_.connect(asio::local::stream_protocol::endpoint(socket));
  } catch (const std::system_error& error) {
    fail(ExitCode::kNoInput, "TESSERA_CONTROL: cannot connect to {}: {}", socket, error.code().message());
  }
}

void ControlChannel::write_line(const std::string& line) {
  if (is_lost_) return;
  const std::string bytes = line + '\n';
  std::error_code error = asio::error::interrupted;  // a signal to end the run may come in between
  for (size_t sent = 0; sent < bytes.size() && error == asio::error::interrupted;)
    sent += asio::write(socket_, asio::buffer(bytes) + sent, error);
  if (error) lose(error);
}

std::string ControlChannel::read_line() {
  if (is_lost_) return "";
  std::error_code error = asio::error::interrupted;
  size_t length = 0;
  while (error == asio::error::interrupted)
    length = asio::read_until(socket_, asio::dynamic_buffer(received_), '\n', error);
  if (error) {
    lose(error);
    return "";
  }
  const std::string line = received_.substr(0, length);
  received_.erase(0, length);
  return line;
}

void ControlChannel::lose(const std::error_code& error) {
  is_lost_ = true;
  log_warning("the program that started this run is gone ({}): the run ends as on SIGTERM", error.message());
  std::raise(SIGTERM);
}

void ControlChannel::send_progress(const std::string& what, double fraction) {
  if (what == progress_of_ && fraction < 1 && fraction >= progress_ && fraction < progress_ + kProgressStep)
    return;
  progress_of_ = what;
  progress_ = fraction;
  write_line(nlohmann::ordered_json{{"event", "progress"}, {"what", what}, {"fraction", fraction}}.dump());
}

void ControlChannel::on_step(const StepMetrics& metrics) {
  RunEvents::on_step(metrics);
  write_line(R"({"event":"step",)" + metrics_line(metrics).substr(1));
}

RunRequests ControlChannel::requests() {
  write_line(R"({"event":"ask"})");
  const std::string answer = read_line();
  if (is_lost_) return {};
  const nlohmann::json wanted = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!wanted.is_object())
    fail(ExitCode::kInternal, "TESSERA_CONTROL: expected a JSON object, found '{}'", answer);
  const auto is_set = [&](const char* name) { return wanted.value(name, nlohmann::json()) == true; };
  return {is_set("log"), is_set("evaluate"), is_set("save"), is_set("stop")};
}

}  // namespace tessera
