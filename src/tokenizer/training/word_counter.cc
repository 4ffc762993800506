#include "tokenizer/training/word_counter.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"
#include "tokenizer/regex/fast_scanner.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

constexpr int64_t kBlockBytes = int64_t{4} << 20;  // one task for a thread
constexpr size_t kBlocksPerBatch = 16;             // read before counting, for any number of threads

// Texts that are counted together; no word is split.
using Block = std::vector<std::string>;
using LocalCounts = std::unordered_map<std::string_view, int64_t>;

std::string read_part(const InputFile& file, int64_t offset, int64_t size) {
  std::string text(static_cast<size_t>(size), '\0');
  file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

// Offset of the first byte of the file that is not UTF-8, or -1.
int64_t find_invalid_utf8_in(const InputFile& file) {
  for (int64_t at = 0; at < file.size_bytes();) {
    const std::string text = read_part(file, at, std::min(kBlockBytes, file.size_bytes() - at));
    const int64_t invalid = find_invalid_utf8(text);
    const bool last = at + static_cast<int64_t>(text.size()) == file.size_bytes();
    if (invalid >= 0) {
      // A character cut off by the end of the block is checked again from its start.
      const bool cut = !last && static_cast<int64_t>(text.size()) - invalid < 4 && invalid > 0;
      if (!cut) return at + invalid;
      at += invalid;
    } else {
      at += static_cast<int64_t>(text.size());
    }
  }
  return -1;
}

LocalCounts count_block(const Block& block, const FastScanner& scanner) {
  LocalCounts counts;
  for (const std::string& text : block) {
    const char* const end = text.data() + text.size();
    for (const char* at = text.data(); at < end;) {
      const char* word_end = scanner.match_end(at, end);
      // A one-byte word has no pair to learn from.
      if (word_end - at > 1) ++counts[{at, static_cast<size_t>(word_end - at)}];
      at = word_end;
    }
  }
  return counts;
}

class WordCounter {
 public:
  WordCounter(int64_t max_words, ThreadPool& pool) : max_words_(max_words), pool_(pool) {}

  void add(std::string text) {
    block_bytes_ += static_cast<int64_t>(text.size());
    block_.push_back(std::move(text));
    if (block_bytes_ < kBlockBytes) return;
    close_block();
    if (batch_.size() == kBlocksPerBatch) count_batch();
  }

  std::vector<std::pair<std::string, int64_t>> finish() {
    close_block();
    count_batch();
    std::vector<std::pair<std::string, int64_t>> words(counts_.begin(), counts_.end());
    std::sort(words.begin(), words.end());
    return words;
  }

 private:
  void close_block() {
    if (!block_.empty()) batch_.push_back(std::move(block_));
    block_.clear();
    block_bytes_ = 0;
  }

  void count_batch() {
    std::vector<LocalCounts> local(batch_.size());
    pool_.parallel_for(static_cast<int64_t>(batch_.size()), [&](int64_t i) {
      local[static_cast<size_t>(i)] = count_block(batch_[static_cast<size_t>(i)], scanner_);
    });
    for (const LocalCounts& counts : local) {
      for (const auto& [word, count] : counts) counts_[std::string(word)] += count;
    }
    batch_.clear();
    for (int64_t rare = 1; static_cast<int64_t>(counts_.size()) > max_words_; rare *= 2)
      std::erase_if(counts_, [rare](const auto& entry) { return entry.second <= rare; });
  }

  const FastScanner scanner_{KnownPattern::kLlama3};
  int64_t max_words_;
  ThreadPool& pool_;
  Block block_;
  int64_t block_bytes_ = 0;
  std::vector<Block> batch_;
  std::unordered_map<std::string, int64_t> counts_;
};

}  // namespace

int64_t cut_between_words(std::string_view text) {
  // A match that reaches a line break ends at the last one in the run of whitespace, so the next match starts
  // after it.
  for (size_t at = text.size(); at-- > 1;) {
    if (text[at - 1] != '\n' && text[at - 1] != '\r') continue;
    if ((text[at] & 0x80) == 0 && !is_whitespace(static_cast<char32_t>(text[at])))
      return static_cast<int64_t>(at);
  }
  return text.empty() ? 0 : last_char_begin(text);
}

WordCounts count_words(const std::vector<std::filesystem::path>& files, bool skip_invalid_utf8,
                       int64_t max_words, ThreadPool& pool, const std::function<void(double)>& progress) {
  int64_t total_bytes = 0;
  for (const auto& path : files) {
    std::error_code ignored;  // an unreadable file is an error when it is opened
    const auto size = std::filesystem::file_size(path, ignored);
    if (!ignored) total_bytes += static_cast<int64_t>(size);
  }
  WordCounts result;
  WordCounter counter(max_words, pool);
  int64_t done_bytes = 0;
  for (const auto& path : files) {
    const InputFile file = InputFile::open(path);
    const int64_t size = file.size_bytes();
    if (const int64_t invalid = find_invalid_utf8_in(file); invalid >= 0) {
      if (!skip_invalid_utf8) {
        fail(ExitCode::kBadData,
             "{}: not UTF-8 at byte {}; convert the file or skip files that are not UTF-8", path.string(),
             invalid);
      }
      ++result.num_files_skipped;
      done_bytes += size;
      continue;
    }
    for (int64_t at = 0; at < size;) {
      std::string text = read_part(file, at, std::min(kBlockBytes, size - at));
      if (at + static_cast<int64_t>(text.size()) < size) {
        // The block may end inside a character.
        while (find_invalid_utf8(std::string_view(text).substr(static_cast<size_t>(last_char_begin(text)))) >=
               0)
          text.resize(static_cast<size_t>(last_char_begin(text)));
        text.resize(static_cast<size_t>(cut_between_words(text)));
      }
      at += static_cast<int64_t>(text.size());
      result.input_bytes += static_cast<int64_t>(text.size());
      done_bytes += static_cast<int64_t>(text.size());
      counter.add(std::move(text));
      if (progress && total_bytes > 0)
        progress(std::min(1.0, static_cast<double>(done_bytes) / static_cast<double>(total_bytes)));
    }
    ++result.num_files;
  }
  result.words = counter.finish();
  return result;
}

}  // namespace tessera
