// For tests of downloads: a model on a server that behaves like the Hub, and a cache.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>

#include "hub/hub.h"
#include "io/file.h"
#include "support/web/hub_server.h"
#include "test_folder.h"

namespace tessera {

inline std::string random_bytes(size_t size, unsigned seed) {
  std::minstd_rand random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random() >> 8);
  return text;
}

// Ranges are small, so that a file spans many.
class HubModel : public testing::Test {
 protected:
  HubModel() {
    repo_.name.id = "org/tiny";
    repo_.files = {{"config.json", "{}"},
                   {"tokenizer.json", random_bytes(5000, 1)},
                   {"model.safetensors", weights_},
                   {"pytorch_model.bin", weights_},
                   {"original/model.safetensors", weights_}};
    settings_ = server_.settings(folder_ / "hub");
    settings_.range_bytes = 10'000;
  }
  void serve() { server_.add(repo_); }
  std::filesystem::path resolve() { return resolve_model("org/tiny", ModelFiles::kAll, settings_); }
  std::filesystem::path cache() const { return folder_ / "hub" / "models--org--tiny"; }
  std::filesystem::path blob() const { return cache() / "blobs" / sha256_of(weights_); }
  std::filesystem::path incomplete() const { return blob().string() + ".incomplete"; }
  void expect_weights() { EXPECT_EQ(read_text_file(resolve() / "model.safetensors"), weights_); }

  const std::string weights_ = random_bytes(1'234'567, 2);
  TestFolder folder_{memory_folder()};
  HubServer server_;
  HubServer::Repo repo_;
  HubSettings settings_;
};

}  // namespace tessera
