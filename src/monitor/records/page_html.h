// The page that shows runs, built from src/monitor/web.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera {

// False if the program was built without npm: there is no page.
bool has_page();
// kBadConfig, with how to get it, if this build has no page. `what` needs it: "tessera report".
void check_page(const std::string& what);

// The page without data: it asks its server for them.
std::string live_page();
// The page with its data: {"runs": [...], "version": "..."}; needs no server and no network.
std::string report_page(const nlohmann::ordered_json& data);

// Content-Security-Policy of the page when a server sends it: its own script and style by their hashes, and
// requests to the server.
std::string page_security_policy();

}  // namespace tessera
