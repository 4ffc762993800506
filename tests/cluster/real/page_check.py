#!/usr/bin/env python3
"""Follows docs/kubernetes.md: runs the commands of its indented blocks and its Python code, in their order, on nodes that kwok pretends.
Left out are those that need AWS, or a process in a pod (train_check.py has some)."""
import os
import re
import shutil
import subprocess

from cluster import (ROOT, SET, STATE, add_namespace, add_node, apply, attempt, check, check_status, deploy, end_pod, find, get, index_of, kubectl, request,
                     wait)

FOLDER = f"{STATE}/reader"
LEFT_OUT = re.compile(r"deploy/eks/|--namespace monitoring|port-forward|kubectl logs|tessera watch")
# What the reader fills in.
VALUES = {"NODE...": " ".join(f"node-{i}" for i in range(1, 9)), "hf_...": "hf_reader"}
# The reader's program adds what the page says of other versions of Kubeflow Trainer, and plans without the Hub.
PROGRAM = f"""#!/bin/sh
case "$1 $2" in
  "deploy kubernetes") set -- "$@" --trainer {SET} --model_config llama3.2-1b ;;
  "deploy runtime") set -- "$@" --trainer {SET} ;;
esac
exec "$TESSERA" "$@"
"""


def run(*command):
    environment = {**os.environ, "PATH": f"{FOLDER}:{os.environ['PATH']}", "NODES": "2"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER, env=environment)


def prepare(command):
    """What the page takes for granted before a command."""
    if command.startswith("kubectl apply --server-side -f job.yaml"):  # up.sh has run
        apply(deploy("runtime", "--trainer", SET, "--nfs", "10.0.0.5:/export"))
        apply(deploy("queue", "--nodes", "4"))
    elif command.startswith("kubectl label node"):
        kubectl("label", "node", "--selector", "nodeType=cpu-amx", "nodeType-")
    elif command.startswith("kubectl create namespace"):
        kubectl("delete", "namespace", "training")
        kubectl("delete", "persistentvolume", "training-training-data")
    elif command.startswith("kubectl delete namespace"):
        check_nothing_is_shared()
    elif "enforce=baseline" in command:
        wait("the namespace of before is gone", lambda: request("GET", "api/v1/namespaces/training") is None)
        add_namespace("training", **{"pod-security.kubernetes.io/enforce": "restricted"})
        apply(deploy("runtime", "--trainer", SET, "--fsx", "fs-0123.fsx.eu-west-1.amazonaws.com/abcdef"))
        check_status("training-data-owner", 2, "the cluster refuses its pods", "violates PodSecurity")
    elif "--for=condition=complete" in command:
        end_pod(wait("the owner's pod", lambda: find("pods", "batch.kubernetes.io/job-name=training-data-owner"))[0], 0, "chown")


def check_nothing_is_shared():
    """What `deploy runtime` and `deploy queue` have written is gone, and the namespace is not."""
    kinds = ("clustertrainingruntime,priorityclass,persistentvolume,persistentvolumeclaim,networkpolicy,clusterqueue,localqueue,resourceflavor,"
             "workloadpriorityclass")
    found = kubectl("get", kinds, "--namespace", "training", "--output", "name", "-l",
                    "app.kubernetes.io/part-of=tessera,!app.kubernetes.io/instance").stdout.split()  # jobs have policies of their own
    left = [each for each in found if not re.search("cuda|gpu", each)]  # the page deletes one runtime and its queue
    check(not left, "page: its commands delete what all jobs share", left)
    check(get("secrets", "tessera-metrics"), "page: and leave the namespace with its Secrets")


def check_command(command):
    prepare(command)
    for placeholder, value in VALUES.items():
        command = command.replace(placeholder, value)
    answer = run("bash", "-ec", f"set -o pipefail\n{command}")
    check(answer.returncode == 0, f"page: {command}", f"{answer.returncode}: {answer.stdout}{answer.stderr}")
    for name in re.findall(r"^(?:trainjob|job|pod)\S*/(\S+) serverside-applied", answer.stdout, re.M):
        wait(f"the pods of {name} run", lambda n=name: (pods := [each for each in find("pods") if each["metadata"]["name"].startswith(n)])
             and all(each["status"]["phase"] == "Running" for each in pods))


def check_code(code):
    answer = run(f"{os.environ['CLUSTER_CACHE']}/python/bin/python", "-c", code)
    check(answer.returncode == 0, "page: its code for the Kubeflow SDK", answer.stderr)
    wait("the pods of the SDK's job run", lambda: len(find("pods", "app.kubernetes.io/instance=tessera")) == 2)


def check_left_out(command):
    print(f"left out: {command}", flush=True)
    if selector := re.search(r"--selector ([^\s)]+)", command):
        pods = find("pods", selector[1])
        check([index_of(each) for each in pods] == [0], f"page: {selector[1]} is rank 0's pod", [each["metadata"]["name"] for each in pods])


def main():
    with open(f"{ROOT}/docs/kubernetes.md", encoding="utf-8") as file:
        page = re.sub(r"\\\n\s*", "", file.read())
    os.mkdir(FOLDER)
    with open(f"{FOLDER}/tessera", "w", encoding="utf-8") as file:
        file.write(PROGRAM)
    os.chmod(f"{FOLDER}/tessera", 0o755)
    shutil.copy(f"{ROOT}/tests/manifests/other_trainjob.yaml", f"{FOLDER}/t5-large.yaml")
    for i in range(1, 9):
        add_node(f"node-{i}", "r7i.16xlarge", 64, "500Gi", "spot", devices=["nvidia.com/gpu", "vpc.amazonaws.com/efa"])
    add_node("card", "g6e.xlarge", 4, "31Gi", kind="gpu", taint="nvidia.com/gpu", devices=["nvidia.com/gpu"])
    add_node("system", "m7i.large", 2, "8Gi", kind="system")
    kubectl("taint", "node", "system", "intel.com/amx-")
    for code, command in re.findall(r"^```python\n(.*?)^```|^    ((?:kubectl|tessera|deploy/|envsubst|[A-Z_]+=)[^\n]*)", page, re.M | re.S):
        if code:
            attempt("page: its code", lambda c=code: check_code(c))
        else:
            command = re.sub(r"\s+# .*", "", command)
            scenario = check_left_out if LEFT_OUT.search(command) else check_command
            attempt(f"page: {command}", lambda s=scenario, c=command: s(c))
    # For other stages.
    kubectl("delete", "namespace", "training")
    kubectl("delete", "persistentvolume,node", "--all")
    kubectl("create", "namespace", "training")


if __name__ == "__main__":
    main()
