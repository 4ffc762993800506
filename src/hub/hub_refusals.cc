// Explains a hub's refusals, in one line each.
#include <algorithm>

#include "base/name_hint.h"
#include "base/text.h"
#include "hub/hub_client.h"

namespace tessera {

std::string HubClient::hint(const std::string& name, const std::string& list_url,
                            std::vector<std::string> (*parse)(std::string_view)) {
  try {
    HttpConnection connection(settings_);
    const HttpAnswer answer = connection.perform({.url = list_url,
                                                  .is_head = false,
                                                  .token = settings_.token,
                                                  .range = "",
                                                  .limit = settings_.timeout});
    if (answer.status != 200) return "";
    const std::string nearest = nearest_name(name, parse(answer.body));
    return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", printable(nearest, 200));
  } catch (const HttpFailure&) {
    return "";
  }
}

const char* HubClient::kind() const { return repo_.type == RepoType::kModel ? "model" : "data set"; }

std::string HubClient::nearest_repository() {
  const std::string organisation = repo_.id.substr(0, repo_.id.find('/'));
  return hint(repo_.id, api_url("?author=" + organisation + "&limit=1000"), parse_repo_ids);
}

// A hub answers 401 for what is private, gated or does not exist to those who have not logged in.
void HubClient::fail_refused(const HttpAnswer& answer) {
  const std::string page =
      fmt::format("{}/{}{}", settings_.endpoint, repo_.type == RepoType::kModel ? "" : "datasets/", repo_.id);
  const std::string message = answer.header("x-error-message");
  const bool is_gated = answer.header("x-error-code") == "GatedRepo";
  std::string text;
  if (settings_.token.empty()) {
    const std::string log_in =
        fmt::format("set HF_TOKEN, or log in with 'hf auth login' (no token: {})", settings_.token_source);
    text = is_gated ? fmt::format("is gated: ask for access at {}, then {}", page, log_in)
                    : fmt::format("neither a local path nor a public {} at {}: check the name, or {}{}",
                                  kind(), settings_.endpoint, log_in, nearest_repository());
  } else if (is_gated) {
    text = fmt::format("is gated, and the account of the token from {} has no access: ask for it at {}",
                       settings_.token_source, page);
  } else if (answer.status == 401 && lower_case(message).find("invalid") != std::string::npos) {
    text =
        fmt::format("the Hub rejects the token from {}: {}: make a new one, or log in with 'hf auth login'",
                    settings_.token_source, printable(message));
  } else {
    text = fmt::format(
        "the token from {} does not open it (status {}{}{}): check the name and what the token may read",
        settings_.token_source, answer.status, message.empty() ? "" : ": ", printable(message));
  }
  throw HubUnavailable(ExitCode::kNoInput, fmt::format("{}: {}", repo_.id, text));
}

void HubClient::fail_not_found(const HttpAnswer& answer, const std::string& path) {
  const std::string code = answer.header("x-error-code");
  if (code == "EntryNotFound" || (code.empty() && !path.empty()))
    fail(ExitCode::kNoInput, "{}: has no file '{}'", repo_.text(), printable(path, 200));
  if (code == "RevisionNotFound" || (code.empty() && repo_.revision != "main"))
    fail(ExitCode::kNoInput, "{}: has no revision '{}'{}", repo_.id, repo_.revision,
         hint(repo_.revision, api_url("/" + repo_.id + "/refs"), parse_ref_names));
  fail(ExitCode::kNoInput,
       "{}: neither a local path nor a {} at {} (or it is private, and the token, {}, does not open it){}",
       repo_.id, kind(), settings_.endpoint, settings_.token_source, nearest_repository());
}

void HubClient::fail_status(const HttpAnswer& answer, const std::string& path) {
  const std::string name = path.empty() ? repo_.text() : repo_.text() + ": " + printable(path, 200);
  const std::string message = printable(answer.header("x-error-message"), 200);
  if (answer.status == 401 || answer.status == 403) fail_refused(answer);
  if (answer.status == 404 || answer.status == 410) fail_not_found(answer, path);
  if (answer.status == 429)
    throw HubUnavailable(
        ExitCode::kIoError,
        fmt::format("{}: the Hub answers 429, too many requests, also after waiting: try again later{}", name,
                    settings_.token.empty() ? "; with a token (HF_TOKEN) the limit is higher" : ""));
  if (answer.status == 416)
    fail(ExitCode::kIoError, "{}: the server has fewer bytes than it announced (416): try again", name);
  if (answer.status >= 500)
    throw HubUnavailable(ExitCode::kIoError,
                         fmt::format("{}: the server answers {}: try again later", name, answer.status));
  fail(ExitCode::kBadData, "{}: the server answers {}{}{}: is HF_ENDPOINT a Hugging Face hub?", name,
       answer.status, message.empty() ? "" : ": ", message);
}

}  // namespace tessera
