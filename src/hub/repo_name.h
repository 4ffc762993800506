// Names of models and data sets on the Hugging Face Hub, and how they differ from paths.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera {

enum class RepoType { kModel, kDataset };

struct RepoName {
  RepoType type = RepoType::kModel;
  std::string id;                 // "org/name"
  std::string revision = "main";  // a branch, a tag or a commit

  // "org/name", with "@revision" unless that is main.
  std::string text() const;
  bool operator==(const RepoName&) const = default;
};

struct DatasetName {
  RepoName repo;
  std::string config;  // "" = the default one
  std::string split;   // "" = train, or the only one
  bool operator==(const DatasetName&) const = default;
};

// A text that exists as a path is a path. Any other is a name on the Hub if it has one of the forms
//   model     org/name[@revision]
//   data set  org/name[@revision][:config][/split]
// where org and name consist of letters, digits, '-', '_' and '.', neither begin nor end with '-' or '.', and
// name does not end like a file (.json, .txt, .parquet, .gz, ...). A revision is one word, refs/pr/N or
// refs/convert/NAME; any other with a slash is written with %2F. nullopt otherwise.
std::optional<RepoName> hub_model_name(const std::string& text);
std::optional<DatasetName> hub_dataset_name(const std::string& text);

// Whether the text is "org/name", whatever exists on disk.
bool is_repo_id(std::string_view text);
// Whether the text can be a branch, tag or commit: words separated by slashes.
bool is_revision_name(std::string_view text);

}  // namespace tessera
