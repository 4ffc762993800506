// Reads lines of JSON, {"template": "...", "context": {...}}, and prints for each a line: the rendered text
// as a JSON string, or {"error": "..."}; with {"raised": "..."} where the template called raise_exception.
// For comparison with other interpreters of Jinja. The clock stands at 2025-01-15 12:34:56.
#include <cstdio>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/value.h"
#include "jinja/template.h"
#include "support/value_json.h"

using nlohmann::ordered_json;
using tessera::Value;

int main() {
  tessera::jinja::RenderOptions options;
  options.clock = [] {
    std::tm time{};
    time.tm_year = 125;
    time.tm_mday = 15;
    time.tm_hour = 12;
    time.tm_min = 34;
    time.tm_sec = 56;
    time.tm_wday = 3;
    time.tm_yday = 14;
    return time;
  };
  for (std::string line; std::getline(std::cin, line);) {
    const auto json = ordered_json::parse(line);
    ordered_json out;
    try {
      const auto parsed = tessera::jinja::Template::parse(json["template"].get<std::string>(), "template");
      const Value context = tessera::to_value(json["context"]);
      out = parsed.render(*context.object(), options).text;
    } catch (const tessera::jinja::RaisedByTemplate& error) {
      out = {{"raised", error.message()}};
    } catch (const tessera::Error& error) {
      out = {{"error", error.what()}};
    }
    std::puts(out.dump(-1, ' ', false, ordered_json::error_handler_t::replace).c_str());
  }
  return 0;
}
