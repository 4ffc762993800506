// Describes the content of a safetensors or GGUF file or a model folder as text or JSON.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

// For a safetensors file: one line per tensor (name, type, shape, bytes), the metadata and the totals. For a
// folder also a summary of its config.json and the shard of each tensor. Ends with a newline. Errors as
// SafetensorsModel::open and read_model_config; a folder may lack either weights or config.json. For a GGUF
// file the metadata, the tensors and the totals; errors as read_gguf.
std::string inspect(const std::filesystem::path& path);
// The description as a JSON object: path, config (of a folder that has config.json, as it is there),
// metadata, tensors (name, dtype, shape, file, num_elements, bytes) and their totals num_elements and bytes.
// A folder without weights has no tensors.
std::string inspect_json(const std::filesystem::path& path);

}  // namespace tessera
