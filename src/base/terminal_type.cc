#include "base/terminal_type.h"

#include <cstdlib>
#include <string_view>

namespace tessera {

bool terminal_takes_escapes() {
  const char* type = std::getenv("TERM");
  return type == nullptr || std::string_view(type) != "dumb";
}

bool terminal_takes_colours() {
  const char* wish = std::getenv("NO_COLOR");
  return (wish == nullptr || *wish == '\0') && terminal_takes_escapes();
}

}  // namespace tessera
