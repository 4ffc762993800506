// Downloads from a server that behaves like the Hub, into the cache of huggingface_hub.
#include "hub/hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "expect_error.h"
#include "io/file.h"
#include "support/web/hub_test_support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr const char* kCommit = "1234567890123456789012345678901234567890";

TEST_F(HubModel, IsInTheLayoutOfHuggingfaceHub) {
  serve();
  const fs::path snapshot = resolve();
  EXPECT_EQ(snapshot, cache() / "snapshots" / kCommit);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(snapshot)) names.insert(entry.path().filename().string());
  EXPECT_THAT(names, UnorderedElementsAre("config.json", "tokenizer.json", "model.safetensors"));
  EXPECT_EQ(read_text_file(cache() / "refs" / "main"), kCommit);
  EXPECT_EQ(fs::read_symlink(snapshot / "config.json"), "../../blobs/" + git_sha1_of("{}"));
  EXPECT_EQ(fs::read_symlink(snapshot / "model.safetensors"), "../../blobs/" + sha256_of(weights_));
  EXPECT_TRUE(fs::exists(cache() / "trees" / (std::string(kCommit) + ".json")));
  EXPECT_TRUE(fs::exists(folder_ / "hub" / "CACHEDIR.TAG"));
  EXPECT_FALSE(fs::exists(incomplete()));
  expect_weights();
  EXPECT_GT(server_.count("/blob/" + sha256_of(weights_)), 100) << "in ranges";
}

TEST_F(HubModel, InTheCacheCostsOneRequest) {
  serve();
  resolve();
  const size_t before = server_.requests().size();
  expect_weights();
  EXPECT_EQ(server_.requests().size(), before + 1);
}

TEST_F(HubModel, OfACommitInTheCacheCostsNone) {
  serve();
  resolve();
  const size_t before = server_.requests().size();
  EXPECT_EQ(resolve_model("org/tiny@" + std::string(kCommit), ModelFiles::kAll, settings_),
            cache() / "snapshots" / kCommit);
  EXPECT_EQ(server_.requests().size(), before);
}

