#include "monitor/page/dashboard.h"

#include <sys/resource.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "monitor/page/page_runs.h"
#include "monitor/records/page_html.h"
#include "monitor/records/run_report.h"
#include "report/files/metrics_file.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kChannel[] = "page";
constexpr char kJsonType[] = "application/json";
// Long enough for pages that ask at about the same time to share an answer.
constexpr std::chrono::seconds kFreshFor(1);
constexpr size_t kMaxAnswers = 32;
// For pages that reconnect.
constexpr size_t kMaxKeptEvents = 1000;
constexpr size_t kMaxKeptBytes = 512 << 10;
// Steps of a run that the page gets at once; one that is zoomed in asks again.
constexpr int64_t kPageSteps = 4000;

// A step with the values that StepMetrics only refers to.
struct StepRecord {
  StepMetrics metrics;
  std::vector<RankStep> ranks;
};
struct ResumeRecord {
  int64_t step;
};
// An event's line, or a question whose answer is prepared.
struct EventRecord {
  std::string line;
};
struct Question {
  std::string key;  // of its answer
  WebRequest request;
};
using Record = std::variant<StepRecord, EventRecord, ResumeRecord, Question>;

std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string value_of(const WebRequest& request, const std::string& name) {
  const auto found = request.query.find(name);
  return found == request.query.end() ? std::string() : found->second;
}

int64_t number_of(const WebRequest& request, const std::string& name, int64_t otherwise) {
  const std::string text = value_of(request, name);
  char* end = nullptr;
  const int64_t number = std::strtoll(text.c_str(), &end, 10);
  return text.empty() || *end != '\0' ? otherwise : number;
}

}  // namespace

// Owns the records; everything but its queue, answers and kept events belongs to its thread.
class Dashboard::Worker {
 public:
  Worker(const std::string& output_dir, WebServer& server)
      : output_dir_(output_dir), runs_(output_dir), server_(&server) {}

