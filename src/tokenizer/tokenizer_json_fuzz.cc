// Untrusted tokenizer.json with arbitrary text. The input is the JSON, a zero byte, and the text; UTF-8 text
// must give the same ids on the fast and the reference path, and decoding must accept them.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "support/fuzz_support.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/tokenizer.h"

using tessera::Tokenizer;

namespace {

constexpr const char* kWords =
    R"~({ } [ ] , : null true false 0 1 -1 300 4294967296 1e9 "Sequence" "Split" "ByteLevel" "Metaspace"
    "Digits" "Whitespace" "WhitespaceSplit" "Punctuation" "Prepend" "Replace" "NFC" "NFKD" "Lowercase"
    "Strip" "ByteFallback" "Fuse" "BPEDecoder" "TemplateProcessing" "Removed" "Isolated"
    "MergedWithPrevious" "MergedWithNext" "Contiguous" "invert":true, "Regex": "String": "(a|b)+c?"
    "\\s+|\\S" "[[a]b&&c]" "\\p{L}{2,}" "^|$" "x*" "prepend_scheme":"first", "add_prefix_space":true,
    "use_regex":true, "split":false, "individual_digits":true "strip_left":true,"strip_right":true
    "ignore_merges":true, "byte_fallback":true, "fuse_unk":true, "unk_token":"a",
    "continuing_subword_prefix":"a", "end_of_word_suffix":"b", "single_word":true, "lstrip":true,
    "rstrip":true, "normalized":true, "special":true,
    "pre_tokenizer":{"type":"Metaspace","replacement":"b","prepend_scheme":"first"},
    "pre_tokenizer":{"type":"Split","pattern":{"Regex":"a+"},"behavior":"Contiguous","invert":false},
    "normalizer":{"type":"Strip","strip_left":true,"strip_right":false},
    "Unigram" "WordPiece" "Precompiled" "BertNormalizer" "StripAccents" "Nmt" "BertPreTokenizer"
    "BertProcessing" "RobertaProcessing" "unk_id":0, "lowercase":true, "##a" ["ab",-1.5], ab <s> ␠ ▁ é 😀 'll 123 ␤␠␤)~"
    " \xff";

// A byte-level tokenizer with all bytes and Llama 3's split.
std::string byte_level_seed() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token = tessera::byte_level_encode(std::string(1, static_cast<char>(byte)));
    if (token == "\"" || token == "\\") token.insert(0, "\\");
    vocab += "\"" + token + "\":" + std::to_string(byte) + ",";
  }
  return R"({"added_tokens":[{"id":260,"content":"<s>","special":true,"normalized":false}],"normalizer":null,)"
         R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
         R"("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+)"
         R"([\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},)"
         R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},"decoder":{"type":"ByteLevel"},)"
         R"("model":{"type":"BPE","vocab":{)" +
         vocab + R"("ab":256,"aba":257,"aa":258,"aaaa":259},"merges":["a b",["ab","a"],"a a","aa aa"]}})";
}

// A SentencePiece-style tokenizer.
constexpr std::string_view kMetaspaceSeed =
    R"({"added_tokens":[{"id":0,"content":"<unk>","special":true},{"id":1,"content":"<s>","special":true}],)"
    R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},)"
    R"({"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},"pre_tokenizer":null,)"
    R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
    R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[1]}}},)"
    R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},)"
    R"({"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},)"
    R"("model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"vocab":{"<unk>":0,"<s>":1,)"
    R"("<0xC3>":2,"<0xA9>":3,"\u2581":4,"a":5,"b":6,"c":7,"ab":8,"\u2581a":9,"\u2581ab":10,"\u2581\u2581":11},)"
    R"("merges":["a b","\u2581 a","\u2581 ab","\u2581 \u2581"]}})";

// T5's form, with a charsmap without rules.
constexpr std::string_view kUnigramSeed =
    R"({"added_tokens":[{"id":1,"content":"</s>","special":true}],)"
    R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAAA="},)"
    R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Metaspace",)"
    R"("replacement":"\u2581","prepend_scheme":"always","split":true}]},)"
    R"("post_processor":{"type":"RobertaProcessing","sep":["</s>",1],"cls":["</s>",1],"trim_offsets":true,)"
    R"("add_prefix_space":true},"decoder":{"type":"Metaspace","replacement":"\u2581"},)"
    R"("model":{"type":"Unigram","unk_id":0,"byte_fallback":true,"vocab":[["<unk>",0],["</s>",0],["\u2581",-2],)"
    R"(["a",-3.25],["b",-3.5],["ab",-4.1],["\u2581ab",-4.9],["<0xC3>",-9],["<0xA9>",-9]]}})";

// BERT's form.
constexpr std::string_view kWordPieceSeed =
    R"({"added_tokens":[{"id":1,"content":"[CLS]","special":true}],)"
    R"("normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,)"
    R"("lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},)"
    R"("post_processor":{"type":"BertProcessing","sep":["[CLS]",1],"cls":["[CLS]",1]},)"
    R"("decoder":{"type":"WordPiece","prefix":"##","cleanup":true},)"
    R"("model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##",)"
    R"("max_input_chars_per_word":10,"vocab":{"[UNK]":0,"[CLS]":1,"a":2,"##b":3,"##bc":4,",":5,"##e":6}}})";

void check_text(const Tokenizer& tokenizer, const Tokenizer& reference, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  if (reference.encode(text) != ids) std::abort();
  const std::string whole = tokenizer.decode(ids);
  tessera::StreamDecoder decoder(tokenizer);
  std::string joined;
  for (const int32_t id : ids) joined += decoder.push(id);
  joined += decoder.finish();
  if (joined != whole) std::abort();
}

std::vector<std::string> seeds() {
  return {byte_level_seed() + '\0' + "ab aba aaaaaaaaa <s> x'll 1234\n\n caf\xC3\xA9",
          std::string(kMetaspaceSeed) + '\0' + " ab  a<s> abc\xC3\xA9 b",
          std::string(kUnigramSeed) + '\0' + " ab  xa</s> abc\xC3\xA9x b",
          std::string(kWordPieceSeed) + '\0' + " Ab, abc[CLS] \xC3\xA9 abbc"};
}

void check(std::string_view input) {
  const std::string_view json = input.substr(0, input.find('\0'));
  const std::string_view text = json.size() < input.size() ? input.substr(json.size() + 1) : "";
  const Tokenizer tokenizer = Tokenizer::parse(json, "fuzz.json");
  const Tokenizer reference = Tokenizer::parse(json, "fuzz.json", {.reference = true});
  check_text(tokenizer, reference, text);
  check_text(tokenizer, reference, json);
}

}  // namespace

// Valid but unsupported settings are kBadConfig, everything else is kBadData.
TESSERA_FUZZ(kWords, seeds(), check, tessera::ExitCode::kBadData, tessera::ExitCode::kBadConfig)