TEST_F(HubModel, WithoutWeightsDownloadsNone) {
  serve();
  const fs::path snapshot = resolve_model("org/tiny", ModelFiles::kNoWeights, settings_);
  EXPECT_TRUE(fs::exists(snapshot / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(snapshot / "model.safetensors"));
}

TEST_F(HubModel, ThatExistsAsAPathIsThePath) {
  EXPECT_EQ(resolve_model(folder_.path().string(), ModelFiles::kAll, settings_), folder_.path());
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(HubModel, SendsTheTokenToTheHubOnly) {
  repo_.token = "hf_secret";
  serve();
  settings_.token = "hf_secret";
  resolve();
  for (const HubServer::Request& request : server_.requests())
    EXPECT_EQ(request.header("authorization"), request.is_storage ? "" : "Bearer hf_secret")
        << request.target;
  EXPECT_GT(server_.storage_bytes(), 0);
}

TEST_F(HubModel, ListsInPages) {
  server_.set_page_size(2);
  serve();
  expect_weights();
  EXPECT_EQ(server_.count("/tree/"), 3);
}

TEST_F(HubModel, FromAServerWithoutTreesUsesSiblings) {
  serve();
  server_.set_hook([](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.target.find("/tree/") != std::string::npos) *reply = {.status = 404, .headers = {}};
  });
  expect_weights();
}

TEST_F(HubModel, ResumesWhatAnInterruptedDownloadLeft) {
  serve();
  create_folder(blob().parent_path());
  write_text_file(incomplete(), weights_.substr(0, 1'000'000));
  expect_weights();
  EXPECT_EQ(server_.storage_bytes(), 234'567 + 5000);
}

TEST_F(HubModel, FetchesDamagedRemainsAnew) {
  serve();
  create_folder(blob().parent_path());
  write_text_file(incomplete(), "x" + weights_.substr(1, 999'999));
  expect_weights();
  fs::remove_all(cache());
  create_folder(blob().parent_path());
  write_text_file(incomplete(), weights_ + "more");
  expect_weights();
}

// At any time the file on disk is a prefix of the whole file: huggingface_hub appends to it.
TEST_F(HubModel, LeavesAFirstPartWhenTheServerGoesAway) {
  serve();
  settings_.max_retries = 0;
  std::atomic<int> left = 40;
  server_.set_hook([&](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.is_storage && --left < 0) reply->cut_after_bytes = 10;
  });
  expect_error(ExitCode::kIoError, {"127.0.0.1", "the connection broke"}, [&] {
    settings_.max_retries = 0;
    try {
      resolve();
    } catch (const Error& error) {
      std::string text = error.what();
      if (const size_t at = text.find("localhost"); at != std::string::npos) text.replace(at, 9, "127.0.0.1");
      throw Error(error.code(), text);
    }
  });
  const std::string arrived = read_text_file(incomplete());
  EXPECT_GT(arrived.size(), 0U);
  EXPECT_TRUE(weights_.starts_with(arrived));
  server_.set_hook({});
  const int64_t before = server_.storage_bytes();
  expect_weights();
  EXPECT_LE(server_.storage_bytes() - before, std::ssize(weights_) - std::ssize(arrived) + 5000);
}

TEST_F(HubModel, GoesOnAfterCutAnswers) {
  serve();
  server_.set_hook([](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.is_storage) reply->cut_after_bytes = 6000;
  });
  expect_weights();
}

TEST_F(HubModel, WaitsAndRetriesAfterServerErrors) {
  serve();
  std::mutex mutex;
  std::map<std::string, int> counts;
  server_.set_hook([&](const HubServer::Request& request, HubServer::Reply* reply) {
    const std::lock_guard lock(mutex);
    const int count = ++counts[request.method + request.target + request.header("range")];
    if (count <= 2) *reply = {.status = 503, .headers = {}};
  });
  expect_weights();
}

TEST_F(HubModel, HonoursRetryAfter) {
  serve();
  std::atomic<int> count = 0;
  server_.set_hook([&](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.target.find("/revision/") != std::string::npos && count++ == 0)
      *reply = {.status = 429, .headers = {{"Retry-After", "1"}}};
  });
  const auto start = std::chrono::steady_clock::now();
  expect_weights();
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST_F(HubModel, GivesUpAfterTooManyRequests) {
  serve();
  server_.set_hook([](const HubServer::Request&, HubServer::Reply* reply) {
    *reply = {.status = 429, .headers = {{"Retry-After", "3600"}}};
  });
  expect_error(ExitCode::kIoError, {"org/tiny: the Hub answers 429, too many requests", "HF_TOKEN"},
               [&] { resolve(); });
}

TEST_F(HubModel, RecoversFromAStalledConnection) {
  serve();
  settings_.timeout = std::chrono::seconds(1);
  std::atomic<int> count = 0;
  server_.set_hook([&](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.is_storage && count++ == 3) {
      reply->cut_after_bytes = 100;
      reply->stalls = true;
    }
  });
  expect_weights();
}

TEST_F(HubModel, ComesFromAServerWithoutRanges) {
  serve();
  server_.set_hook([](const HubServer::Request&, HubServer::Reply* reply) { reply->takes_ranges = false; });
  create_folder(blob().parent_path());
  write_text_file(incomplete(), weights_.substr(0, 500'000));
  expect_weights();
}

TEST_F(HubModel, RenewsAnExpiredAddress) {
  serve();
  std::atomic<int> count = 0;
  server_.set_hook([&](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.is_storage && count++ == 20) *reply = {.status = 403, .headers = {}};
  });
  expect_weights();
}

TEST_F(HubModel, WithWrongBytesOnceIsFetchedAgain) {
  serve();
  std::atomic<int> count = 0;
  const auto wrong = std::make_shared<const std::string>(random_bytes(weights_.size(), 3));
  server_.set_hook([&](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.is_storage && reply->body->size() == wrong->size() && count++ == 5) reply->body = wrong;
  });
  expect_weights();
}

TEST_F(HubModel, WithWrongBytesTwiceIsAnErrorThatLeavesNone) {
  serve();
  const auto wrong = std::make_shared<const std::string>(random_bytes(weights_.size(), 3));
  server_.set_hook([&](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.is_storage && reply->body->size() == wrong->size()) reply->body = wrong;
  });
  expect_error(
      ExitCode::kIoError,
      {"org/tiny: model.safetensors: damaged on its way twice", sha256_of(weights_), sha256_of(*wrong)},
      [&] { resolve(); });
  EXPECT_FALSE(fs::exists(incomplete()));
  EXPECT_FALSE(fs::exists(blob()));
}

TEST_F(HubModel, WithWrongBytesInASmallFileIsAnError) {
  serve();
  server_.set_hook([&](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.target.ends_with("/config.json") && request.method == "GET")
      reply->body = std::make_shared<const std::string>("[]");
  });
  expect_error(ExitCode::kIoError, {"config.json: damaged on its way twice", git_sha1_of("{}")},
               [&] { resolve(); });
}

