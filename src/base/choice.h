// Settings that are one of several words.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/error.h"

namespace tessera {

// A spelling of a value. If a value has several, the first is the one that is shown.
template <typename T>
struct Word {
  std::string_view text;
  T value;
};

// An enum with a function `choice_words(E)` beside it, which returns an array of the words of all values.
template <typename E>
concept Choice = std::is_enum_v<E> && requires(E value) {
  choice_words(value);
};

// The first spelling of `value`, which must have one.
template <typename T>
std::string_view word_of(std::type_identity_t<std::span<const Word<T>>> words, const T& value) {
  const auto word = std::ranges::find(words, value, &Word<T>::value);
  TESSERA_CHECK(word != words.end(), "a value without a word");
  return word->text;
}
template <Choice E>
std::string_view word_of(E value) {
  static constexpr auto kWords = choice_words(E());
  return word_of(kWords, value);
}

}  // namespace tessera

// Messages show a choice as its word.
template <tessera::Choice E>
struct fmt::formatter<E> : fmt::formatter<std::string_view> {
  auto format(E value, format_context& context) const {
    return formatter<std::string_view>::format(tessera::word_of(value), context);
  }
};
