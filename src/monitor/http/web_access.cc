#include "monitor/http/web_access.h"

#include <fmt/format.h>

#include <utility>

#include "base/text.h"
#include "comm/ranks/proof.h"

namespace tessera {
namespace {

bool all_of(std::string_view text, std::string_view allowed) {
  return text.find_first_not_of(allowed) == text.npos;
}

}  // namespace

WebAccess::WebAccess(std::string token, bool is_local, int port)
    : token_(std::move(token)), is_local_(is_local), cookie_name_(fmt::format("tessera_{}", port)) {}

bool WebAccess::is_expected_host(std::string_view host) const {
  if (!is_local_) return true;
  // Any port: a tunnel has its own.
  const size_t colon = host.rfind(':');
  if (colon != host.npos && all_of(host.substr(colon + 1), "0123456789")) host = host.substr(0, colon);
  return lower_case(std::string(host)) == "localhost" || host == "[::1]" ||
         (host.starts_with("127.") && all_of(host, "0123456789."));
}

bool WebAccess::is_token(std::string_view candidate) const {
  // Their MACs are compared in constant time, which tells nothing about the token or its length.
  return !token_.empty() &&
         is_equal(hmac_sha256("web token", {candidate}), hmac_sha256("web token", {token_}));
}

bool WebAccess::is_allowed(std::string_view authorization, std::string_view cookie) const {
  if (token_.empty()) return true;
  constexpr std::string_view kBearer = "bearer ";
  if (lower_case(std::string(authorization.substr(0, kBearer.size()))) == kBearer &&
      is_token(authorization.substr(kBearer.size()))) {
    return true;
  }
  while (!cookie.empty()) {
    const std::string_view pair = cookie.substr(0, cookie.find(';'));
    const size_t equals = pair.find('=');
    if (equals != pair.npos && pair.substr(0, equals) == cookie_name_ && is_token(pair.substr(equals + 1))) {
      return true;
    }
    cookie.remove_prefix(std::min(pair.size() + 1, cookie.size()));
    while (cookie.starts_with(' ')) cookie.remove_prefix(1);
  }
  return false;
}

std::string WebAccess::cookie() const {
  return fmt::format("{}={}; Path=/; HttpOnly; SameSite=Strict", cookie_name_, token_);
}

}  // namespace tessera
