// Checks what goes into a manifest: names that Kubernetes allows, and text.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

inline constexpr size_t kMaxLabelLength = 63;  // RFC 1123, section 2.1

// Error(kUsage) unless `value` is an RFC 1123 label: lower-case letters, digits and '-', beginning and ending
// with a letter or digit, at most 63 characters together with the `suffix` that a controller appends
// ("-node-0-3").
void check_label(std::string_view flag, std::string_view value, std::string_view suffix = {});

// Like check_label(), for names that may have dots, such as a storage class: labels of any length joined by
// '.', at most 253 characters in all.
void check_object_name(std::string_view flag, std::string_view value);

// Error(kUsage) unless `value` is text that YAML carries unchanged: valid UTF-8 without control characters
// and line breaks, at most 4096 bytes.
void check_text(std::string_view flag, std::string_view value);

// A label made of any text, for a default name: "meta-llama/Llama-3.1-8B" becomes "llama-3-1-8b". "" if
// nothing is left.
std::string label_of(std::string_view text, size_t max_length = kMaxLabelLength);

}  // namespace tessera
