// Settings of a run by their words, for tables of cases.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "settings/choices.h"

namespace tessera {

class FromWord {
 public:
  explicit FromWord(std::string_view text) : text_(text) {}

  template <Choice E>
  operator E() const {  // NOLINT(google-explicit-constructor)
    return find<E>(choice_words(E()));
  }
  operator DType() const { return find<DType>(kTrainingDTypeWords); }  // NOLINT(google-explicit-constructor)
  operator std::optional<GradientCode>() const {                       // NOLINT(google-explicit-constructor)
    return find<std::optional<GradientCode>>(kGradientCodeWords);
  }

 private:
  template <typename T>
  T find(std::span<const Word<T>> words) const {
    for (const Word<T>& word : words) {
      if (word.text == text_) return word.value;
    }
    TESSERA_CHECK(false, "no choice has the word '{}'", text_);
    return words[0].value;
  }

  std::string text_;
};

// The type that the result is assigned to determines the words.
inline FromWord from_word(std::string_view text) { return FromWord(text); }

}  // namespace tessera
