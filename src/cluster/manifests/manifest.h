// YAML documents of Kubernetes, read as kubectl reads them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"

namespace tessera {

struct Manifest {
  Value body;
  std::string origin;  // "job.yaml:12", the line where the document begins

  // "" if there is none.
  std::string api() const;  // apiVersion
  std::string kind() const;
  std::string name() const;
  std::string name_space() const;
  // "job.yaml:12: TrainJob llama".
  std::string title() const;
};

// Documents, and the items of a List, which `kubectl get` prints. Error(kBadData), one line with file and
// line: not YAML; a name given twice; anchors and aliases; a plain yes, which kubectl, by YAML 1.1, takes for
// true (0440 is octal here as there); more than 64 levels, 200,000 values, 2000 names in an object or 8 MiB.
std::vector<Manifest> parse_manifests(std::string_view text, const std::string& origin);

// The value at a path of names and list indices, null if there is none: at(body, "spec.template.0.name"). A
// name with dots is in quotes: "metadata.labels.'app.kubernetes.io/name'".
const Value* value_at(const Value& value, std::string_view path);
// Likewise as a list, empty if there is none; as text, "" if there is none.
const Value::List& list_at(const Value& value, std::string_view path);
std::string text_at(const Value& value, std::string_view path);

}  // namespace tessera
