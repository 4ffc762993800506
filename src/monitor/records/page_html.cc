#include "monitor/records/page_html.h"

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/error.h"

namespace tessera {

// Written by the build from src/monitor/web/bundle.mjs: pieces of the page, split at the place for the data,
// and its policy.
namespace page_parts {
extern const std::span<const std::string_view> before_data;
extern const std::span<const std::string_view> after_data;
extern const std::string_view security_policy;
}  // namespace page_parts

namespace {

std::string page_with(std::string_view data) {
  std::string page;
  for (const std::string_view part : page_parts::before_data) page += part;
  page += data;
  for (const std::string_view part : page_parts::after_data) page += part;
  return page;
}

}  // namespace

bool has_page() { return !page_parts::before_data.empty(); }

void check_page(const std::string& what) {
  if (has_page()) return;
  fail(
      ExitCode::kBadConfig,
      "{}: this build has no page, because npm or the package uplot could not be had; install nodejs and npm "
      "and build again with network access",
      what);
}

std::string live_page() { return page_with({}); }

std::string report_page(const nlohmann::ordered_json& data) {
  std::string text = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // Text in the data cannot end the element that holds it.
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos; at += 6) text.replace(at, 1, "\\u003c");
  return page_with("<script type=\"application/json\" id=\"data\">" + text + "</script>");
}

std::string page_security_policy() { return std::string(page_parts::security_policy); }

}  // namespace tessera
