#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "hub/http.h"
#include "monitor/watch/event_stream.h"
#include "monitor/watch/run_source.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

// More than the time between two heartbeats of the server.
constexpr std::chrono::seconds kSilence{45};
constexpr std::chrono::seconds kBetweenAttempts{2};
// While the server prepares an answer.
constexpr std::chrono::milliseconds kBetweenQuestions{100};
constexpr int kMaxQuestions = 100;
// More than the trend of the loss needs.
constexpr int64_t kMaxGivenSteps = 128;

OrderedJson parsed(const std::string& text) {
  return OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
}

// The member, null if there is none.
OrderedJson member(const OrderedJson& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found == object.end() ? OrderedJson() : *found;
}

// The events of a run in the order of their times, then its last steps: what /api/run answers, as records.
std::vector<OrderedJson> records_of(const OrderedJson& run) {
  std::vector<OrderedJson> events;
  for (const char* name : {"evaluations", "checkpoints", "messages"}) {
    const OrderedJson list = member(run, name);
    if (list.is_array()) events.insert(events.end(), list.begin(), list.end());
  }
  std::ranges::stable_sort(events, {}, [](const OrderedJson& event) {
    const OrderedJson time = member(event, "time");
    return time.is_number() ? time.get<double>() : 0.0;
  });
  events.insert(events.begin(), member(run, "start"));
  const OrderedJson steps = member(run, "steps");
  const OrderedJson numbers = member(steps, "step"), columns = member(steps, "columns");
  const int64_t count = numbers.is_array() ? std::ssize(numbers) : 0;
  for (int64_t row = std::max<int64_t>(0, count - kMaxGivenSteps); row < count; ++row) {
    OrderedJson step = {{"step", numbers[static_cast<size_t>(row)]}};
    if (columns.is_object()) {
      for (const auto& [name, values] : columns.items()) {
        if (values.is_array() && row < std::ssize(values)) step[name] = values[static_cast<size_t>(row)];
      }
    }
    if (member(step, "skipped") != 1) step.erase("skipped");
    events.push_back(std::move(step));
  }
  events.push_back(member(run, "finish"));
  std::erase_if(events, [](const OrderedJson& event) { return !event.is_object(); });
  return events;
}

// A thread of its own waits for the server.
class ServerSource : public RunSource {
 public:
  ServerSource(const std::string& url, const std::string& token, bool follows) : follows_(follows) {
    const size_t query = url.find('?');
    base_ = url.substr(0, query);
    while (base_.ends_with('/')) base_.pop_back();
    const size_t begin = url.find("token=", std::min(query, url.size()));
    token_ = begin == std::string::npos ? token : url.substr(begin + 6, url.find('&', begin) - begin - 6);
    settings_.timeout = kSilence;
    thread_ = std::thread([this] { run(); });
  }

  ~ServerSource() override {
    is_stopping_ = true;
    changed_.notify_all();
    thread_.join();
  }

