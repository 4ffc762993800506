// The subcommands of `tessera deploy` share these flags: the namespace and the user's templates.
#pragma once

#include <string>
#include <vector>

#include "base/value.h"
#include "cli/command.h"
#include "cluster/manifests/job_manifest.h"
#include "cluster/manifests/templates.h"

namespace tessera {

class DeployCommand : public Command {
 public:
  // A pod resolves them.
  bool resolves_hub_names() const override { return false; }
  // Error(kUsage) for what Kubernetes takes for no name, and for text that YAML does not carry.
  void complete_flags(FlagTable* table) override;

 protected:
  // --namespace and --templates.
  void declare_common_flags(FlagTable* table);

  // --image, --claim, --hf_token_secret, --priority_class, --runtime and --node_check.
  void declare_pod_flags(FlagTable* table);

  // For pods on cards or on processors, with the namespace. Error(kUsage).
  PodSettings pod_settings(bool on_card) const;
  // For pods on cards or on processors.
  static std::string default_image(bool on_card);
  const std::string& name_space() const { return namespace_; }
  DeployTemplates templates() const { return DeployTemplates(templates_); }
  // Writes manifests to standard output once they have passed lint_manifests(): a finding is a bug of the
  // shipped templates, Error(kInternal), or a mistake in the user's, Error(kBadData).
  void write_manifests(const std::string& text) const;
  // The variables of a template: the flags by their names, the version of the program, and `more`, which
  // replace flags of the same name.
  Value::Object variables(const FlagTable& table, Value::Object more) const;

 private:
  std::string namespace_ = "training";
  std::string templates_;
  PodSettings pod_;
  std::string runtime_;
};

}  // namespace tessera
