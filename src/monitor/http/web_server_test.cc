#include "monitor/http/web_server.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <mutex>
#include <random>
#include <thread>

#include "base/clock.h"
#include "expect_error.h"
#include "support/web/web_client.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr std::string_view kGetHello = "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
constexpr std::string_view kGetEvents = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
constexpr std::string_view kAtEnd = "\r\n\r\n";

// Serves /hello, /big (a body far larger than all buffers), /broken, and /events with the history of a run.
class TestServer {
 public:
  explicit TestServer(const WebServerOptions& options = {}) : server_(options) {
    server_.add("/hello", WebServer::Access::kToken, [](const WebRequest& request) {
      const auto name = request.query.find("name");
      return text_response(200, "hello " + (name == request.query.end() ? "you" : name->second));
    });
    server_.add("/open", WebServer::Access::kOpen,
                [](const WebRequest&) { return text_response(200, "open"); });
    server_.add("/big", WebServer::Access::kToken, [body = big_body()](const WebRequest&) {
      WebResponse response;
      response.body = body;
      return response;
    });
    server_.add("/broken", WebServer::Access::kToken,
                [](const WebRequest&) -> WebResponse { throw std::runtime_error("a secret detail"); });
    server_.add("/events", WebServer::Access::kToken, [this](const WebRequest& request) {
      const std::lock_guard lock(mutex_);
      WebResponse response;
      response.content_type = "text/event-stream";
      response.channel = "run";
      response.last_event_id = std::ssize(history_);
      std::string missed;
      for (const WebEvent& event : history_) {
        if (event.id > request.last_event_id.value_or(0)) missed += event_text(event);
      }
      response.body = std::make_shared<const std::string>(missed);
      return response;
    });
    server_.start();
  }

  static constexpr size_t kBigBytes = 64 << 20;
  static std::shared_ptr<const std::string> big_body() {
    static const auto body = std::make_shared<const std::string>(kBigBytes, 'x');
    return body;
  }

  void publish(std::string data) {
    WebEvent event = {.id = 0, .type = "step", .data = std::move(data)};
    {
      const std::lock_guard lock(mutex_);
      event.id = std::ssize(history_) + 1;
      history_.push_back(event);
    }
    server_.publish("run", event);
  }
  int port() const { return server_.port(); }
  WebServer& server() { return server_; }

 private:
  std::mutex mutex_;
  std::vector<WebEvent> history_;
  WebServer server_;  // last: its thread uses the others
};

int64_t open_descriptors() { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); }

std::string answer_to(int port, std::string_view bytes) {
  WebClient client(port);
  client.send(bytes);
  return client.read_to_end();
}

