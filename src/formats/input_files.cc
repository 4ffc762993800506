#include "formats/input_files.h"

#include <glob.h>

#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

void append_folder(const fs::path& folder, std::vector<fs::path>* files) {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code status_error;  // a link that leads nowhere is not a regular file
    if (entry->is_regular_file(status_error)) files->push_back(entry->path());
  }
  if (error)
    fail_errno(ExitCode::kNoInput, error.value(), fmt::format("{}: cannot list folder", folder.string()));
}

std::vector<fs::path> glob_matches(const std::string& pattern) {
  glob_t matches = {};
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &matches);
  std::vector<fs::path> paths;
  for (size_t i = 0; i < matches.gl_pathc; ++i) paths.emplace_back(matches.gl_pathv[i]);
  globfree(&matches);
  if (result == GLOB_ABORTED)
    fail(ExitCode::kNoInput, "{}: a folder of this pattern cannot be read", pattern);
  if (result == GLOB_NOSPACE) throw std::bad_alloc();
  return paths;
}

void append_files_of(const std::string& pattern, std::vector<fs::path>* files) {
  const auto first = static_cast<std::ptrdiff_t>(files->size());
  std::error_code error;
  const fs::file_status status = fs::status(pattern, error);
  if (fs::is_directory(status)) {
    append_folder(pattern, files);
  } else if (fs::exists(status)) {
    files->emplace_back(pattern);
  } else if (pattern.find_first_of("*?[") == std::string::npos) {
    fail_errno(ExitCode::kNoInput, error ? error.value() : ENOENT,
               fmt::format("{}: cannot be read", printable(pattern)));
  } else if (pattern.find("**") != std::string::npos) {
    fail(ExitCode::kBadConfig, "{}: '**' is not supported: name the folder to read all files below it",
         printable(pattern));
  } else {
    for (const fs::path& match : glob_matches(pattern)) {
      if (fs::is_directory(match, error)) {
        append_folder(match, files);
      } else if (fs::is_regular_file(match, error)) {
        files->push_back(match);
      }
    }
  }
  std::sort(files->begin() + first, files->end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  if (static_cast<std::ptrdiff_t>(files->size()) == first) {
    fail(ExitCode::kNoInput, "{}: no file {}", printable(pattern),
         fs::is_directory(status) ? "below this folder" : "matches this pattern");
  }
}

}  // namespace

std::vector<fs::path> expand_input_files(const std::vector<std::string>& patterns) {
  if (patterns.empty()) fail(ExitCode::kBadConfig, "no input: name at least one file, folder or pattern");
  std::vector<fs::path> files;
  for (const std::string& pattern : patterns) append_files_of(pattern, &files);
  return files;
}

InputKind input_kind(const fs::path& path) {
  const std::string extension = lower_case(path.extension().string());
  if (extension == ".jsonl" || extension == ".ndjson" || extension == ".json") return InputKind::kJson;
  if (extension == ".safetensors") return InputKind::kPretokenized;
  return InputKind::kText;
}

}  // namespace tessera
