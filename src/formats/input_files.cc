#include "formats/input_files.h"

#include <fnmatch.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "formats/file_kind.h"
#include "formats/json_problem.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 6> kTextExtensions = {".txt",      ".text", ".md",
                                                             ".markdown", ".rst",  ".tex"};
// Files that Hugging Face's datasets skips in a folder (FILES_TO_IGNORE in datasets/data_files.py), and those
// that Dataset.save_to_disk adds.
constexpr std::array<std::string_view, 6> kDescriptions = {
    "README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"};

struct UnsupportedFormat {
  std::string_view extension;
  std::string_view advice;
};
constexpr std::string_view kConvertToRecords =
    "convert it to .parquet, .csv or .jsonl, an object such as {\"text\": \"...\"} per line";
constexpr const char* kWriteText = "write its text into .txt files first";
constexpr std::string_view kUnpackFirst = "unpack it first";
constexpr std::string_view kExtract = "extract its text first";
constexpr UnsupportedFormat kUnsupported[] = {
    {".arrow", kConvertToRecords},
    {".feather", kConvertToRecords},
    {".orc", kConvertToRecords},
    {".avro", kConvertToRecords},
    {".xls", kConvertToRecords},
    {".xlsx", kConvertToRecords},
    {".tgz", kUnpackFirst},
    {".bz2", kUnpackFirst},
    {".xz", kUnpackFirst},
    {".lz4", kUnpackFirst},
    {".zip", kUnpackFirst},
    {".tar", kUnpackFirst},
    {".7z", kUnpackFirst},
    {".rar", kUnpackFirst},
    {".pdf", kExtract},
    {".doc", kExtract},
    {".docx", kExtract},
    {".odt", kExtract},
    {".epub", kExtract},
};

std::string last_extension(const fs::path& path) { return lower_case(path.extension().string()); }

// The extension of the decompressed file.
std::string extension_of(const fs::path& path) {
  return last_extension(is_compressed(path) ? path.stem() : path);
}

bool is_hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

bool is_description(const fs::path& path) {
  return std::find(kDescriptions.begin(), kDescriptions.end(), path.filename().native()) !=
         kDescriptions.end();
}

bool can_be_compressed(InputKind kind) {
  return kind != InputKind::kParquet && kind != InputKind::kPretokenized;
}

// Whether a file is read if its folder was given as the input.
bool is_wanted(const fs::path& path, InputUse use) {
  if (is_description(path)) return false;
  if (is_compressed(path) && (use == InputUse::kPlainText || !can_be_compressed(input_kind(path))))
    return false;
  if (input_kind(path) != InputKind::kText) return use == InputUse::kDataset;
  const std::string extension = extension_of(path);
  return std::find(kTextExtensions.begin(), kTextExtensions.end(), extension) != kTextExtensions.end();
}

// Walks the tree below a folder: calls visit(entry) for entries that are not hidden and hidden(entry) for the
// others, without entering hidden folders.
template <typename Visit, typename Hidden>
void walk(const fs::path& folder, const Visit& visit, const Hidden& hidden) {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_hidden(entry->path())) {
      visit(*entry);
    } else {
      entry.disable_recursion_pending();
      hidden(*entry);
    }
  }
  if (error)
    fail_errno(ExitCode::kNoInput, error.value(), fmt::format("{}: cannot list folder", folder.string()));
}

// A dangling link is not a regular file.
bool is_regular(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.is_regular_file(ignored);
}

// A link that is not followed, so its target is not read.
bool is_unread_link(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.is_symlink(ignored) && (entry.is_directory(ignored) || !entry.exists(ignored));
}

// Collects what is not read in a folder.
class LeftOut {
 public:
  void add_hidden(const fs::directory_entry& entry) {
    std::error_code ignored;
    if (entry.is_directory(ignored)) {
      ++num_hidden_folders_;
    } else if (is_regular(entry)) {
      ++num_hidden_files_;
    }
  }

  void add_other(const fs::path& file) {
    ++num_others_;
    const std::string extension = extension_of(file);
    const auto unsupported = std::find_if(std::begin(kUnsupported), std::end(kUnsupported),
                                          [&](const auto& format) { return format.extension == extension; });
    if (unsupported != std::end(kUnsupported) && advice_.empty())
      advice_ = fmt::format("; {}: {}", extension, unsupported->advice);
    names_.insert(is_description(file) ? file.filename().string()
                  : extension.empty()  ? "without extension"
                                       : printable(extension));
  }

  // Links to folders are not followed: they may lead in a circle.
  void add_link() { ++num_links_; }

  bool empty() const { return num_hidden_files_ + num_hidden_folders_ + num_others_ + num_links_ == 0; }

