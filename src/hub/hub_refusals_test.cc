// What a user reads when a model cannot be had from the Hub.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "expect_error.h"
#include "hub/hub.h"
#include "io/file.h"
#include "support/hub_test_support.h"

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

TEST_F(HubModel, FromAServerThatIsNoHubIsAnError) {
  server_.set_hook([](const HubServer::Request&, HubServer::Reply* reply) {
    reply->status = 200;
    reply->body = std::make_shared<const std::string>("<html>");
  });
  expect_error(ExitCode::kBadData, {"/api/models/org/tiny/revision/main", "line 1"}, [&] { resolve(); });
}

}  // namespace
}  // namespace tessera
