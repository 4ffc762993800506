// Chooses the wanted files of a repository.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hub/hub.h"
#include "hub/hub_answers.h"

namespace tessera {

// Globs of `data_files` in a data set's card: '*' and '?' match no slash, "**" any text and "**/" also none,
// [abc] and [!a-z] one character of a set; takes time in proportion to the product of both lengths.
bool matches_path_glob(std::string_view glob, std::string_view path);

// Endings of data files, also before .gz or .zst, and the name of the format in Hugging Face's datasets
// (_EXTENSION_TO_MODULE).
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

// Whether training can do without this file, such as merges.txt beside tokenizer.json.
bool is_for_other_programs(std::string_view path);

// The files of a pull request. kNoInput if a pattern of `include` matches nothing, with the nearest name.
std::vector<std::string> choose_files(const std::vector<HubFile>& files, const PullRequest& request);

}  // namespace tessera