  // "skipped 3 files: 1 hidden, 2 of other kinds (.csv, .png) and 1 hidden folder; .csv: convert it ..."
  std::string text() const {
    std::vector<std::string> files;
    if (num_hidden_files_ > 0) files.push_back(fmt::format("{} hidden", format_count(num_hidden_files_)));
    if (num_others_ > 0) {
      constexpr size_t kMaxShown = 8;
      std::vector<std::string> shown(names_.begin(), names_.end());
      if (shown.size() > kMaxShown) {
        shown.resize(kMaxShown);
        shown.emplace_back("...");
      }
      files.push_back(
          fmt::format("{} of other kinds ({})", format_count(num_others_), fmt::join(shown, ", ")));
    }
    std::vector<std::string> others;
    if (num_hidden_folders_ > 0) others.push_back(format_count(num_hidden_folders_, "hidden folder"));
    if (num_links_ > 0) others.push_back(format_count(num_links_, "link") + " to a folder or to nothing");
    if (files.empty()) return fmt::format("skipped {}", fmt::join(others, " and "));
    return fmt::format("skipped {}: {}{}{}{}", format_count(num_hidden_files_ + num_others_, "file"),
                       fmt::join(files, ", "), others.empty() ? "" : " and ", fmt::join(others, " and "),
                       advice_);
  }

 private:
  int64_t num_hidden_files_ = 0;
  int64_t num_hidden_folders_ = 0;
  int64_t num_others_ = 0;
  int64_t num_links_ = 0;
  std::set<std::string> names_;
  std::string advice_;
};

// The files of one pattern.
class Expansion {
 public:
  Expansion(const std::string& pattern, InputUse use) : pattern_(pattern), use_(use) {}

  void run(InputFiles* out) {
    std::error_code error;
    const fs::file_status status = fs::status(pattern_, error);
    if (fs::is_directory(status)) {
      add_folder(pattern_);
    } else if (fs::exists(status)) {
      add_file(pattern_);
    } else if (pattern_.find_first_of("*?[") == std::string::npos) {
      fail_errno(ExitCode::kNoInput, error ? error.value() : ENOENT,
                 fmt::format("{}: cannot be read", printable(pattern_)));
    } else if (pattern_.find("**") != std::string::npos) {
      add_matches_below();
    } else {
      add_glob();
    }
    if (files_.empty()) fail_no_file(fs::is_directory(status));
    std::sort(files_.begin(), files_.end(),
              [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
    out->files.insert(out->files.end(), files_.begin(), files_.end());
    out->left_out.insert(out->left_out.end(), left_out_.begin(), left_out_.end());
  }

 private:
  // A file given by name or matched by a glob.
  void add_file(const fs::path& file) {
    const std::string extension = extension_of(file);
    for (const UnsupportedFormat& format : kUnsupported) {
      if (format.extension == extension)
        fail(ExitCode::kBadData, "{}: {} files are not supported: {}", printable(file.string(), 200),
             extension, format.advice);
    }
    if (is_compressed(file) && (use_ == InputUse::kPlainText || !can_be_compressed(input_kind(file)))) {
      fail(ExitCode::kBadData, "{}: expected a file that is not compressed: {}",
           printable(file.string(), 200), kUnpackFirst);
    }
    if (use_ == InputUse::kPlainText && input_kind(file) != InputKind::kText) {
      fail(ExitCode::kBadData, "{}: expected plain text, found a {} file: {}", printable(file.string(), 200),
           extension, kWriteText);
    }
    files_.push_back(file);
  }

  void add_folder(const fs::path& folder) {
    LeftOut left_out;
    walk(
        folder,
        [&](const fs::directory_entry& entry) {
          if (!is_regular(entry)) {
            if (is_unread_link(entry)) left_out.add_link();
          } else if (is_wanted(entry.path(), use_)) {
            files_.push_back(entry.path());
          } else {
            left_out.add_other(entry.path());
          }
        },
        [&](const fs::directory_entry& entry) { left_out.add_hidden(entry); });
    tell(folder.string(), left_out);
  }

  void tell(const std::string& where, const LeftOut& left_out) {
    if (!left_out.empty()) left_out_.push_back(fmt::format("{}: {}", printable(where, 200), left_out.text()));
  }

  void add_glob() {
    glob_t matches = {};
    const int result = ::glob(pattern_.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &matches);
    std::vector<fs::path> paths;
    for (size_t i = 0; i < matches.gl_pathc; ++i) paths.emplace_back(matches.gl_pathv[i]);
    globfree(&matches);
    if (result == GLOB_ABORTED)
      fail(ExitCode::kNoInput, "{}: a folder of this pattern cannot be read", printable(pattern_));
    if (result == GLOB_NOSPACE) throw std::bad_alloc();
    LeftOut left_out;
    std::error_code error;
    for (const fs::path& match : paths) {
      if (fs::is_directory(match, error)) {
        add_folder(match);
      } else if (fs::is_regular_file(match, error)) {
        add_file(match);
      } else if (!fs::exists(match, error)) {
        left_out.add_link();
      }
    }
    tell(pattern_, left_out);
  }

  // DIR/**/NAME
  void add_matches_below() {
    const fs::path pattern(pattern_);
    const std::vector<fs::path> parts(pattern.begin(), pattern.end());
    const auto stars = std::find(parts.begin(), parts.end(), "**");
    const auto num_behind = parts.end() - stars;
    const std::string name = num_behind == 2 ? parts.back().string() : "*";
    fs::path folder;
    for (auto part = parts.begin(); part != stars; ++part) folder /= *part;
    if (num_behind < 1 || num_behind > 2 || name.find("**") != std::string::npos ||
        folder.string().find_first_of("*?[") != std::string::npos) {
      fail(ExitCode::kBadConfig,
           "{}: expected '**' as in DIR/**/NAME or DIR/**, with DIR a folder and NAME a glob",
           printable(pattern_));
    }
    LeftOut left_out;
    walk(
        folder.empty() ? "." : folder,
        [&](const fs::directory_entry& entry) {
          const std::string found = entry.path().filename().string();
          if (is_regular(entry)) {
            if (::fnmatch(name.c_str(), found.c_str(), 0) == 0) add_file(entry.path());
          } else if (is_unread_link(entry)) {
            left_out.add_link();
          }
        },
        [](const fs::directory_entry&) {});
    tell(pattern_, left_out);
  }

  [[noreturn]] void fail_no_file(bool is_folder) const {
    if (!is_folder && left_out_.empty())
      fail(ExitCode::kNoInput, "{}: no file matches this pattern", printable(pattern_));
    fail(ExitCode::kNoInput, "{}: no file to read in this folder: expected {}{}{}", printable(pattern_, 200),
         fmt::join(kTextExtensions, ", "),
         use_ == InputUse::kDataset ? ", .jsonl, .ndjson, .json, .csv, .tsv, .parquet or .safetensors" : "",
         left_out_.empty() ? ""
                           : fmt::format("; {}; 'DIR/**/*.py' names other text files", left_out_.front()));
  }

  const std::string& pattern_;
  InputUse use_;
  std::vector<fs::path> files_;
  std::vector<std::string> left_out_;
};

// Whether the lines at the start of a text are JSON objects. `is_whole`: nothing follows `head`.
bool is_json_lines(std::string_view head, bool is_whole) {
  constexpr int kMaxLines = 10;
  int num_objects = 0;
  while (!head.empty() && num_objects < kMaxLines) {
    const size_t end = head.find('\n');
    const bool is_cut = end == std::string_view::npos && !is_whole;
    std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(line.size() + 1, head.size()));
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) continue;
    if (line[first] != '{') return false;
    const std::optional<JsonProblem> problem = find_json_problem(line);
    // In a line cut off by the end of the head, the only problem may be that it ends early.
    if (problem && !(is_cut && problem->is_at_end && line.find('"') != std::string_view::npos)) return false;
    ++num_objects;
  }
  return num_objects > 0;
}

}  // namespace

