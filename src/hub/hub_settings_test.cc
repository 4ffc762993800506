#include "hub/hub_settings.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "expect_error.h"
#include "test_folder.h"

namespace tessera {
namespace {

HubSettings settings(const std::map<std::string, std::string>& variables) {
  return hub_settings([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(HubSettings, FindTheCacheAsHuggingfaceHubDoes) {
  EXPECT_EQ(settings({{"HOME", "/me"}}).cache, "/me/.cache/huggingface/hub");
  EXPECT_EQ(settings({{"HOME", "/me"}, {"XDG_CACHE_HOME", "/x"}}).cache, "/x/huggingface/hub");
  EXPECT_EQ(settings({{"HOME", "/me"}, {"HF_HOME", "~/hf"}}).cache, "/me/hf/hub");
  EXPECT_EQ(settings({{"HF_HOME", "$SCRATCH/hf"}, {"SCRATCH", "/s"}}).cache, "/s/hf/hub");
  EXPECT_EQ(settings({{"HF_HOME", "/hf"}, {"HF_HUB_CACHE", "${A}/c"}, {"A", "/a"}}).cache, "/a/c");
  EXPECT_EQ(settings({{"HF_HOME", "/hf"}, {"HUGGINGFACE_HUB_CACHE", "/old"}}).cache, "/old");
  EXPECT_EQ(settings({{"HF_HOME", "/$NOWHERE/hf"}}).cache, "/$NOWHERE/hf/hub");
}

TEST(HubSettings, TakeTheTokenFromTheEnvironmentThenFromTheFile) {
  const TestFolder folder;
  const std::string file = folder.write("token", "hf_file\n").string();
  const std::map<std::string, std::string> home = {{"HF_HOME", folder.path().string()}};
  EXPECT_EQ(settings(home).token, "hf_file");
  EXPECT_EQ(settings(home).token_source, file);
  std::map<std::string, std::string> variables = home;
  variables["HUGGING_FACE_HUB_TOKEN"] = "hf_legacy";
  EXPECT_EQ(settings(variables).token, "hf_legacy");
  variables["HF_TOKEN"] = " hf_environment\n";
  EXPECT_EQ(settings(variables).token, "hf_environment");
  EXPECT_EQ(settings(variables).token_source, "HF_TOKEN");
  variables["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1";
  EXPECT_EQ(settings(variables).token, "");
  EXPECT_EQ(settings({{"HF_TOKEN_PATH", file}}).token, "hf_file");
  EXPECT_NE(settings({{"HF_TOKEN_PATH", "/nowhere"}}).token_source.find("/nowhere"), std::string::npos);
}

TEST(HubSettings, RefuseATokenThatWouldAddHeaders) {
  expect_error(ExitCode::kBadConfig, {"HF_TOKEN: expected a token"}, [] {
    settings({{"HF_TOKEN", "a\r\nHost: b"}});
  });
}

TEST(HubSettings, TakeEndpointOfflineAndTimeout) {
  EXPECT_EQ(settings({}).endpoint, "https://huggingface.co");
  EXPECT_EQ(settings({{"HF_ENDPOINT", "http://mirror:80//"}}).endpoint, "http://mirror:80");
  expect_error(ExitCode::kBadConfig, {"HF_ENDPOINT", "file:///x"}, [] {
    settings({{"HF_ENDPOINT", "file:///x"}});
  });
  EXPECT_FALSE(settings({{"HF_HUB_OFFLINE", "0"}}).offline);
  EXPECT_TRUE(settings({{"HF_HUB_OFFLINE", "1"}}).offline);
  EXPECT_TRUE(settings({{"TRANSFORMERS_OFFLINE", "Yes"}}).offline);
  EXPECT_EQ(settings({{"HF_HUB_DOWNLOAD_TIMEOUT", "60"}}).timeout, std::chrono::seconds(60));
  expect_error(ExitCode::kBadConfig, {"HF_HUB_DOWNLOAD_TIMEOUT", "'soon'"}, [] {
    settings({{"HF_HUB_DOWNLOAD_TIMEOUT", "soon"}});
  });
}

}  // namespace
}  // namespace tessera
