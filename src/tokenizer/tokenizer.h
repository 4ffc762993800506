// Tokenizers from Hugging Face's tokenizer.json: byte-level and SentencePiece-style BPE, Unigram and
// WordPiece.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

struct TokenizerOptions {
  // Every step exactly as the file describes it: PCRE2 for all patterns, explicit byte-level alphabet, no
  // caches. Slow; the reference for testing the fast paths.
  bool reference = false;
};

// Places in a text, as ascending byte offsets.
struct TextMarks {
  std::span<const int64_t> cuts;      // to be found among the tokens
  std::span<const int64_t> barriers;  // no special token is matched across these
};

// Where a cut lies: before the first byte of `token`, an index into the ids, or inside it.
struct TokenCut {
  int64_t token;
  bool is_inside;
};

class Tokenizer {
 public:
  // Opens a tokenizer.json, or a folder with one, and the files beside it, as AutoTokenizer of Transformers 5
  // does (tokenizer/settings/loaded_tokenizer.h). Errors (kNoInput, kBadData; kBadConfig for an unsupported
  // component) name file, component and what was found.
  static Tokenizer open(const std::filesystem::path& path);
  // nullopt for a folder without tokenizer.json.
  static std::optional<Tokenizer> open_if_any(const std::filesystem::path& path);
  // Warns if Transformers 5 opens the folder's files differently beside a model of this type.
  static void check_beside(const std::filesystem::path& folder, const std::string& model_type);
  static Tokenizer parse(std::string_view json, const std::string& origin, TokenizerOptions options = {});
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Appends the ids of `text` (well-formed UTF-8; otherwise Error(kBadData) with the byte offset) to `ids`.
  // Added tokens in the text are matched as in Hugging Face. `add_special_tokens` applies the post-processor
  // (bos, ...). Thread-safe.
  void encode(std::string_view text, bool add_special_tokens, std::vector<int32_t>* ids) const;
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  // Writes one entry per cut into *cuts as well.
  void encode(std::string_view text, bool add_special_tokens, const TextMarks& marks,
              std::vector<int32_t>* ids, std::vector<TokenCut>* cuts) const;

  // Ids out of range are an Error(kBadData); ids in a gap of the vocabulary decode to nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  int64_t vocab_size() const;  // number of ids, added tokens included (highest id + 1)
  // vocab_size() without a padding token above all others, which a model need not have.
  int64_t num_model_ids() const;
  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::string id_to_token(int32_t id) const;
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> cls_id() const;
  std::optional<int32_t> sep_id() const;
  std::optional<int32_t> mask_id() const;
  // Whether a text that is too long loses its first tokens rather than its last (truncation_side).
  bool cuts_left() const;
  // Another token that ends texts. Error(kBadConfig) if the vocabulary lacks it.
  void set_eos_token(const std::string& token);
  // bos_token, eos_token, ... and the model's own (image_token) with their texts.
  const std::vector<std::pair<std::string, std::string>>& named_special_tokens() const;
  // The contents of the added tokens that are special.
  std::vector<std::string> special_tokens() const;

  // Stable hash of everything that can change ids, for cache keys.
  uint64_t fingerprint() const;

  struct Impl;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class DecodeStream;

// Decodes a stream of ids, for generation: the concatenated pieces equal decode() of all ids, and no piece
// ends inside a UTF-8 sequence. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens = true);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  // The text that is final once `id` is known; "" while further ids may change it.
  std::string push(int32_t id);
  // The remaining text. Call once.
  std::string finish();

 private:
  const Tokenizer::Impl* tokenizer_;
  bool skip_special_tokens_;
  std::unique_ptr<DecodeStream> stream_;
};

}  // namespace tessera