  News poll() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_connected_ || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    return std::exchange(news_, {});
  }

  double updated() const override {
    const std::lock_guard lock(mutex_);
    return updated_;
  }

  std::string problem() const override {
    const std::lock_guard lock(mutex_);
    return problem_;
  }

 private:
  void run() {
    while (!is_stopping_) {
      try {
        HttpConnection connection(settings_);
        const std::string last_id = load(connection);
        if (!follows_ || has_finished_) return;
        follow(connection, last_id);
      } catch (const HttpFailure&) {
        set_problem(base_ + ": no connection, trying again");
        if (!is_connected_) {
          fail_with(Error(
              ExitCode::kIoError,
              fmt::format("{}: no answer: is the run going, with --report_to dashboard, and is this its "
                          "metrics port?",
                          printable(base_, 200))));
        }
      } catch (const Error& error) {
        fail_with(error);
      }
      std::unique_lock lock(mutex_);
      if (failure_) return;
      changed_.wait_for(lock, kBetweenAttempts, [this] { return is_stopping_.load(); });
    }
  }

  void fail_with(const Error& error) {
    const std::lock_guard lock(mutex_);
    failure_ = std::make_exception_ptr(error);
    changed_.notify_all();
  }

  void set_problem(const std::string& problem) {
    const std::lock_guard lock(mutex_);
    problem_ = problem;
  }

  HttpRequest request(const std::string& path) const {
    HttpRequest request;
    request.url = base_ + path;
    request.token = token_;
    return request;
  }

  OrderedJson ask(HttpConnection& connection, const std::string& path) {
    for (int attempt = 0; attempt < kMaxQuestions && !is_stopping_; ++attempt) {
      const HttpAnswer answer = connection.perform(request(path));
      if (answer.status == 401 || answer.status == 403) {
        fail(ExitCode::kUsage,
             "{}: expected the right token, found {}: give --token or TESSERA_METRICS_TOKEN",
             printable(base_, 200), token_.empty() ? "none" : "another");
      }
      if (answer.status == 200) {
        OrderedJson json = parsed(answer.body);
        if (json.is_object()) return json;
      }
      if (answer.status != 202 && answer.status != 503) {
        fail(ExitCode::kNoInput,
             "{}: expected the page of a run (--report_to dashboard), found status {} at {}",
             printable(base_, 200), answer.status, path.substr(0, path.find('?')));
      }
      std::this_thread::sleep_for(kBetweenQuestions);
    }
    throw HttpFailure("no answer in time", "", true);
  }

  // Asks for all there is; returns the id of the last event that is part of it.
  std::string load(HttpConnection& connection) {
    const OrderedJson list = ask(connection, "/api/runs");
    const OrderedJson live = member(list, "live");
    if (!live.is_string()) fail(ExitCode::kNoInput, "{}: found no live run there", printable(base_, 200));
    const OrderedJson run = ask(connection, "/api/run?name=" + escaped_path(live.get<std::string>()));
    const OrderedJson updated = member(run, "updated"), server_now = member(list, "time");
    std::vector<OrderedJson> records = records_of(run);
    const std::lock_guard lock(mutex_);
    news_ = {true, std::move(records)};
    has_finished_ = member(run, "finish").is_object();
    if (updated.is_number() && server_now.is_number())
      updated_ = unix_seconds() - std::max(0.0, server_now.get<double>() - updated.get<double>());
    problem_.clear();
    is_connected_ = true;
    changed_.notify_all();
    return member(run, "last_event_id").dump();
  }

  // Until the server ends the stream, wants everything to be asked again, or the run has finished.
  void follow(HttpConnection& connection, const std::string& last_id) {
    EventStream stream;
    bool wants_more = true;
    const auto take = [&](const std::string& type, const std::string& data) {
      if (type == "reload") wants_more = false;
      if (type != "step" && type != "record") return;
      OrderedJson record = parsed(data);
      if (member(record, "event") == "finish") wants_more = !(has_finished_ = true);
      const std::lock_guard lock(mutex_);
      if (type == "step") updated_ = unix_seconds();
      news_.records.push_back(std::move(record));
    };
    connection.perform(request("/api/events?after=" + last_id),
                       [&](const HttpAnswer&, std::string_view bytes) {
                         stream.add(bytes, take);
                         return wants_more && !is_stopping_;
                       });
    is_stopping_ = is_stopping_ || has_finished_;
  }

  bool follows_;
  std::string base_, token_;
  HubSettings settings_;
  std::thread thread_;
  std::atomic<bool> is_stopping_ = false;
  bool has_finished_ = false;  // for the thread alone

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_connected_ = false;  // it was, at least once
  std::exception_ptr failure_;
  News news_;
  double updated_ = 0;
  std::string problem_;
};

}  // namespace

std::unique_ptr<RunSource> open_server_source(const std::string& url, const std::string& token,
                                              bool follows) {
  return std::make_unique<ServerSource>(url, token, follows);
}

}  // namespace tessera
