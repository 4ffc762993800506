// Names of the weight files in a model folder, as in Hugging Face.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

inline constexpr const char* kSingleFileName = "model.safetensors";
inline constexpr const char* kIndexFileName = "model.safetensors.index.json";

struct ShardNumber {
  int64_t number;  // from 1
  int64_t count;
};

// "model-00001-of-00003.safetensors"
std::string shard_name(int64_t number, int64_t count);
std::optional<ShardNumber> parse_shard_name(const std::string& name);  // nullopt for any other name

}  // namespace tessera
