// The connection of a run to the program that started it and follows it: the Python package, whose callbacks
// are called during the run. docs/operations.md describes the messages.
#pragma once

#include <asio/io_context.hpp>
#include <asio/local/stream_protocol.hpp>
#include <memory>
#include <string>

#include "comm/ranks/world.h"
#include "report/files/run_events.h"
#include "report/run_control.h"

namespace tessera {

// Sends a line of JSON for everything that RunEvents reports, for every step and for progress, and asks for
// requests. For rank 0. Once the other side is gone, the process gets SIGTERM: the run ends as on a signal.
class ControlChannel final : public RunEvents, public RunControl {
 public:
  // Connects to the Unix socket that the variable TESSERA_CONTROL names; nullptr without the variable.
  // Error(kNoInput) if no process listens there.
  static std::unique_ptr<ControlChannel> open(const RunSpec& spec, const Environment& environment);

  ControlChannel(const RunSpec& spec, const std::string& socket);

  void on_progress(const std::string& what, double fraction) override { send_progress(what, fraction); }
  void on_loading(double fraction, double /*bytes_per_second*/) override {
    send_progress("loading weights", fraction);
  }
  void on_evaluation_progress(double fraction) override { send_progress("evaluation", fraction); }
  void on_step(const StepMetrics& metrics) override;
  RunRequests requests() override;

 private:
  void write_line(const std::string& line) override;
  void send_progress(const std::string& what, double fraction);
  // The next line from the other side; "" once it is gone.
  std::string read_line();
  void lose(const std::error_code& error);

  asio::io_context context_;
  asio::local::stream_protocol::socket socket_{context_};
  std::string received_;  // bytes after the last answer
  bool is_lost_ = false;
  std::string progress_of_;  // in the last message about progress
  double progress_ = 0;
};

}  // namespace tessera