TEST(WebServer, AnswersRequestsOfAKeptConnection) {
  TestServer server;
  WebClient client(server.port());
  // Two at once, the second in two pieces.
  client.send(std::string(kGetHello) + "GET /hello?name=a%26b HTT");
  EXPECT_THAT(client.read_until("hello you"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Connection: keep-alive")));
  client.send("P/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(client.read_until("hello a&b"), StartsWith("HTTP/1.1 200 OK\r\n"));
  client.send("HEAD /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const std::string head = client.read_to_end();
  EXPECT_THAT(head, HasSubstr("Content-Length: 9\r\n"));
  EXPECT_TRUE(head.ends_with(kAtEnd));
}

TEST(WebServer, LargeBodiesArriveWhole) {
  TestServer server;
  const std::string body = body_of(web_get(server.port(), "/big"));
  EXPECT_EQ(body.size(), TestServer::kBigBytes);
}

TEST(WebServer, RefusesEverythingElse) {
  TestServer server;
  const int port = server.port();
  const std::string host = " HTTP/1.1\r\nHost: localhost\r\n";
  EXPECT_THAT(web_get(port, "/other"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(web_get(port, "/hello/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(web_get(port, "/../hello"), StartsWith("HTTP/1.1 404 "));
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "BREW"}) {
    EXPECT_THAT(answer_to(port, method + (" /hello" + host) + "\r\n"),
                AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD\r\n")))
        << method;
  }
  EXPECT_THAT(answer_to(port, "GET /hello" + host + "Content-Length: 5\r\n\r\nhello"),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(answer_to(port, "GET /hello" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(answer_to(port, "GET /hello" + host + "X: " + std::string(20'000, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(answer_to(port, "GET /" + std::string(1 << 20, 'x')), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(web_get(port, "/broken"),
              AllOf(StartsWith("HTTP/1.1 500 "), Not(HasSubstr("a secret detail"))));
  EXPECT_THAT(web_get(port, "/hello"), StartsWith("HTTP/1.1 200 "));
}

TEST(WebServer, SurvivesGarbage) {
  TestServer server;
  EXPECT_THAT(answer_to(server.port(), "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n"),
              StartsWith("HTTP/1.1 400 "));
  std::minstd_rand random(1);
  for (int i = 0; i < 400; ++i) {
    std::string bytes(random() % 2 == 0 ? kGetHello : kGetEvents);
    for (uint32_t change = 0; change <= random() % 4; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    WebClient client(server.port());
    client.send(bytes);
  }
  EXPECT_THAT(web_get(server.port(), "/hello"), HasSubstr("hello you"));
}

TEST(WebServer, NamesOfOtherSitesAreRefusedOnLoopback) {
  TestServer server;
  const std::string request = "GET /hello HTTP/1.1\r\nConnection: close\r\n";
  EXPECT_THAT(answer_to(server.port(), request + "Host: evil.example\r\n\r\n"), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(answer_to(server.port(), request + "\r\n"), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(web_get(server.port(), "/hello"), StartsWith("HTTP/1.1 200 "));
}

TEST(WebServer, ATokenIsAskedForAndKeptInACookie) {
  TestServer server({.token = "0123456789abcdef"});
  const int port = server.port();
  EXPECT_THAT(web_get(port, "/hello"), AllOf(StartsWith("HTTP/1.1 401 "), Not(HasSubstr("hello"))));
  EXPECT_THAT(web_get(port, "/hello?token=0123456789abcdeg"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(web_get(port, "/events"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(web_get(port, "/open"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(web_get(port, "/other?token=0123456789abcdef", "Accept: text/html\r\n"),
              StartsWith("HTTP/1.1 404 "));
  // A program.
  EXPECT_THAT(web_get(port, "/hello", "Authorization: Bearer 0123456789abcdef\r\n"), HasSubstr("hello you"));
  EXPECT_THAT(web_get(port, "/hello?token=0123456789abcdef"), HasSubstr("hello you"));
  // A browser.
  const std::string redirect = web_get(port, "/hello?token=0123456789abcdef", "Accept: text/html,*/*\r\n");
  const std::string cookie = "tessera_" + std::to_string(port) + "=0123456789abcdef";
  EXPECT_THAT(redirect,
              AllOf(StartsWith("HTTP/1.1 303 "), HasSubstr("\r\nLocation: /hello\r\n"),
                    HasSubstr("Set-Cookie: " + cookie + "; Path=/; HttpOnly; SameSite=Strict\r\n")));
  EXPECT_THAT(web_get(port, "/hello", "Cookie: " + cookie + "\r\n"), HasSubstr("hello you"));
}

TEST(WebServer, ConnectionsThatSayNothingEnd) {
  TestServer server({.request_timeout = milliseconds(100), .idle_timeout = milliseconds(300)});
  const Stopwatch time;
  WebClient silent(server.port()), slow(server.port()), kept(server.port());
  slow.send("GET /hello HTTP/1.1\r\nHo");
  kept.send(kGetHello);
  kept.read_until("hello you");
  EXPECT_EQ(silent.read_to_end(), "");
  EXPECT_EQ(slow.read_to_end(), "");
  EXPECT_EQ(kept.read_to_end(), "");
  EXPECT_GT(time.seconds(), 0.3);
  EXPECT_LT(time.seconds(), 10);
}

TEST(WebServer, EventStreamsContinueWhereTheClientWas) {
  TestServer server({.heartbeat = milliseconds(50)});
  server.publish("one");
  server.publish("two");
  WebClient client(server.port());
  client.send("GET /events HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 1\r\n\r\n");
  EXPECT_THAT(client.read_until("data: two\n\n"),
              AllOf(HasSubstr("Content-Type: text/event-stream"), Not(HasSubstr("data: one"))));
  server.publish("three");
  EXPECT_THAT(client.read_until("data: three\n\n"), AllOf(HasSubstr("id: 3\n"), Not(HasSubstr("data: two"))));
  client.read_until(": still here\n\n");
}

TEST(WebServer, WhatIsPublishedWhileClientsComeArrivesExactlyOnce) {
  TestServer server;
  constexpr int kEvents = 2'000;
  std::thread publisher([&] {
    for (int i = 1; i <= kEvents; ++i) {
      server.publish(std::to_string(i));
      if (i % 20 == 0) std::this_thread::sleep_for(milliseconds(1));
    }
  });
  std::string expected;
  for (int i = 1; i <= kEvents; ++i) expected += event_text({i, "step", std::to_string(i)});
  const std::string last = event_text({kEvents, "step", std::to_string(kEvents)});
  std::vector<WebClient> clients;
  for (int i = 0; i < 20; ++i) {
    clients.emplace_back(server.port()).send(kGetEvents);
    std::this_thread::sleep_for(milliseconds(2));
  }
  for (WebClient& client : clients) EXPECT_EQ(body_of(client.read_until(last)), expected);
  publisher.join();
}

TEST(WebServer, HundredsOfStreamsGetEveryEvent) {
  const int64_t descriptors = open_descriptors();
  {
    TestServer server;
    std::vector<WebClient> clients;
    for (int i = 0; i < 300; ++i) clients.emplace_back(server.port()).send(kGetEvents);
    for (WebClient& client : clients) client.read_until(kAtEnd);
    double longest_s = 0;
    for (int i = 1; i <= 50; ++i) {
      const Stopwatch one;
      server.publish(std::string(500, 'x') + std::to_string(i));
      longest_s = std::max(longest_s, one.seconds());
    }
    EXPECT_LT(longest_s, 1);
    EXPECT_THAT(web_get(server.port(), "/hello"), HasSubstr("hello you"));
    for (WebClient& client : clients) EXPECT_THAT(client.read_until("x50\n\n"), HasSubstr("x49\n\n"));
    // Half of them leave.
    clients.erase(clients.begin(), clients.begin() + 150);
    server.publish("last");
    for (WebClient& client : clients) client.read_until("last\n\n");
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(WebServer, AStreamThatFallsBehindIsDroppedAndNobodyWaits) {
  TestServer server({.max_pending_bytes = 256 << 10});
  WebClient slow(server.port(), 4096), reader(server.port());
  for (WebClient* client : {&slow, &reader}) {
    client->send(kGetEvents);
    client->read_until(kAtEnd);
  }
  std::string last;
  for (int i = 0; i < 400; ++i) {
    last = std::to_string(i) + std::string(64 << 10, 'x');
    server.publish(last);
    reader.read_until(last + "\n\n");
  }
  // The buffered data arrives, then the end.
  const std::string seen = slow.read_to_end();
  EXPECT_TRUE(slow.is_closed());
  EXPECT_LT(seen.size(), 16U << 20);
  server.publish("more");
  reader.read_until("more\n\n");
}

TEST(WebServer, AReaderThatTakesNothingIsDroppedAndNobodyWaits) {
  TestServer server({.write_timeout = milliseconds(300)});
  std::vector<WebClient> stuck;
  for (int i = 0; i < 20; ++i) {
    stuck.emplace_back(server.port(), 4096).send("GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  const Stopwatch time;
  EXPECT_THAT(web_get(server.port(), "/hello"), HasSubstr("hello you"));
  EXPECT_LT(time.seconds(), 5);  // one after the other they would take six
  std::this_thread::sleep_for(milliseconds(1500));
  for (WebClient& client : stuck) EXPECT_LT(client.read_to_end().size(), TestServer::kBigBytes);
}

TEST(WebServer, NewConnectionsTakeThePlaceOfIdleOnes) {
  TestServer server({.max_connections = 10});
  std::vector<WebClient> streams, idle;
  for (int i = 0; i < 5; ++i) {
    streams.emplace_back(server.port()).send(kGetEvents);
    streams.back().read_until(kAtEnd);
  }
  for (int i = 0; i < 5; ++i) {
    idle.emplace_back(server.port()).send(kGetHello);
    idle.back().read_until("hello you");
  }
  for (int i = 0; i < 20; ++i) EXPECT_THAT(web_get(server.port(), "/hello"), HasSubstr("hello you"));
  EXPECT_EQ(idle[0].read_to_end(), "");
  for (int i = 0; i < 5; ++i) {
    streams.emplace_back(server.port()).send(kGetEvents);
    streams.back().read_until(kAtEnd);
  }
  // All ten are in use.
  EXPECT_EQ(web_get(server.port(), "/hello"), "");
  server.publish("for all");
  for (WebClient& stream : streams) stream.read_until("for all\n\n");
}

TEST(WebServer, TheEndDeliversWhatWasPublished) {
  auto server = std::make_unique<TestServer>();
  WebClient stream(server->port()), kept(server->port()), stuck(server->port(), 4096);
  stream.send(kGetEvents);
  stream.read_until(kAtEnd);
  kept.send(kGetHello);
  kept.read_until("hello you");
  stuck.send("GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n");
  stuck.read_until(kAtEnd);
  server->publish(std::string(1 << 19, 'x') + "finish");
  const Stopwatch time;
  std::thread end([&] { server.reset(); });
  EXPECT_TRUE(stream.read_to_end().ends_with("finish\n\n"));
  end.join();
  EXPECT_LT(time.seconds(), 10);  // although one takes nothing
  EXPECT_EQ(kept.read_to_end(), "");
}

TEST(WebServer, APortThatIsTakenIsOneClearLine) {
  const WebServer first({});
  expect_error(ExitCode::kBadConfig,
               {"cannot listen on 127.0.0.1 port " + std::to_string(first.port()), "Address already in use",
                "choose another --metrics_port"},
               [&] { WebServer({.port = first.port()}); });
  expect_error(ExitCode::kBadConfig, {"192.0.2.1", "an address of this machine"},
               [] { WebServer({.host = "192.0.2.1"}); });
  expect_error(ExitCode::kBadConfig, {"no such host"}, [] { WebServer({.host = "no such host"}); });
}

TEST(WebServer, UrlsAreWhatABrowserTakes) {
  const WebServer local({});
  EXPECT_EQ(local.url(), "http://127.0.0.1:" + std::to_string(local.port()));
  EXPECT_TRUE(local.is_local());
  EXPECT_EQ(local.token(), "");
  const WebServer anywhere({.host = "0.0.0.0"});
  EXPECT_FALSE(anywhere.is_local());
  EXPECT_GE(anywhere.token().size(), 32U);
  EXPECT_THAT(anywhere.url(), Not(HasSubstr("0.0.0.0")));
}

}  // namespace
}  // namespace tessera