TEST_F(HubModel, WithFewerBytesThanAnnouncedIsAnError) {
  serve();
  settings_.max_retries = 2;
  server_.set_hook([&](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.is_storage && reply->body->size() == weights_.size())
      reply->body = std::make_shared<const std::string>(weights_.substr(0, 600'000));
  });
  expect_error(ExitCode::kIoError, {"model.safetensors", "fewer bytes than it announced (416)"},
               [&] { resolve(); });
}

// One of them downloads, whichever it is; the others find the files.
TEST_F(HubModel, IsDownloadedOnceByManyAtTheSameTime) {
  serve();
  server_.set_hook([](const HubServer::Request& request, HubServer::Reply* reply) {
    if (request.is_storage) reply->max_bytes_per_second = 200'000;
  });
  std::atomic<int> num_waiting = 0;
  {
    std::vector<std::jthread> users;
    for (int i = 0; i < 4; ++i) {
      users.emplace_back([&] {
        bool waited = false;
        resolve_model("org/tiny", ModelFiles::kAll, settings_,
                      [&](const HubProgress& progress) { waited = waited || progress.is_waiting; });
        num_waiting += waited ? 1 : 0;
      });
    }
  }
  EXPECT_EQ(server_.storage_bytes(), std::ssize(weights_) + 5000);
  EXPECT_GE(num_waiting, 1);
  expect_weights();
}

TEST_F(HubModel, ReportsProgress) {
  serve();
  HubProgress last;
  resolve_model("org/tiny", ModelFiles::kAll, settings_,
                [&](const HubProgress& progress) { last = progress; });
  EXPECT_EQ(last.name, "org/tiny");
  EXPECT_EQ(last.num_files_done, 3);
  EXPECT_EQ(last.done_bytes, std::ssize(weights_) + 5000 + 2);
  EXPECT_EQ(last.total_bytes, last.done_bytes);
}

TEST_F(HubModel, OfflineComesFromTheCacheOnly) {
  serve();
  settings_.offline = true;
  expect_error(ExitCode::kNoInput,
               {"org/tiny: neither a local path nor in the cache", "HF_HUB_OFFLINE is set"},
               [&] { resolve(); });
  settings_.offline = false;
  resolve();
  settings_.offline = true;
  const size_t before = server_.requests().size();
  expect_weights();
  EXPECT_EQ(server_.requests().size(), before);
  fs::remove(cache() / "snapshots" / kCommit / "model.safetensors");
  expect_error(ExitCode::kNoInput, {"1 of 3 files are not in the cache", "model.safetensors"},
               [&] { resolve(); });
}

TEST_F(HubModel, OfflineDoesWithoutFilesForOtherPrograms) {
  repo_.files["merges.txt"] = "a b\n";
  serve();
  // snapshot_download with a pattern leaves this state: the tree has all files.
  fs::remove(resolve() / "merges.txt");
  settings_.offline = true;
  expect_weights();
  fs::remove(resolve() / "tokenizer.json");
  expect_error(ExitCode::kNoInput, {"1 of 3 files are not in the cache", "tokenizer.json"},
               [&] { resolve(); });
}

TEST_F(HubModel, ThatPythonDownloadedIsUsedAsItIs) {
  const fs::path snapshot = cache() / "snapshots" / kCommit;
  create_folder(snapshot);
  create_folder(cache() / "blobs");
  create_folder(cache() / "refs");
  write_text_file(cache() / "refs" / "main", kCommit);
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    write_text_file(cache() / "blobs" / name, repo_.files.at(name));
    fs::create_symlink(fs::path("../../blobs") / name, snapshot / name);
  }
  settings_.offline = true;
  expect_weights();
  settings_.offline = false;
  serve();
  expect_weights();
  EXPECT_EQ(server_.storage_bytes(), 0);
}

TEST_F(HubModel, WithoutTheHubComesFromTheCache) {
  serve();
  resolve();
  server_.set_hook(
      [](const HubServer::Request&, HubServer::Reply* reply) { *reply = {.status = 500, .headers = {}}; });
  expect_weights();
}

TEST_F(HubModel, InAReadOnlyCacheIsUsed) {
  serve();
  resolve();
  fs::remove(cache() / "refs" / "main");
  write_text_file(cache() / "refs-file", "");
  fs::remove_all(cache() / "refs");
  fs::rename(cache() / "refs-file", cache() / "refs");  // no folder can be made here
  expect_weights();
}

TEST_F(HubModel, PullTakesWhatIsIncluded) {
  serve();
  PullRequest request = {repo_.name, {"*.bin", "original/"}, {"*.safetensors"}};
  const fs::path snapshot = pull(request, settings_);
  EXPECT_EQ(read_text_file(snapshot / "pytorch_model.bin"), weights_);
  EXPECT_FALSE(fs::exists(snapshot / "original"));
  request.include = {"tokeniser.json"};
  expect_error(ExitCode::kNoInput, {"no file matches 'tokeniser.json'; did you mean 'tokenizer.json'?"},
               [&] { pull(request, settings_); });
}

TEST_F(HubModel, WithARevisionThatHasASlash) {
  repo_.name.revision = "refs/pr/7";
  serve();
  resolve_model("org/tiny@refs/pr/7", ModelFiles::kAll, settings_);
  EXPECT_EQ(read_text_file(cache() / "refs" / "refs" / "pr" / "7"), kCommit);
}

}  // namespace
}  // namespace tessera