  void start() {
    thread_ = std::thread([this] { run(); });
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void add(Record record) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(record));
    }
    wake_.notify_one();
  }

  // On the server's thread: the answer, or 202 while it is prepared.
  WebResponse answer(const WebRequest& request) {
    std::string key = request.path;
    for (const char* name : {"name", "run", "from", "to"}) key += "\n" + value_of(request, name);
    const std::lock_guard lock(mutex_);
    if (!answers_.contains(key) && answers_.size() >= kMaxAnswers) {
      std::erase_if(answers_, [](const auto& entry) { return !entry.second.is_asked; });
      if (answers_.size() >= kMaxAnswers) return text_response(503, "too many questions at once\n");
    }
    Answer& answer = answers_[key];
    const bool is_fresh = answer.response.body && Clock::now() - answer.time < kFreshFor;
    if (is_fresh || is_stopping_)
      return answer.response.body ? answer.response : text_response(503, "the run has ended\n");
    if (!std::exchange(answer.is_asked, true)) {
      queue_.push_back(Question{std::move(key), request});
      wake_.notify_one();
    }
    return text_response(202, "{}", kJsonType);
  }

  // On the server's thread.
  WebResponse events(const WebRequest& request) {
    const int64_t after = request.last_event_id.value_or(number_of(request, "after", 0));
    std::string missed;
    const std::lock_guard lock(mutex_);
    if (after > last_id_ || after + std::ssize(kept_) < last_id_) {
      missed = event_text({last_id_, "reload", "{}"});
    } else {
      for (const WebEvent& event : kept_) {
        if (event.id > after) missed += event_text(event);
      }
    }
    WebResponse response = text_response(200, std::move(missed), "text/event-stream");
    response.channel = kChannel;
    response.last_event_id = last_id_;
    return response;
  }

 private:
  struct Answer {
    WebResponse response;
    Clock::time_point time;
    bool is_asked = false;
  };

  void run() {
    // Applies to this thread alone (a Linux extension): its work must not take time from the run.
    setpriority(PRIO_PROCESS, 0, 10);
    for (;;) {
      std::deque<Record> records;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        records.swap(queue_);
      }
      for (Record& record : records) {
        try {
          std::visit([this](auto& value) { take(value); }, record);
        } catch (const std::exception& error) {
          log_warning("the page leaves out a record: {}", error.what());
        }
      }
    }
  }

  void take(StepRecord& step) {
    step.metrics.ranks = step.ranks;
    const std::string line = metrics_line(step.metrics);
    records_.add_step(nlohmann::ordered_json::parse(line));
    if (records_.steps().num_rows() > kMaxSteps) records_.steps().thin(kMaxSteps / 2);
    tell("step", line);
  }

  void take(const EventRecord& event) {
    records_.add_event(nlohmann::ordered_json::parse(event.line));
    tell("record", event.line);
  }

  // Earlier steps of this run are in its files, and so is this start.
  void take(const ResumeRecord& resume) {
    try {
      records_ = read_run_folder(output_dir_, resume.step);
    } catch (const Error& error) {
      log_warning("{}; the page shows only what follows", error.what());
    }
    tell("reload", "{}");
  }

  void take(const Question& question) {
    WebResponse response;
    try {
      response = prepare(question.request);
    } catch (const std::exception& error) {
      response = text_response(422, std::string(error.what()) + "\n");
    }
    const std::lock_guard lock(mutex_);
    answers_[question.key] = {std::move(response), Clock::now(), false};
  }

  WebResponse prepare(const WebRequest& request) {
    if (request.path == "/api/runs") return text_response(200, text_of(runs_.list()), kJsonType);
    const bool is_steps = request.path == "/api/steps";
    const std::string name = value_of(request, is_steps ? "run" : "name");
    const bool is_own = name == runs_.own_name();
    const std::shared_ptr<const RunRecords> other = is_own ? nullptr : runs_.read(name);
    if (!is_own && !other) return text_response(404, "no such run\n");
    const RunRecords& records = is_own ? records_ : *other;
    if (is_steps) {
      const int64_t from = number_of(request, "from", 0);
      const int64_t to = number_of(request, "to", records.steps().last_step());
      return text_response(200, text_of(records.steps().json(from, to, kPageSteps)), kJsonType);
    }
    const double updated = is_own ? last_step_time_ : runs_.updated(name);
    nlohmann::ordered_json json = run_json(name, records, updated > 0 ? updated : unix_seconds(), kPageSteps);
    json["last_event_id"] = last_id_;
    return text_response(200, text_of(json), kJsonType);
  }

  // Keeps the event for pages that reconnect, then sends it.
  void tell(const std::string& type, const std::string& data) {
    last_step_time_ = unix_seconds();
    WebEvent event;
    {
      const std::lock_guard lock(mutex_);
      event = {++last_id_, type, data};
      kept_.push_back(event);
      kept_bytes_ += data.size();
      while (kept_.size() > kMaxKeptEvents || kept_bytes_ > kMaxKeptBytes) {
        kept_bytes_ -= kept_.front().data.size();
        kept_.pop_front();
      }
    }
    server_->publish(kChannel, event);
  }

  const std::filesystem::path output_dir_;
  RunRecords records_;
  PageRuns runs_;
  WebServer* server_;
  double last_step_time_ = 0;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_stopping_ = false;
  std::deque<Record> queue_;
  std::map<std::string, Answer> answers_;
  std::deque<WebEvent> kept_;  // ids up to last_id_, without gaps
  size_t kept_bytes_ = 0;
  // Written by the thread, under the mutex. Begins with the time, so that a page which reconnects to a later
  // start of the run has to reload.
  int64_t last_id_ = std::chrono::duration_cast<std::chrono::microseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
};

Dashboard::Dashboard(const RunSpec& spec, WebServer& server)
    : RunEvents(spec), worker_(std::make_shared<Worker>(spec.output_dir, server)) {
  check_page("--report_to dashboard");
  const auto page = std::make_shared<const std::string>(live_page());
  server.add("/", WebServer::Access::kToken, [page](const WebRequest&) {
    WebResponse response = text_response(200, "", "text/html; charset=utf-8");
    response.body = page;
    response.content_security_policy = page_security_policy();
    return response;
  });
  for (const char* path : {"/api/runs", "/api/run", "/api/steps"}) {
    server.add(path, WebServer::Access::kToken,
               [worker = worker_](const WebRequest& request) { return worker->answer(request); });
  }
  server.add("/api/events", WebServer::Access::kToken,
             [worker = worker_](const WebRequest& request) { return worker->events(request); });
  worker_->start();
}

Dashboard::~Dashboard() { worker_->stop(); }

void Dashboard::on_step(const StepMetrics& metrics) {
  RunEvents::on_step(metrics);
  worker_->add(StepRecord{metrics, {metrics.ranks.begin(), metrics.ranks.end()}});
}

void Dashboard::on_resume(const std::filesystem::path& folder, int64_t step, const std::string& differences) {
  worker_->add(ResumeRecord{step});
  RunEvents::on_resume(folder, step, differences);
}

void Dashboard::on_resume_from_memory(const std::string& nodes, int64_t step,
                                      const std::string& differences) {
  worker_->add(ResumeRecord{step});
  RunEvents::on_resume_from_memory(nodes, step, differences);
}

void Dashboard::write_line(const std::string& line) { worker_->add(EventRecord{line}); }

}  // namespace tessera
