// What a safetensors file or a model folder holds, as text for people.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

// A safetensors file: one line per tensor (name, type, shape, bytes), metadata, and the totals. A folder: the
// summary of its config.json besides, and the shard of each tensor. Several lines, the last with a newline.
// Errors are those of SafetensorsModel::open and read_model_config; a folder without weights is listed by its
// config.json alone, a folder without config.json by its weights alone.
std::string inspect(const std::filesystem::path& path);

}  // namespace tessera
