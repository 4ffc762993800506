// The page of a run, played by a server for tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "expect_error.h"
#include "monitor/watch/run_source.h"
#include "support/web/hub_server.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;
using testing::ElementsAre;

const char kRun[] = R"({
  "start": {"event": "start", "time": 1, "max_steps": 9},
  "evaluations": [{"event": "evaluation", "time": 5, "step": 2, "eval_loss": 3.5}],
  "checkpoints": [{"event": "checkpoint", "time": 4, "step": 1}],
  "messages": [{"event": "warning", "level": "warning", "time": 3, "message": "m"}],
  "memory": null, "finish": null, "updated": 990, "last_event_id": 17,
  "steps": {"num_steps": 2, "step": [1, 2],
            "columns": {"loss": [4.5, null], "skipped": [null, 1], "bad": 3}}})";

class ServerSourceTest : public testing::Test {
 protected:
  ServerSourceTest() {
    server_.set_hook([this](const HubServer::Request& request, HubServer::Reply* reply) {
      const std::lock_guard lock(mutex_);
      const auto answer = [reply](int status, const std::string& body) {
        reply->status = status;
        reply->body = std::make_shared<const std::string>(body);
      };
      if (!token_.empty() && request.header("authorization") != "Bearer " + token_) {
        answer(401, "token");
      } else if (request.target == "/page/api/runs") {
        answer(num_unready_-- > 0 ? 202 : 200, R"({"live": "a b&c", "time": 1000, "runs": []})");
      } else if (request.target == "/page/api/run?name=a%20b%26c") {
        answer(200, run_);
      } else if (request.target == "/page/api/events?after=17") {
        answer(200, stream_);
        stream_ = later_;
      } else {
        answer(404, "");
      }
    });
  }

  // Records from now on, until there are `count` of them.
  static std::vector<ordered_json> next(RunSource& source, size_t count) {
    std::vector<ordered_json> records;
    for (int i = 0; i < 1000 && records.size() < count; ++i) {
      for (const ordered_json& record : source.poll().records) records.push_back(record);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return records;
  }

  // The server takes paths that begin with /api for those of the Hub.
  std::string page() const { return server_.endpoint() + "/page"; }

  HubServer server_;
  std::mutex mutex_;
  std::string token_, run_ = kRun, stream_, later_;
  int num_unready_ = 0;
};

TEST_F(ServerSourceTest, GivesTheRunAsItsRecords) {
  num_unready_ = 2;
  const auto source = open_server_source(page() + "/", "", /*follows=*/false);
  const RunSource::News news = source->poll();
  EXPECT_TRUE(news.restarted);
  std::vector<std::string> kinds;
  for (const ordered_json& record : news.records)
    kinds.push_back(record.contains("event") ? record["event"].get<std::string>() : record.dump());
  EXPECT_THAT(kinds, ElementsAre("start", "warning", "checkpoint", "evaluation", R"({"step":1,"loss":4.5})",
                                 R"({"step":2,"loss":null,"skipped":1})"));
  EXPECT_NEAR(source->updated(), unix_seconds() - 10, 5) << "by the clock of the server, ten seconds ago";
  EXPECT_EQ(source->problem(), "");
}

TEST_F(ServerSourceTest, FollowsTheEventsAndConnectsAgain) {
  stream_ =
      "event: step\ndata: {\"step\":3}\nid: 18\n\n: heartbeat\n\nevent: record\ndata: "
      "{\"event\":\"log\"}\n\n";
  later_ = "event: record\ndata: {\"event\":\"finish\"}\n\n";
  const auto source = open_server_source(page(), "", /*follows=*/true);
  const std::vector<ordered_json> first = next(*source, 8);
  ASSERT_EQ(first.size(), 8u);
  EXPECT_EQ(first[6], ordered_json({{"step", 3}}));
  EXPECT_EQ(first[7], ordered_json({{"event", "log"}}));
  // The stream has ended: everything is asked for again.
  const std::vector<ordered_json> second = next(*source, 7);
  ASSERT_EQ(second.size(), 7u);
  EXPECT_EQ(second[6], ordered_json({{"event", "finish"}}));
}

TEST_F(ServerSourceTest, NeedsTheRightToken) {
  token_ = "secret";
  const auto poll = [this](const std::string& query, const std::string& token) {
    open_server_source(page() + query, token, false)->poll();
  };
  expect_error(ExitCode::kUsage, {page(), "found none: give --token"}, [&] { poll("", ""); });
  expect_error(ExitCode::kUsage, {"found another"}, [&] { poll("?token=x", "secret"); });
  poll("", "secret");
  poll("/?token=secret", "");
  poll("?a=b&token=secret&c=d", "other");
}

TEST_F(ServerSourceTest, OtherServersAreErrorsOfOneLine) {
  const auto poll = [](const std::string& url) { open_server_source(url, "", true)->poll(); };
  expect_error(ExitCode::kNoInput, {"expected the page of a run", "status 404 at /api/runs"},
               [&] { poll(server_.endpoint() + "/elsewhere"); });
  expect_error(ExitCode::kIoError, {"no answer: is the run going"}, [&] { poll("http://127.0.0.1:1"); });
}

TEST_F(ServerSourceTest, BearsAnswersOfAnyKind) {
  for (const char* run :
       {"{}", R"({"start": 3, "evaluations": {}, "steps": [], "finish": "x", "updated": "y"})",
        R"({"steps": {"step": [1], "columns": {"loss": []}}, "evaluations": [3, null]})"}) {
    SCOPED_TRACE(run);
    {
      const std::lock_guard lock(mutex_);
      run_ = run;
    }
    EXPECT_NO_THROW(open_server_source(page(), "", false)->poll());
  }
}

}  // namespace
}  // namespace tessera