InputFiles find_input_files(const std::vector<std::string>& patterns, InputUse use) {
  if (patterns.empty()) fail(ExitCode::kBadConfig, "no input: name at least one file, folder or pattern");
  InputFiles found;
  for (const std::string& pattern : patterns) Expansion(pattern, use).run(&found);
  return found;
}

InputKind input_kind(const fs::path& path) {
  const std::string extension = extension_of(path);
  if (extension == ".jsonl" || extension == ".ndjson" || extension == ".json") return InputKind::kJson;
  if (extension == ".csv" || extension == ".tsv") return InputKind::kTable;
  if (extension == ".parquet" || extension == ".pq") return InputKind::kParquet;
  if (extension == ".safetensors") return InputKind::kPretokenized;
  return InputKind::kText;
}

bool is_compressed(const fs::path& path) {
  const std::string extension = last_extension(path);
  return extension == ".gz" || extension == ".zst";
}

void check_input_content(const InputFile& file, InputUse use, bool skip_invalid_utf8) {
  const InputKind kind = input_kind(file.path());
  const std::string head = read_head(file);
  if (head.starts_with(kLfsPointerStart)) {
    fail(ExitCode::kBadData, "{}: expected data, found {}", printable(file.path().string(), 200),
         kLfsPointer);
  }
  // Their readers report other errors.
  if (kind == InputKind::kPretokenized || kind == InputKind::kParquet || is_compressed(file.path())) return;
  const FileKind found = kind_of_head(head, file.size_bytes());
  const bool is_left_out = skip_invalid_utf8 && !starts_as_utf8(head);
  if (!found.is_text && !is_left_out) {
    fail(ExitCode::kBadData, "{}: expected UTF-8 text, found {}{}{}", printable(file.path().string(), 200),
         found.name, found.advice.empty() ? "" : ": ", found.advice);
  }
  if (kind == InputKind::kText && is_json_lines(head, file.size_bytes() == std::ssize(head))) {
    fail(ExitCode::kBadData, "{}: expected text, found JSON Lines (an object per line): {}",
         printable(file.path().string(), 200),
         use == InputUse::kDataset
             ? "rename it to .jsonl, so that the text is taken from a field of the objects (--text_column)"
             : kWriteText);
  }
}

}  // namespace tessera
