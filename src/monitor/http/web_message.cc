#include "monitor/http/web_message.h"

#include <fmt/format.h>

#include <charconv>
#include <iterator>

namespace tessera {
namespace {

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 303:
      return "See Other";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

// Decodes application/x-www-form-urlencoded; a malformed escape stays as it is.
std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      const char* digits = text.data() + i + 1;
      if (std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
        out += static_cast<char>(value);
        i += 2;
        continue;
      }
    }
    out += text[i] == '+' ? ' ' : text[i];
  }
  return out;
}

}  // namespace

WebResponse text_response(int status, std::string text, std::string content_type) {
  return {.status = status,
          .content_type = std::move(content_type),
          .body = std::make_shared<const std::string>(std::move(text))};
}

std::string event_text(const WebEvent& event) {
  std::string out = fmt::format("id: {}\n", event.id);
  if (!event.type.empty()) fmt::format_to(std::back_inserter(out), "event: {}\n", event.type);
  std::string_view rest = event.data;
  while (true) {
    // Clients take each of \n, \r\n and \r for the end of a line.
    const size_t end = rest.find_first_of("\r\n");
    fmt::format_to(std::back_inserter(out), "data: {}\n", rest.substr(0, end));
    if (end == rest.npos) return out + '\n';
    rest.remove_prefix(end + (rest.substr(end, 2) == "\r\n" ? 2 : 1));
  }
}

std::string response_head(const WebResponse& response, bool keep_alive) {
  std::string head = fmt::format(
      "HTTP/1.1 {} {}\r\n"
      "Content-Type: {}\r\n"
      "Content-Security-Policy: {}\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "X-Frame-Options: DENY\r\n"
      "Referrer-Policy: no-referrer\r\n"
      "Cross-Origin-Resource-Policy: same-origin\r\n"
      "Cache-Control: no-store\r\n"
      "Connection: {}\r\n",
      response.status, reason_of(response.status), response.content_type, response.content_security_policy,
      keep_alive ? "keep-alive" : "close");
  if (response.channel.empty()) {
    const size_t size = response.body == nullptr ? 0 : response.body->size();
    fmt::format_to(std::back_inserter(head), "Content-Length: {}\r\n", size);
  }
  for (const auto& [name, value] : response.headers) {
    fmt::format_to(std::back_inserter(head), "{}: {}\r\n", name, value);
  }
  return head + "\r\n";
}

WebRequest parse_target(std::string_view target) {
  WebRequest request;
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  std::string_view query = question == target.npos ? "" : target.substr(question + 1);
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view field = query.substr(0, end);
    const size_t equals = std::min(field.find('='), field.size());
    request.query.emplace(decoded(field.substr(0, equals)),
                          decoded(equals < field.size() ? field.substr(equals + 1) : ""));
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return request;
}

}  // namespace tessera
