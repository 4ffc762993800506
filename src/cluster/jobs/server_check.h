// What only a cluster can say about manifests that are to be applied.
#pragma once

#include <string>
#include <vector>

#include "cluster/jobs/kubectl.h"
#include "cluster/manifests/manifest.h"

namespace tessera {

struct ServerCheck {
  std::vector<std::string> findings;  // what it refuses, and what is missing there
  std::vector<std::string> notes;     // its warnings, and what it could not check
};

// Lets the cluster check the documents as if they were applied (a dry run, strict about unknown fields), and
// looks for the Secrets, claims, queues, runtimes and priority classes that they refer to and do not bring.
// `text` is what the manifests were read from. Errors of check_connection().
ServerCheck check_on_server(const Kubectl& kubectl, const std::string& text,
                            const std::vector<Manifest>& manifests);

}  // namespace tessera
