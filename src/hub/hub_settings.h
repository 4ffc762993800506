// Where the Hub and its cache are, and with which token it is asked: the variables of huggingface_hub.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace tessera {

struct HubSettings {
  std::string endpoint = "https://huggingface.co";  // HF_ENDPOINT, without a slash at its end
  std::filesystem::path cache;                      // HF_HUB_CACHE, or HF_HOME/hub
  std::string token;                                // "" = none
  std::string token_source;          // "HF_TOKEN", or the token's file; of no token, where it was sought
  bool offline = false;              // HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE
  std::string ca_file;               // SSL_CERT_FILE, REQUESTS_CA_BUNDLE; "" = the system's
  std::chrono::seconds timeout{10};  // to connect, and without a byte: HF_HUB_DOWNLOAD_TIMEOUT
  int64_t min_bytes_per_second = 1;  // less for as long counts as nothing
  int connections = 8;               // at the same time
  // Ranges of a large file arrive in any order and are written in order: up to connections + 4 of them wait
  // in memory.
  int64_t range_bytes = 8 << 20;
  int max_retries = 5;                          // in a row without a new byte
  std::chrono::milliseconds first_retry{1000};  // doubles up to eight times this
  std::chrono::seconds max_retry_after{300};    // longer waits that the Hub asks for are errors
};

// Reads a variable; nullopt if it is not set.
using HubVariables = std::function<std::optional<std::string>(const std::string&)>;

// Error(kNoInput) if the token's file cannot be read, kBadConfig for a value that is not valid. The token
// file is the one of `hf auth login`: HF_TOKEN_PATH, or HF_HOME/token.
HubSettings hub_settings(const HubVariables& variables);
HubSettings hub_settings();  // of this process

}  // namespace tessera
