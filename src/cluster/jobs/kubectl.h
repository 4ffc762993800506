// Reaches a cluster through kubectl, which knows the user's contexts, credentials and proxies.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/ranks/world.h"

namespace tessera {

struct KubectlAnswer {
  int exit_code = 0;
  std::string out;
  std::string err;
};

class Kubectl {
 public:
  // Runs $KUBECTL, or kubectl in PATH.
  explicit Kubectl(const Environment& environment, std::chrono::seconds limit = std::chrono::seconds(60));

  // Runs these commands at the same time, in processes that end with this call. Error(kNoInput) if there is
  // no kubectl, Error(kIoError) if a command has not answered within the limit, or answers more than 256 MiB.
  std::vector<KubectlAnswer> run(const std::vector<std::vector<std::string>>& commands) const;
  // One command that reads `input`.
  KubectlAnswer run_with(const std::string& input, const std::vector<std::string>& command) const;

 private:
  std::string program_;
  std::chrono::seconds limit_;
};

// Throws if the answer is none of the cluster's: Error(kBadConfig) if the user is not logged in or there is
// no configuration, Error(kIoError) if the cluster cannot be reached.
void check_connection(const KubectlAnswer& answer);

// Why an answer says nothing about what it was asked for.
enum class NoAnswer {
  kNone,       // it does
  kNoKind,     // the cluster does not have this kind of object
  kForbidden,  // this user may not see it
};

// Throws for what concerns every question: as check_connection(), and Error(kIoError) for anything unknown.
NoAnswer problem_of(const KubectlAnswer& answer);

}  // namespace tessera
