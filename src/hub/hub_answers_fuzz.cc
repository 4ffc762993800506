// Answers of a hub are refused in one line or parsed into names that stay in their folder: listings, headers,
// the cards of data sets and file names.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "hub/dataset_splits.h"
#include "hub/file_choice.h"
#include "hub/http.h"
#include "hub/hub_answers.h"
#include "support/fuzz_support.h"

namespace tessera {
namespace {

constexpr const char* kWords =
    R"~({"sha":␠" "siblings":␠[ {"rfilename":␠" ../ "type":␠"file" "path":␠" "size":␠ "lfs":␠{"oid" <http://
    >;␠rel="next" bytes␠0-1/2 W/" ---␤configs:␤ -␠config_name:␠ ␠␠data_files:␤ ␠␠-␠split:␠train␤
    ␠␠␠␠path:␠ **/ [!a-z] &a␠ *a data/train-00000-of-00001.parquet␤ "format_version":␠1 r=0;t= ␤---␤
    train/ [ {)~"
    " \xff";

// The first byte says what is parsed.
const std::string kSeeds[] = {
    "0{\"sha\": \"abc\", \"siblings\": [{\"rfilename\": \"config.json\"}]}",
    "1[{\"type\": \"file\", \"path\": \"a\", \"oid\": \"0123456789012345678901234567890123456789\", "
    "\"size\": 7}]",
    "2{\"format_version\": 1, \"files\": {\"a\": {\"size\": 1, \"blob_id\": \"\"}}}",
    "3<http://hub/x?cursor=a>; rel=\"next\"",
    "4---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: [a/*.csv, "
    "\"b/**\"]\n---\na/x.csv\nb/c/d.json\n",
    "5data/train-00000-of-00001.parquet\ndata/test-00000-of-00001.parquet\n",
    "6**/*[-._]train[!a]*\na/b-train_.x"};

void check_files(const std::vector<HubFile>& files) {
  for (const HubFile& file : files) TESSERA_CHECK(is_safe_path(file.path), "{}", file.path);
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (is_safe_path(line)) lines.emplace_back(line);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

void check_splits(std::string_view text) {
  const std::vector<std::string> paths = lines_of(text);
  const std::vector<DatasetConfig> configs = parse_dataset_card(text, "card");
  for (const std::vector<DatasetConfig>& some : {configs, converted_configs(paths)}) {
    DatasetName name = {{RepoType::kDataset, "org/name"}, some.empty() ? "" : some.back().name, ""};
    for (const std::string& file : choose_split(name, some, paths))
      TESSERA_CHECK(std::binary_search(paths.begin(), paths.end(), file) && is_data_file(file), "{}", file);
  }
}

void check_headers(std::string_view text) {
  const std::string header(text);
  redirected_url("http://hub/a", next_page(text));
  if (const auto etag = normalized_etag(text))
    TESSERA_CHECK(is_safe_path(*etag) && etag->find('/') == std::string::npos);
  if (const auto range = parse_content_range(text))
    TESSERA_CHECK(range->begin >= 0 && range->begin < range->end);
  retry_after({{"retry-after", header}});
  retry_after({{"ratelimit", header}});
}

void check(std::string_view input) {
  const std::string_view text = input.substr(1);
  switch (input[0]) {
    case '0':
      return check_files(parse_repo_info(text, "api").files);
    case '1': {
      std::vector<HubFile> files;
      parse_tree_page(text, "api", &files);
      check_files(files);
      const auto again = parse_tree_cache(tree_cache_text(files));
      TESSERA_CHECK(again && again->size() <= files.size());
      return;
    }
    case '2':
      if (const auto files = parse_tree_cache(text)) check_files(*files);
      parse_ref_names(text);
      parse_repo_ids(text);
      return;
    case '6':
      matches_path_glob(text.substr(0, text.find('\n')), text.substr(std::min(text.size(), text.find('\n'))));
      return;
    default:
      check_headers(text);
      return check_splits(text);
  }
}

}  // namespace
}  // namespace tessera

TESSERA_FUZZ(tessera::kWords, tessera::kSeeds, tessera::check, tessera::ExitCode::kBadData,
             tessera::ExitCode::kNoInput)
