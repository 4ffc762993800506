// Which files of a repository are wanted.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hub/hub.h"
#include "hub/hub_answers.h"

namespace tessera {

// '*' and '?' match no slash, "**" matches any text and "**/" also none, [abc] and [!a-z] one character of a
// set; takes time in proportion to the product of both lengths. As in the `data_files` of a data set's card.
bool matches_path_glob(std::string_view glob, std::string_view path);

// What the names of data files end with, also with .gz or .zst behind it, and what Hugging Face's datasets
// calls the format (_EXTENSION_TO_MODULE).
struct DataEnding {
  std::string_view ending;
  std::string_view format;
};
inline constexpr DataEnding kDataEndings[] = {{".parquet", "parquet"},
                                              {".jsonl", "json"},
                                              {".json", "json"},
                                              {".csv", "csv"},
                                              {".txt", "text"},
                                              {".tsv", "csv"},
                                              {".safetensors", "safetensors"},
                                              {".ndjson", "json"}};
// nullptr for other files.
const DataEnding* data_ending_of(std::string_view path);

// Whether it is a file with one of kDataEndings; not the descriptions of a data set, hidden files and
// folders, and folders that begin with "__".
bool is_data_file(std::string_view path);

// The files that training a model needs.
std::vector<std::string> choose_model_files(const std::vector<HubFile>& files, ModelFiles wanted);

// Whether training does without this one of them, such as merges.txt beside tokenizer.json.
bool is_for_other_programs(std::string_view path);

// Those of a pull request. kNoInput if a pattern of `include` matches nothing, with the nearest name.
std::vector<std::string> choose_files(const std::vector<HubFile>& files, const PullRequest& request);

}  // namespace tessera
