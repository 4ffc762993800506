// The live page of a run, at the server of its rank 0: --report_to dashboard.
#pragma once

#include <memory>
#include <string>

#include "monitor/http/web_server.h"
#include "report/files/run_events.h"

namespace tessera {

// Answers, all read-only:
//   /                                    the page
//   /api/runs                            PageRuns::list()
//   /api/run?name=NAME                   run_json() of one, own or other, with last_event_id
//   /api/steps?run=NAME&from=N&to=N      StepTable::json() of a range, for a page that is zoomed in
//   /api/events?after=ID                 server-sent events of the own run after that id, as they happen:
//   "step" (a line of
//                                        metrics.jsonl), "record" (of events.jsonl), "reload" (more was
//                                        missed than is kept: ask for the run again)
// While an answer is being prepared its status is 202: ask again.
//
// The training thread only appends records to a queue. A thread of its own, at low priority, does the rest:
// it turns records into JSON, thins, and reads files of other runs. It keeps the last kMaxSteps steps or so,
// thinned, in memory.
class Dashboard final : public RunEvents {
 public:
  // Adds the paths to a server that has not started. Error(kBadConfig) if this build has no page.
  Dashboard(const RunSpec& spec, WebServer& server);
  // Passes on what is left in the queue. The server must outlive this.
  ~Dashboard() override;

  void on_step(const StepMetrics& metrics) override;
  void on_resume(const std::filesystem::path& folder, int64_t step, const std::string& differences) override;
  void on_resume_from_memory(const std::string& nodes, int64_t step, const std::string& differences) override;

  static constexpr int64_t kMaxSteps = 1 << 17;

 private:
  class Worker;

  void write_line(const std::string& line) override;

  std::shared_ptr<Worker> worker_;
};

}  // namespace tessera
