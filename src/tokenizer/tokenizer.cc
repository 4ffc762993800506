#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/tokenizer_impl.h"

namespace tessera {
namespace {

// Borrows scratch memory for its lifetime.
class BorrowedScratch {
 public:
  BorrowedScratch(std::mutex* mutex, std::vector<std::unique_ptr<ModelScratch>>* pool)
      : mutex_(mutex), pool_(pool) {
    {
      const std::lock_guard lock(*mutex_);
      if (!pool_->empty()) {
        scratch_ = std::move(pool_->back());
        pool_->pop_back();
      }
    }
    if (scratch_ == nullptr) scratch_ = std::make_unique<ModelScratch>();
  }
  ~BorrowedScratch() {
    const std::lock_guard lock(*mutex_);
    pool_->push_back(std::move(scratch_));
  }
  BorrowedScratch(const BorrowedScratch&) = delete;
  BorrowedScratch& operator=(const BorrowedScratch&) = delete;

  ModelScratch* get() { return scratch_.get(); }

 private:
  std::mutex* mutex_;
  std::vector<std::unique_ptr<ModelScratch>>* pool_;
  std::unique_ptr<ModelScratch> scratch_;
};

// The barriers inside a segment, from its begin.
std::vector<int64_t> barriers_within(std::span<const int64_t> barriers, const Segment& segment) {
  std::vector<int64_t> inside;
  for (const int64_t barrier : barriers) {
    if (segment.begin < barrier && barrier < segment.end) inside.push_back(barrier - segment.begin);
  }
  return inside;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<int32_t> ids;
  encode(text, add_special_tokens, &ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, bool add_special_tokens, std::vector<int32_t>* ids) const {
  std::vector<TokenCut> cuts;
  encode(text, add_special_tokens, {}, ids, &cuts);
}

void Tokenizer::encode(std::string_view text, bool add_special_tokens, const TextMarks& marks,
                       std::vector<int32_t>* ids, std::vector<TokenCut>* cuts) const {
  if (const int64_t offset = find_invalid_utf8(text); offset >= 0) {
    fail(ExitCode::kBadData, "the text is not UTF-8 at byte {}: \"{}\"", offset,
         printable(text.substr(static_cast<size_t>(offset)), 20));
  }
  const PostProcessor& post = impl_->post_processor;
  if (add_special_tokens) ids->insert(ids->end(), post.before.begin(), post.before.end());
  BorrowedScratch scratch(&impl_->scratch_mutex, &impl_->scratch);
  cuts->clear();
  impl_->encode_text(text, marks, scratch.get(), ids, cuts);
  if (add_special_tokens) ids->insert(ids->end(), post.after.begin(), post.after.end());
}

void Tokenizer::Impl::encode_text(std::string_view text, const TextMarks& marks, ModelScratch* scratch_memory,
                                  std::vector<int32_t>* ids, std::vector<TokenCut>* cuts) const {
  std::vector<Segment> segments = {{0, static_cast<int64_t>(text.size()), -1}};
  if (added.has(/*normalized=*/false)) segments = added.find(text, /*normalized=*/false, marks.barriers);
  auto cut = marks.cuts.begin();
  for (const Segment& segment : segments) {
    const auto first = std::ssize(*ids);
    const bool at_start = segment.begin == 0;
    const std::string_view part =
        text.substr(static_cast<size_t>(segment.begin), static_cast<size_t>(segment.end - segment.begin));
    const auto barriers = barriers_within(marks.barriers, segment);
    if (segment.id >= 0) {
      ids->push_back(segment.id);
    } else {
      encode_segment(part, at_start, barriers, scratch_memory, ids);
    }
    for (; cut != marks.cuts.end() && *cut < segment.end; ++cut) {
      const bool is_at_begin = *cut <= segment.begin;
      if (is_at_begin || segment.id >= 0) {
        cuts->push_back({first, !is_at_begin});
        continue;
      }
      const TokenCut found = find_cut(part, *cut - segment.begin, at_start, barriers,
                                      std::span(*ids).subspan(static_cast<size_t>(first)), scratch_memory);
      cuts->push_back({first + found.token, found.is_inside});
    }
  }
  for (; cut != marks.cuts.end(); ++cut) cuts->push_back({std::ssize(*ids), false});
}

void Tokenizer::Impl::encode_segment(std::string_view text, bool at_start, std::span<const int64_t> barriers,
                                     ModelScratch* scratch_memory, std::vector<int32_t>* ids) const {
  NormalizedText normalized;
  std::vector<int64_t> normalized_barriers;
  if (normalizer != nullptr) {
    // Each takes the text before it through the normalizer.
    constexpr int64_t kMaxBytes = int64_t{4} << 30;
    if (!barriers.empty() && std::ssize(text) > kMaxBytes / std::ssize(barriers)) {
      fail(ExitCode::kBadData,
           "a text of {} has {} spelled as text in it: expected fewer, or a shorter text, for a tokenizer "
           "with a "
           "normalizer",
           format_bytes(std::ssize(text)), count_of(std::ssize(barriers), "special token"));
    }
    for (const int64_t barrier : barriers) {
      NormalizedText before = {std::string(text.substr(0, static_cast<size_t>(barrier))), at_start};
      normalizer->apply(&before);
      normalized_barriers.push_back(std::ssize(before.text));
    }
    barriers = normalized_barriers;
    normalized = {std::string(text), at_start};
    normalizer->apply(&normalized);
    text = normalized.text;
    at_start = normalized.at_start;
  }
  if (!added.has(/*normalized=*/true)) return encode_piece(text, at_start, scratch_memory, ids);
  for (const Segment& segment : added.find(text, /*normalized=*/true, barriers)) {
    if (segment.id >= 0) {
      ids->push_back(segment.id);
    } else {
      encode_piece(
          text.substr(static_cast<size_t>(segment.begin), static_cast<size_t>(segment.end - segment.begin)),
          at_start && segment.begin == 0, scratch_memory, ids);
    }
  }
}

void Tokenizer::Impl::encode_piece(std::string_view text, bool at_start, ModelScratch* scratch_memory,
                                   std::vector<int32_t>* ids) const {
  if (text.empty()) return;
  if (scanner) {
    std::string prefixed;
    if (known_split->add_prefix_space && text[0] != ' ') {
      prefixed = " " + std::string(text);
      text = prefixed;
    }
    const char* const end = text.data() + text.size();
    for (const char* at = text.data(); at < end;) {
      const char* word_end = scanner->match_end(at, end);
      model->encode_word({at, static_cast<size_t>(word_end - at)}, end - at, scratch_memory, ids);
      at = word_end;
    }
    return;
  }
  if (pre_tokenizer == nullptr) {
    if (use_caches) return model->encode_text(text, scratch_memory, ids);
    return model->encode_word_uncached(text, scratch_memory, ids);
  }
  Pieces pieces;
  pieces.list.push_back({text, at_start});
  pre_tokenizer->apply(&pieces);
  for (const Piece& piece : pieces.list) {
    if (use_caches) {
      model->encode_word(piece.text, static_cast<int64_t>(piece.text.size()), scratch_memory, ids);
    } else {
      model->encode_word_uncached(piece.text, scratch_memory, ids);
    }
  }
}

std::optional<int32_t> Tokenizer::Impl::find(std::string_view token) const {
  if (const AddedToken* found = added.by_content(token)) return found->id;
  return model->tokens().find(token);
}

std::optional<int32_t> Tokenizer::Impl::id_of_special(std::string_view name) const {
  for (const auto& [known, text] : special_tokens) {
    if (known == name) return find(text);
  }
  return std::nullopt;
}

std::optional<std::string_view> Tokenizer::Impl::text_of(int32_t id) const {
  if (id < 0 || id >= num_ids) {
    fail(ExitCode::kBadData, "the id {} is out of range: the tokenizer {} has ids 0 to {}", id, origin,
         num_ids - 1);
  }
  if (const AddedToken* found = added.by_id(id)) return found->content;
  return model->tokens().at(id);
}

void Tokenizer::Impl::push(int32_t id, bool skip_special_tokens, DecodeStream* stream) const {
  const std::optional<std::string_view> text = text_of(id);
  const AddedToken* added_token = added.by_id(id);
  if (!text || (skip_special_tokens && added_token != nullptr && added.is_skipped(*added_token))) return;
  stream->push(added_token != nullptr ? added.decoded(*added_token) : *text, added_token != nullptr);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  DecodeStream stream(impl_->decoders);
  for (const int32_t id : ids) impl_->push(id, skip_special_tokens, &stream);
  stream.finish();
  return stream.take();
}

int64_t Tokenizer::vocab_size() const { return impl_->num_ids; }
int64_t Tokenizer::num_model_ids() const { return impl_->num_model_ids; }

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const { return impl_->find(token); }

std::string Tokenizer::id_to_token(int32_t id) const { return std::string(impl_->text_of(id).value_or("")); }

std::optional<int32_t> Tokenizer::bos_id() const { return impl_->id_of_special("bos_token"); }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->id_of_special("eos_token"); }
std::optional<int32_t> Tokenizer::pad_id() const { return impl_->id_of_special("pad_token"); }

std::optional<int32_t> Tokenizer::cls_id() const { return impl_->id_of_special("cls_token"); }
std::optional<int32_t> Tokenizer::sep_id() const { return impl_->id_of_special("sep_token"); }
bool Tokenizer::cuts_left() const { return impl_->cuts_left; }
std::optional<int32_t> Tokenizer::mask_id() const { return impl_->id_of_special("mask_token"); }

const std::vector<std::pair<std::string, std::string>>& Tokenizer::named_special_tokens() const {
  return impl_->special_tokens;
}

void Tokenizer::set_eos_token(const std::string& token) {
  if (!impl_->find(token))
    fail(ExitCode::kBadConfig, "eos_token: the tokenizer's vocabulary has no '{}'", printable(token, 80));
  for (auto& [name, text] : impl_->special_tokens) {
    if (name == "eos_token") {
      text = token;
      return;
    }
  }
  impl_->special_tokens.emplace_back("eos_token", token);
}

std::vector<std::string> Tokenizer::special_tokens() const {
  std::vector<std::string> contents;
  for (const AddedToken& token : impl_->added.tokens()) {
    if (token.special) contents.push_back(token.content);
  }
  return contents;
}

uint64_t Tokenizer::fingerprint() const { return impl_->fingerprint; }

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer.impl_.get()),
      skip_special_tokens_(skip_special_tokens),
      stream_(std::make_unique<DecodeStream>(tokenizer_->decoders)) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(int32_t id) {
  tokenizer_->push(id, skip_special_tokens_, stream_.get());
  return stream_->take();
}

std::string StreamDecoder::finish() {
  stream_->finish();
  return stream_->take();
}

}  // namespace tessera
