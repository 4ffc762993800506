#include "hub/hub_settings.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr int64_t kMaxTokenBytes = 1 << 16;

std::string value_or(const HubVariables& variables, std::initializer_list<const char*> names,
                     std::string fallback) {
  for (const char* const name : names) {
    const std::optional<std::string> value = variables(name);
    if (value && !value->empty()) return *value;
  }
  return fallback;
}

bool is_true(const HubVariables& variables, std::initializer_list<const char*> names) {
  const std::string value = lower_case(value_or(variables, names, ""));
  return value == "1" || value == "on" || value == "yes" || value == "true";
}

// "~" and "$NAME" as Python's expanduser and expandvars have them.
std::filesystem::path expanded(std::string text, const HubVariables& variables) {
  if (text == "~" || text.starts_with("~/")) text.replace(0, 1, value_or(variables, {"HOME"}, "/"));
  for (size_t at = 0; (at = text.find('$', at)) != std::string::npos;) {
    const bool braces = at + 1 < text.size() && text[at + 1] == '{';
    const size_t begin = at + (braces ? 2 : 1);
    size_t end = begin;
    while (end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_'))
      ++end;
    const std::optional<std::string> value = variables(text.substr(begin, end - begin));
    const bool is_closed = !braces || (end < text.size() && text[end] == '}');
    if (end == begin || !is_closed || !value) {
      ++at;
    } else {
      text.replace(at, end + (braces ? 1 : 0) - at, *value);
      at += value->size();
    }
  }
  return text;
}

std::string trimmed(std::string text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_space));
  while (!text.empty() && is_space(text.back())) text.pop_back();
  return text;
}

void read_token(const HubVariables& variables, const std::filesystem::path& home, HubSettings* out) {
  if (is_true(variables, {"HF_HUB_DISABLE_IMPLICIT_TOKEN"})) {
    out->token_source = "HF_HUB_DISABLE_IMPLICIT_TOKEN is set";
    return;
  }
  for (const char* const name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    out->token = trimmed(variables(name).value_or(""));
    out->token_source = name;
    if (!out->token.empty()) break;
  }
  if (out->token.empty()) {
    const std::filesystem::path file =
        expanded(value_or(variables, {"HF_TOKEN_PATH"}, (home / "token").string()), variables);
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) {
      out->token = trimmed(read_text_file(file, kMaxTokenBytes));
      out->token_source = file.string();
    } else {
      out->token_source = "found neither in HF_TOKEN nor in " + file.string();
    }
  }
  // It becomes part of a header.
  if (std::any_of(out->token.begin(), out->token.end(), [](char c) { return c <= ' ' || c > '~'; }))
    fail(ExitCode::kBadConfig, "{}: expected a token, one word of printable ASCII characters",
         out->token_source);
}

void read_timeout(const HubVariables& variables, HubSettings* out) {
  const std::string text = value_or(variables, {"HF_HUB_DOWNLOAD_TIMEOUT"}, "10");
  const int64_t seconds = parse_integer(text).value_or(0);
  if (seconds < 1 || seconds > 86400)
    fail(ExitCode::kBadConfig, "HF_HUB_DOWNLOAD_TIMEOUT: expected 1 to 86400 seconds, found '{}'",
         printable(text));
  out->timeout = std::chrono::seconds(seconds);
}

}  // namespace

HubSettings hub_settings(const HubVariables& variables) {
  HubSettings out;
  out.min_bytes_per_second = 100;  // slower than any network
  out.endpoint = value_or(variables, {"HF_ENDPOINT"}, out.endpoint);
  while (out.endpoint.ends_with('/')) out.endpoint.pop_back();
  if (!out.endpoint.starts_with("https://") && !out.endpoint.starts_with("http://"))
    fail(ExitCode::kBadConfig, "HF_ENDPOINT: expected an address such as https://huggingface.co, found '{}'",
         printable(out.endpoint));
  const std::string cache_home = value_or(variables, {"XDG_CACHE_HOME"}, "~/.cache");
  const std::filesystem::path home =
      expanded(value_or(variables, {"HF_HOME"}, cache_home + "/huggingface"), variables);
  out.cache = expanded(
      value_or(variables, {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}, (home / "hub").string()), variables);
  out.offline = is_true(variables, {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"});
  out.ca_file = value_or(variables, {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}, "");
  read_token(variables, home, &out);
  read_timeout(variables, &out);
  return out;
}

HubSettings hub_settings() {
  return hub_settings([](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

}  // namespace tessera
