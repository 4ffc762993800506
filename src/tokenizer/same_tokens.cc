#include "tokenizer/same_tokens.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

std::optional<Tokenizer> tokenizer_beside(const std::filesystem::path& model) {
  std::error_code error;
  return std::filesystem::exists(model / "tokenizer.json", error) ? std::optional(Tokenizer::open(model))
                                                                  : std::nullopt;
}

}  // namespace

void check_same_tokens(const std::vector<std::string>& models) {
  const std::optional<Tokenizer> first = tokenizer_beside(models.front());
  for (size_t i = 1; first && i < models.size(); ++i) {
    const std::optional<Tokenizer> other = tokenizer_beside(models[i]);
    if (!other || first->fingerprint() == other->fingerprint()) continue;
    const auto token = [](const Tokenizer& tokenizer, int64_t id) {
      return id < tokenizer.vocab_size() ? tokenizer.id_to_token(static_cast<int32_t>(id)) : std::string();
    };
    for (int64_t id = 0; id < std::max(first->vocab_size(), other->vocab_size()); ++id) {
      const std::string expected = token(*first, id), found = token(*other, id);
      if (expected == found) continue;
      fail(ExitCode::kBadConfig,
           "{}: token {}: expected \"{}\" as in {}, found \"{}\": only models with the same tokenizer can be "
           "merged",
           models[i], id, printable(expected), models.front(), printable(found));
    }
  }
}

}  // namespace tessera
