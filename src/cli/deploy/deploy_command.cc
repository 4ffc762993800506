#include "cli/deploy/deploy_command.h"

#include "deploy/names.h"

namespace tessera {

void DeployCommand::declare_common_flags(FlagTable* table) {
  table->add("namespace", &namespace_, "Namespace of what is written.");
  table
      ->add(
          "templates", &templates_,
          "Folder with templates to use instead of the shipped ones of the same names, which `tessera deploy "
          "templates` writes.")
      .value_name = "DIR";
}

const std::string& DeployCommand::name_space() const {
  check_label("namespace", namespace_);
  return namespace_;
}

Value::Object DeployCommand::common_context() const {
  return {{"namespace", name_space()}, {"version", TESSERA_VERSION}};
}

}  // namespace tessera
