// The message a user reads when a model cannot be had from the Hub.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "expect_error.h"
#include "hub/hub.h"
#include "io/file.h"
#include "support/web/hub_test_support.h"

namespace tessera {
namespace {

TEST_F(HubModel, SaysThatTheCacheCannotBeWritten) {
  serve();
  write_text_file(folder_ / "file", "");
  settings_.cache = folder_ / "file" / "hub";
  expect_error(ExitCode::kIoError, {"file/hub", "HF_HOME or HF_HUB_CACHE sets another folder"},
               [&] { resolve(); });
}

TEST_F(HubModel, PrivateWithoutTokenSaysHowToLogIn) {
  repo_.token = "hf_secret";
  serve();
  expect_error(ExitCode::kNoInput,
               {"org/tiny: neither a local path nor a public model at " + server_.endpoint(),
                "set HF_TOKEN, or log in with 'hf auth login'", "found nowhere"},
               [&] { resolve(); });
}

TEST_F(HubModel, WithARejectedTokenSaysWhichOne) {
  serve();
  settings_.token = "hf_old";
  settings_.token_source = "HF_TOKEN";
  server_.set_hook([](const HubServer::Request&, HubServer::Reply* reply) {
    *reply = {.status = 401, .headers = {{"X-Error-Message", "Invalid credentials in Authorization header"}}};
  });
  expect_error(ExitCode::kNoInput, {"the Hub rejects the token from HF_TOKEN"}, [&] { resolve(); });
}

TEST_F(HubModel, GatedSaysWhereToAskForAccess) {
  repo_.token = "hf_secret";
  repo_.is_gated = true;
  serve();
  expect_error(ExitCode::kNoInput,
               {"org/tiny: is gated: ask for access at " + server_.endpoint() + "/org/tiny", "HF_TOKEN"},
               [&] { resolve(); });
  settings_.token = "hf_other";
  settings_.token_source = "/home/me/token";
  expect_error(ExitCode::kNoInput,
               {"is gated, and the account of the token from /home/me/token has no access",
                server_.endpoint() + "/org/tiny"},
               [&] { resolve(); });
}

TEST_F(HubModel, ThatDoesNotExistNamesTheNearestOne) {
  serve();
  expect_error(ExitCode::kNoInput,
               {"org/tinny: neither a local path nor a public model", "did you mean 'org/tiny'?"},
               [&] { resolve_model("org/tinny", ModelFiles::kAll, settings_); });
  settings_.token = "hf_any";
  expect_error(ExitCode::kNoInput,
               {"org/tinny: neither a local path nor a model", "did you mean 'org/tiny'?"},
               [&] { resolve_model("org/tinny", ModelFiles::kAll, settings_); });
  expect_error(ExitCode::kNoInput, {"org/tiny: has no revision 'mian'", "did you mean 'main'?"},
               [&] { resolve_model("org/tiny@mian", ModelFiles::kAll, settings_); });
}

TEST_F(HubModel, WithoutSafetensorsSaysWhatItHas) {
  repo_.files.erase("model.safetensors");
  repo_.files.erase("original/model.safetensors");
  serve();
  expect_error(ExitCode::kNoInput,
               {"org/tiny: expected weights in .safetensors files", "only PyTorch's .bin"},
               [&] { resolve(); });
}

TEST_F(HubModel, FromAnUnknownHostSaysWhatToCheck) {
  settings_.endpoint = "http://no-such-host.invalid";
  expect_error(ExitCode::kIoError,
               {"org/tiny: neither a local path nor in the cache", "http://no-such-host.invalid",
                "check the network and HF_ENDPOINT", "HF_HUB_OFFLINE=1"},
               [&] { resolve(); });
}

TEST_F(HubModel, OverTlsWithAServerThatHasNoneIsAnError) {
  settings_.endpoint = "https" + server_.endpoint().substr(4);
  expect_error(ExitCode::kIoError, {settings_.endpoint, "no secure connection", "SSL_CERT_FILE"},
               [&] { resolve(); });
}

// A list of files whose pages have no end: each case says what the next page of page `number` is, and its
// files.
TEST_F(HubModel, WhoseListOfFilesDoesNotEndIsAnError) {
  serve();
  const std::string first = "/api/models/org/tiny/tree/";
  const auto file = [](const std::string& path) {
    return fmt::format(R"([{{"type":"file","path":"{}","size":1,"oid":""}}])", path);
  };
  struct Case {
    std::string what, error;
    std::function<std::string(int number)> next, files;
  };
  const auto itself = [&](int) { return first + "x?recursive=true"; };
  const auto another = [&](int number) { return first + "x?page=" + std::to_string(number); };
  const Case cases[] = {
      {"the next page is the same", "back to an earlier one", itself,
       [&](int n) { return file(std::to_string(n)); }},
      {"pages without files", "10 pages so far, the last of them empty", another, [](int) { return "[]"; }},
      {"the same files again", "lists 'a' twice", another, [&](int) { return file("a"); }},
      {"ever more files", "does not end: 1000 pages so far", another,
       [&](int n) { return file(std::to_string(n)); }},
  };
  for (const Case& of : cases) {
    SCOPED_TRACE(of.what);
    std::atomic<int> number = 0;
    server_.set_hook([&](const HubServer::Request& request, HubServer::Reply* reply) {
      if (!request.target.starts_with(first)) return;
      const int n = number++;
      *reply = {.headers = {{"Link", fmt::format("<{}>; rel=\"next\"", of.next(n))}},
                .body = std::make_shared<const std::string>(of.files(n))};
    });
    expect_error(ExitCode::kBadData, {of.error}, [&] { resolve(); });
  }
}

TEST_F(HubModel, ThatRedirectsForEverIsAnError) {
  serve();
  int64_t number = 0;
  for (const bool is_same : {true, false}) {
    server_.set_hook([&](const HubServer::Request& request, HubServer::Reply* reply) {
      if (request.target.find("/revision/") == std::string::npos &&
          request.target.find("again") == std::string::npos)
        return;
      *reply = {.status = 302,
                .headers = {{"Location", is_same ? request.target : fmt::format("/again{}", number++)}}};
    });
    expect_error(ExitCode::kBadData, {"redirect"}, [&] { resolve(); });
  }
  server_.set_hook([&](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.is_storage) *reply = {.status = 302, .headers = {{"Location", request.target}}};
  });
  expect_error(ExitCode::kBadData, {"org/tiny", "302"}, [&] { resolve(); });
}

// Answers that never end, by their size or by their slowness.
TEST_F(HubModel, WhoseAnswersDoNotEndIsAnError) {
  serve();
  const auto answers = [&](const HubServer::Reply& answer) {
    server_.set_hook([answer](const HubServer::Request& request, HubServer::Reply* reply) {
      if (request.target.find("/revision/") != std::string::npos) *reply = answer;
    });
  };
  answers({.headers = {}, .body = std::make_shared<const std::string>((size_t{64} << 20) + 1, ' ')});
  expect_error(ExitCode::kIoError, {"/revision/main", "larger than 64.0 MiB"}, [&] { resolve(); });
  HubServer::Reply many;
  for (int i = 0; i < 20'000; ++i) many.headers.emplace_back("X-" + std::to_string(i), std::string(100, 'x'));
  answers(many);
  expect_error(ExitCode::kIoError, {"/revision/main", "headers are larger than 256.0 KiB"},
               [&] { resolve(); });
  answers({.headers = {},
           .body = std::make_shared<const std::string>("[" + std::string(100'000, ' ') + "]"),
           .max_bytes_per_second = 50});
  settings_.timeout = std::chrono::seconds(1);
  settings_.max_retries = 1;
  settings_.min_bytes_per_second = 1000;
  expect_error(ExitCode::kIoError, {"no data for 1 s, or hardly any", "HF_HUB_DOWNLOAD_TIMEOUT"},
               [&] { resolve(); });
  // A storage that closes every connection after a byte.
  settings_.min_bytes_per_second = 1;
  server_.set_hook([](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.is_storage) reply->cut_after_bytes = 1;
  });
  expect_error(ExitCode::kIoError, {"connection broke"}, [&] { resolve(); });
}

TEST_F(HubModel, FromAServerThatIsNoHubIsAnError) {
  server_.set_hook([](const HubServer::Request&, HubServer::Reply* reply) {
    reply->status = 200;
    reply->body = std::make_shared<const std::string>("<html>");
  });
  expect_error(ExitCode::kBadData, {"/api/models/org/tiny/revision/main", "line 1"}, [&] { resolve(); });
}

}  // namespace
}  // namespace tessera
