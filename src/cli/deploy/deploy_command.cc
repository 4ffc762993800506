#include "cli/deploy/deploy_command.h"

#include "base/error.h"
#include "cli/terminal/terminal.h"
#include "cluster/manifests/lint.h"
#include "cluster/manifests/names.h"

namespace tessera {

void DeployCommand::declare_common_flags(FlagTable* table) {
  table->add("namespace", &namespace_, "Namespace of the objects.");
  table
      ->add("templates", &templates_,
            "Folder with templates that replace the shipped ones of the same names; `tessera deploy "
            "templates` writes those.")
      .value_name = "DIR";
}

void DeployCommand::declare_pod_flags(FlagTable* table) {
  table
      ->add("image", &pod_.image,
            fmt::format("Image of the pods, as deploy/docker builds it; by default tessera:{0}, with device "
                        "cuda tessera:{0}-cuda.",
                        TESSERA_VERSION))
      .value_name = "NAME";
  table->add("claim", &pod_.claim, "PersistentVolumeClaim that all pods mount at /data.").value_name = "NAME";
  table
      ->add("hf_token_secret", &pod_.hf_secret,
            "Secret whose key token is the token for the Hugging Face Hub.")
      .value_name = "NAME";
  table
      ->add("priority_class", &pod_.priority_class,
            "PriorityClass of the pods, and WorkloadPriorityClass of jobs.")
      .value_name = "NAME";
  table
      ->add("runtime", &runtime_,
            "ClusterTrainingRuntime of Kubeflow Trainer; by default tessera-amx, with device cuda "
            "tessera-cuda.")
      .value_name = "NAME";
  table->add("node_check", &pod_.node_check, "Run `tessera doctor --node-check` before a pod joins the job.");
}

PodSettings DeployCommand::pod_settings(bool on_card) const {
  PodSettings pod = pod_;
  pod.on_card = on_card;
  pod.needs_amx = !on_card;
  pod.runtime = runtime_.empty() ? node_kind(on_card).runtime : runtime_;
  pod.name_space = name_space();
  if (pod.image.empty()) pod.image = fmt::format("tessera:{}{}", TESSERA_VERSION, on_card ? "-cuda" : "");
  check_text("image", pod.image);
  if (pod.image.find(' ') != std::string::npos) {
    fail(ExitCode::kUsage, "--image: expected the name of an image, found '{}'", pod.image);
  }
  check_object_name("claim", pod.claim);
  check_object_name("hf_token_secret", pod.hf_secret);
  check_object_name("priority_class", pod.priority_class);
  if (pod.priority_class.size() > kMaxLabelLength) {
    fail(
        ExitCode::kUsage,
        "--priority_class: expected at most {} characters, as Kueue has it as the value of a label, found {}",
        kMaxLabelLength, pod.priority_class.size());
  }
  check_object_name("runtime", pod.runtime);
  return pod;
}

const std::string& DeployCommand::name_space() const {
  check_label("namespace", namespace_);
  return namespace_;
}

void DeployCommand::write_manifests(const std::string& text) const {
  check_manifests(text, name(), templates_.empty() ? ExitCode::kInternal : ExitCode::kBadData);
  // The separator makes it possible to concatenate outputs.
  write_result("---\n" + text);
}

Value::Object DeployCommand::common_context() const {
  return {{"namespace", name_space()}, {"version", TESSERA_VERSION}};
}

}  // namespace tessera
