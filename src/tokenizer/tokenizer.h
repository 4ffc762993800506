// tokenizer.json of Hugging Face tokenizers: byte-level and SentencePiece-style BPE.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct TokenizerOptions {
  // Every step as the file spells it: PCRE2 for all patterns, the byte-level alphabet written out, no caches.
  // Slow; what the fast paths are checked against.
  bool reference = false;
};

class Tokenizer {
 public:
  // tokenizer.json, or a folder with one (tokenizer_config.json beside it is read for bos/eos/pad tokens).
  // Errors (kNoInput, kBadData; kBadConfig for a component that is not supported) name file, component and
  // what was found.
  static Tokenizer open(const std::filesystem::path& path);
  static Tokenizer parse(std::string_view json, const std::string& origin, TokenizerOptions options = {});
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Ids of `text` (well-formed UTF-8; otherwise Error(kBadData) with the byte offset), appended to `ids`.
  // Added tokens inside the text are found as Hugging Face does. `add_special_tokens` applies the
  // post-processor (bos, ...). Safe from several threads.
  void encode(std::string_view text, bool add_special_tokens, std::vector<int32_t>* ids) const;
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const;

  // Ids out of range are an Error(kBadData); ids in a gap of the vocabulary give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  int64_t vocab_size() const;  // number of ids, added tokens included (highest id + 1)
  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::string id_to_token(int32_t id) const;
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;

  // Stable hash of everything that can change ids: for cache keys.
  uint64_t fingerprint() const;

  struct Impl;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class DecodeStream;

// Decodes a stream of ids so that the pieces, joined, are decode() of all of them; a piece never ends inside
// a UTF-8 sequence. For generation. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens = true);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  // The text that `id` makes certain; "" while more ids may change it.
  std::string push(int32_t id);
  // The rest, once.
  std::string finish();

 private:
  const Tokenizer::Impl* tokenizer_;
  bool skip_special_tokens_;
  std::unique_ptr<DecodeStream> stream_;
};

}  // namespace tessera
