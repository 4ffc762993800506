#include "tokenizer/training/merge_learner.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <queue>
#include <unordered_map>

#include "tokenizer/pipeline/byte_level.h"

namespace tessera {
namespace {

constexpr int64_t kMinCount = 2;

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    const uint64_t key =
        static_cast<uint64_t>(static_cast<uint32_t>(pair.first)) << 32 | static_cast<uint32_t>(pair.second);
    const uint64_t hash = key * 0x9E3779B97F4A7C15u;
    return static_cast<size_t>(hash ^ hash >> 32);
  }
};

struct PairState {
  int64_t count = 0;
  std::vector<uint32_t> words;  // every word that ever contained the pair
};

struct Candidate {
  int64_t count;
  Pair pair;
  // The top of a priority_queue is its largest element: higher count, then smaller pair.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Learner {
 public:
  explicit Learner(const std::vector<std::pair<std::string, int64_t>>& words) {
    add_alphabet();
    symbols_.reserve(words.size());
    for (const auto& [word, count] : words) {
      std::vector<int32_t> ids;
      ids.reserve(word.size());
      for (const char c : word) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      const auto index = static_cast<uint32_t>(symbols_.size());
      for (size_t i = 0; i + 1 < ids.size(); ++i) change({ids[i], ids[i + 1]}, count, index);
      symbols_.push_back(std::move(ids));
      counts_.push_back(count);
    }
    for (const auto& [pair, state] : pairs_) queue_.push({state.count, pair});
  }

  LearnedMerges run(int64_t num_tokens, const std::function<void(double)>& progress) {
    const int64_t first = num_tokens_();
    while (num_tokens_() < num_tokens && !queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      const int64_t count = pairs_[top.pair].count;
      if (top.count != count) {  // counts of queued pairs only fall until they are requeued
        if (count >= kMinCount) queue_.push({count, top.pair});
        continue;
      }
      if (count < kMinCount) break;
      merge(top.pair);
      if (progress && num_tokens_() % 64 == 0)
        progress(static_cast<double>(num_tokens_() - first) / static_cast<double>(num_tokens - first));
    }
    return std::move(learned_);
  }

 private:
  int64_t num_tokens_() const { return static_cast<int64_t>(learned_.tokens.size()); }

  // Bytes in the order of their byte-level characters, as everywhere since GPT-2.
  void add_alphabet() {
    std::array<int, 256> bytes;
    std::iota(bytes.begin(), bytes.end(), 0);
    std::sort(bytes.begin(), bytes.end(), [](int a, int b) {
      return byte_level_char(static_cast<uint8_t>(a)) < byte_level_char(static_cast<uint8_t>(b));
    });
    for (const int byte : bytes) {
      byte_ids_[static_cast<size_t>(byte)] = static_cast<int32_t>(num_tokens_());
      add_token(std::string(1, static_cast<char>(byte)));
    }
  }

  int32_t add_token(const std::string& bytes) {
    const auto [entry, is_new] = ids_.emplace(bytes, static_cast<int32_t>(num_tokens_()));
    if (is_new) learned_.tokens.push_back(bytes);
    return entry->second;
  }

  void change(const Pair& pair, int64_t difference, uint32_t word) {
    PairState& state = pairs_[pair];
    state.count += difference;
    if (difference > 0 && (state.words.empty() || state.words.back() != word)) state.words.push_back(word);
  }

  void merge(const Pair& pair) {
    const int32_t id = add_token(learned_.tokens[static_cast<size_t>(pair.first)] +
                                 learned_.tokens[static_cast<size_t>(pair.second)]);
    learned_.merges.push_back(pair);
    std::vector<uint32_t> words = std::move(pairs_[pair].words);
    pairs_[pair].words.clear();
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    grown_.clear();
    for (const uint32_t word : words) merge_in_word(pair, id, word);
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const Pair& p : grown_) queue_.push({pairs_[p].count, p});
  }

  // Rewrites one word: removes the adjacent pairs that contain a merged symbol and adds those with the new
  // symbol.
  void merge_in_word(const Pair& pair, int32_t id, uint32_t word) {
    std::vector<int32_t>& ids = symbols_[word];
    const int64_t count = counts_[word];
    old_.assign(ids.begin(), ids.end());
    ids.clear();
    is_new_.clear();
    bool former_merged = false;  // whether the symbol before old_[i] was merged
    for (size_t i = 0; i < old_.size();) {
      const bool merges = i + 1 < old_.size() && old_[i] == pair.first && old_[i + 1] == pair.second;
      if (i > 0 && (merges || former_merged)) change({old_[i - 1], old_[i]}, -count, word);
      if (merges) change(pair, -count, word);
      ids.push_back(merges ? id : old_[i]);
      is_new_.push_back(merges);
      former_merged = merges;
      i += merges ? 2 : 1;
    }
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      if (!is_new_[i] && !is_new_[i + 1]) continue;
      change({ids[i], ids[i + 1]}, count, word);
      grown_.emplace_back(ids[i], ids[i + 1]);
    }
  }

  LearnedMerges learned_;
  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<std::vector<int32_t>> symbols_;  // of each word
  std::vector<int64_t> counts_;
  std::unordered_map<Pair, PairState, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> grown_;
  std::vector<int32_t> old_;
  std::vector<bool> is_new_;
};

}  // namespace

LearnedMerges learn_merges(const std::vector<std::pair<std::string, int64_t>>& words, int64_t num_tokens,
                           const std::function<void(double)>& progress) {
  return Learner(words).run(num_tokens, progress);
}

}  // namespace tessera
