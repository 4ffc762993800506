// The settings by which rows of a dataset become token ids and labels.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/choice.h"
#include "data/cache/packing.h"
#include "data/chat/chat_template.h"
#include "data/chat/example.h"

namespace tessera {

// The treatment of a row longer than max_length: it is cut, skipped and counted, or an error.
enum class ExcessLength { kTruncate, kDrop, kRaise };
constexpr auto choice_words(ExcessLength) {
  using enum ExcessLength;
  return std::to_array<Word<ExcessLength>>({{"truncate", kTruncate}, {"drop", kDrop}, {"raise", kRaise}});
}

// validation_split_percentage where rows are packed in another order: the share of the rows, the first ones
// of all files together, that is held out before they are packed.
struct HeldOutRows {
  double percent = 0;
  bool are_read = false;  // instead of the others
};

// Rows of a model with an encoder and a decoder: a source, and a target whose labels are the decoder's inputs
// one place further on (shift_tokens_right of Transformers).
struct SourceTarget {
  int32_t decoder_start_token_id = 0;
  int32_t pad_token_id = 0;  // the decoder's input in place of a label that is ignored
  int64_t max_source_length = 1024;
  int64_t max_target_length = 128;
  bool cuts_token_ids = false;  // also rows of token ids, which Trainer takes as they are
  std::string source_prefix = {};

  bool operator==(const SourceTarget&) const = default;
};

// Rows of an encoder, which predicts tokens in place. Rows without labels are masked whenever they are used,
// by the rule of DataCollatorForLanguageModeling of Transformers (data/rows/token_masks.h).
struct MaskingRule {
  double mlm_probability = 0.15;     // of a token that is not special to become a target
  double mask_replace_prob = 0.8;    // of a target to be replaced by the mask token
  double random_replace_prob = 0.1;  // of a target to be replaced by a random token; the others stay
  uint64_t seed = 42;
  int64_t max_length = 512;  // tokens of a row, special ones included
  // What the tokenizer says. Without a mask token every row needs labels.
  std::optional<int32_t> mask_id = {};
  std::vector<int32_t> special_ids = {};  // ascending: never targets
  int32_t num_random_ids = 1;             // random tokens are below it
  int32_t num_token_types = 1;            // of the model

  bool operator==(const MaskingRule&) const = default;
};

struct RowOptions {
  bool text_per_line = false;      // text files: every line is a document instead of the file
  bool add_special_tokens = true;  // the tokenizer's post-processor (bos, ...), for every document but chats
  bool skip_invalid_utf8 = false;  // skip and count documents that are not UTF-8 instead of failing
  bool skip_bad_rows = false;      // skip and count rows that cannot be read or used instead of failing
  ExcessLength excess_length = ExcessLength::kTruncate;  // text that is no answer is cut into rows with kDrop

  std::optional<HeldOutRows> held_out = {};
  std::optional<SourceTarget> source_target = {};  // unset: a decoder alone
  std::optional<MaskingRule> masking = {};         // unset: no encoder alone
  // Rows of token ids without a label are dropped, as TRL does where it cuts rows to max_length. Otherwise
  // they are kept, as in Trainer, which does not cut.
  bool drops_masked_ids = false;

  // Targets. Rows with a prompt and its answer (prompt + completion, alpaca) have the answer as target unless
  // train_on_prompt; in other conversations everything is a target unless assistant_only_loss.
  bool train_on_prompt = false;
  bool assistant_only_loss = false;
  // Whether completion_mask of token ids says what is a target: in TRL if completion_only_loss is set.
  bool reads_completion_mask = true;

  // Conversations.
  ChatTemplateOptions chat_template;
  std::filesystem::path chat_folder;  // of the tokenizer, which may have the template
  bool parse_special_tokens = false;  // in what users wrote
};

}  // namespace tessera
