// What a model folder says about itself, for the metadata of GGUF.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

// The value of `license:` in the front matter of README.md; "" if there is none.
std::string license_of(const std::filesystem::path& model);

// general.name as llama.cpp's convert_hf_to_gguf.py derives it: `name:` or `model_name:` in the front matter
// of README.md as it is; else, as a title, the name in `_name_or_path` of config.json if that is no path
// ("org/name"); else the folder's. An empty one counts as none.
std::string gguf_name_of(const std::filesystem::path& model);

// "tiny-llama-v1.1-7b-chat" -> "Tiny Llama v1.1 7b Chat".
std::string title_of(const std::string& name);

}  // namespace tessera
