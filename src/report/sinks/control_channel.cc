#include "report/sinks/control_channel.h"

#include <csignal>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "report/files/metrics_file.h"

namespace tessera {
namespace {

constexpr double kProgressStep = 0.01;  // between messages about the same thing

}  // namespace

std::unique_ptr<ControlChannel> ControlChannel::open(const RunSpec& spec, const Environment& environment) {
  const std::string socket = environment("TESSERA_CONTROL").value_or("");
  return socket.empty() ? nullptr : std::make_unique<ControlChannel>(spec, socket);
}

ControlChannel::ControlChannel(const RunSpec& spec, const std::string& socket) : RunEvents(spec) {
  try {
    socket_.connect(asio::local::stream_protocol::endpoint(socket));
  } catch (const std::system_error& error) {  // a path that is too long
    fail(ExitCode::kNoInput, "TESSERA_CONTROL: cannot connect to {}: {}", socket, error.code().message());
  }
  if (!socket_)
    fail(ExitCode::kNoInput, "TESSERA_CONTROL: cannot connect to {}: {}", socket, socket_.error().message());
}

void ControlChannel::write_line(const std::string& line) {
  if (!is_lost_ && !(socket_ << line << std::endl)) lose();
}

void ControlChannel::lose() {
  is_lost_ = true;
  log_warning("the program that started this run is gone ({}): the run ends as on SIGTERM",
              socket_.error().message());
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
  std::string answer;
  if (!is_lost_ && !std::getline(socket_, answer)) lose();
  if (is_lost_) return {};
  const nlohmann::json wanted = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!wanted.is_object())
    fail(ExitCode::kInternal, "TESSERA_CONTROL: expected a JSON object, found {}", answer);
  const auto is_set = [&](const char* name) { return wanted.value(name, nlohmann::json()) == true; };
  return {is_set("log"), is_set("evaluate"), is_set("save"), is_set("stop")};
}

}  // namespace tessera
