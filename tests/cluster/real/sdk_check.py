#!/usr/bin/env python3
"""The Kubeflow SDK lists the runtimes that `tessera deploy runtime` has written, and starts a job with one of them."""
import logging

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainerContainer, TrainerClient
from kubeflow.trainer.options import TrainerArgs
from kubernetes import client

from cluster import NAMESPACE, STATE, TOKEN, attempt, check, delete, find, get, wait

ARGUMENTS = ["--model=org/model", "--dataset=org/rows"]


def main():
    # Of runtimes without a framework, which are not for the SDK, and of a ConfigMap that Kubeflow Trainer has in clusters only.
    logging.disable(logging.CRITICAL)
    config = client.Configuration(host="https://127.0.0.1:6443", api_key={"authorization": TOKEN}, api_key_prefix={"authorization": "Bearer"})
    config.ssl_ca_cert = f"{STATE}/tls/ca.crt"
    trainer = TrainerClient(KubernetesBackendConfig(client_configuration=config, namespace=NAMESPACE))
    frameworks = {each.name: each.trainer.framework for each in trainer.list_runtimes()}
    check(frameworks.get("tessera") == frameworks.get("tessera-cuda") == "tessera", "the Kubeflow SDK lists the runtimes", frameworks)
    name = trainer.train(runtime=trainer.get_runtime("tessera"), options=[TrainerArgs(ARGUMENTS)], trainer=CustomTrainerContainer(
        image="registry.example/tessera:1", num_nodes=2, resources_per_node={"cpu": 60, "memory": "400Gi"}))
    block = get("trainjobs", name)["spec"]["trainer"]
    check(block["args"] == ARGUMENTS and "command" not in block and block["numNodes"] == 2 and
          block["resourcesPerNode"]["limits"]["memory"] == "400Gi", "the SDK starts a job whose command is the runtime's", block)
    pods = wait("the pods of that job", lambda: len(found := find("pods", f"jobset.sigs.k8s.io/jobset-name={name}")) == 2 and found)
    container = next(each for each in pods[0]["spec"]["containers"] if each["name"] == "node")
    words = container.get("command", []) + container["args"]
    check(words[0] == "tessera" and words[-2:] == ARGUMENTS, "its pods run tessera with those arguments", words)
    delete("trainjobs", name)


if __name__ == "__main__":
    attempt("the Kubeflow SDK", main)
