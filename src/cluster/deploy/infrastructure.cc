#include "cluster/deploy/infrastructure.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "formats/json.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 20;
constexpr size_t kMaxIdBytes = 512;

bool is_id_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_.:/@+=,").find(c) != std::string_view::npos;
}

// An id, ARN, host name or zone of AWS.
const std::string& check_id(const std::string& where, const std::string& text) {
  if (!text.empty() && text.size() <= kMaxIdBytes && std::ranges::all_of(text, is_id_character)) return text;
  fail(ExitCode::kBadData,
       "{}: expected an id of AWS, found '{}': is this what `terraform output -json` wrote?", where,
       printable(text));
}

std::string id_of(const JsonNode& node) { return check_id(node.where(), node.string()); }

Value::Object ids_of(const JsonNode& node, std::initializer_list<std::string_view> keys) {
  Value::Object result;
  for (const std::string_view key : keys) result.push_back({std::string(key), id_of(node[key])});
  return result;
}

// Subnets by zone.
Value::Object subnets_of(const JsonNode& node) {
  Value::Object result;
  for (const auto& [zone, subnet] : node.object().items()) {
    result.push_back({check_id(node.where(), zone), id_of(node[zone])});
  }
  if (result.size() < 2) {
    fail(ExitCode::kBadData, "{}: expected subnets in two zones or more, which EKS asks for, found {}",
         node.where(), result.size());
  }
  return result;
}

}  // namespace

Infrastructure read_infrastructure(const std::filesystem::path& path) {
  const std::string origin = path.string();
  const Json document = parse_json(read_text_file(path, kMaxFileBytes), origin);
  const JsonNode root(document, origin);
  const auto output = [&](std::string_view name) { return root[name]["value"]; };
  Infrastructure result;
  result.name = id_of(output("name"));
  result.region = id_of(output("region"));
  result.zone = id_of(output("zone"));
  result.storage = id_of(output("storage"));
  const bool is_fsx = result.storage == "fsx";
  const bool is_efs = result.storage == "efs";
  if (!is_fsx && !is_efs && result.storage != "s3") {
    fail(ExitCode::kBadData, "{}: expected fsx, efs or s3, found '{}'", output("storage").where(),
         result.storage);
  }
  result.values = {{"vpc_id", id_of(output("vpc_id"))},
                   {"private_subnets", subnets_of(output("private_subnets"))},
                   {"public_subnets", subnets_of(output("public_subnets"))},
                   {"service_role_arns", ids_of(output("service_role_arns"), {"cluster", "system", "node"})}};
  Value::Object roles = ids_of(output("pod_role_arns"), {"karpenter", "cni", "ebs"});
  if (!is_fsx) roles.push_back({result.storage, id_of(output("pod_role_arns")[result.storage])});
  result.values.push_back({"pod_role_arns", std::move(roles)});
  Value::List groups;
  for (const JsonNode& group : output("storage_security_groups").list()) groups.emplace_back(id_of(group));
  result.values.push_back({"storage_security_groups", std::move(groups)});
  if (is_fsx || is_efs) {
    const JsonNode node = output("file_system");
    Value::Object system =
        is_fsx ? ids_of(node, {"id", "dns_name", "mount_name"}) : ids_of(node, {"id", "access_point"});
    system.push_back({"gib", node["gib"].integer(1, int64_t{1} << 30)});
    result.values.push_back({"file_system", std::move(system)});
  } else {
    result.values.push_back({"bucket", id_of(output("bucket"))});
  }
  return result;
}

}  // namespace tessera
