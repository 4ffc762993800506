// Access control of a WebServer.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

class WebAccess {
 public:
  // `token`: "" = none is asked for. `is_local`: the server listens on loopback only.
  WebAccess(std::string token, bool is_local, int port);

  const std::string& token() const { return token_; }

  // Whether the Host header is one under which a browser of this machine reaches a server on loopback. A page
  // of another site whose name has been made to resolve to 127.0.0.1 (DNS rebinding) sends its own name. True
  // for a server that others reach: it has a token, which such a page does not know.
  bool is_expected_host(std::string_view host) const;

  // Whether one of these is right: `authorization` ("Bearer TOKEN"), `cookie` (a Cookie header).
  bool is_allowed(std::string_view authorization, std::string_view cookie) const;
  bool is_token(std::string_view candidate) const;  // false if there is none

  // A Set-Cookie header that spares a browser the token from now on. Cookies are not separated by port: the
  // name says which one it is for.
  std::string cookie() const;

 private:
  std::string token_;
  bool is_local_;
  std::string cookie_name_;
};

}  // namespace tessera
