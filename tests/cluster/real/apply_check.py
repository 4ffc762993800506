#!/usr/bin/env python3
"""What the API server, its schemas, the webhooks and the policies of pods say about every kind of manifest that `tessera deploy` writes: a
server-side dry run, strict about fields that no schema has, in which also a warning is a failure."""
import concurrent.futures
import itertools
import json
import os
import re
import subprocess

from cluster import ROOT, SET, STATE, add_namespace, apply, attempt, check, deploy, kubectl, tessera

FOLDER = f"{STATE}/manifests"
# Client and server print these lines for objects that already exist, for every document, and for the Job that needs
# CHOWN (run_volume_owner of behave_check.py).
EXPECTED = re.compile(r"last-applied-configuration|serverside-applied|(created|configured|unchanged) \(server dry run\)|"
                      r"Warning: would violate PodSecurity \"restricted:latest\": unrestricted capabilities \(container \"chown\" must")

# A TrainJob gets these flags from its runtime, and a PyTorchJob has no check of its node.
OF_RUNTIMES = re.compile(r"--(node_check|metrics_port \d+|hf_token_secret \S+)")
RUN = "--model org/some-model --dataset org/rows --max_length 1024"
SHAPES = {
    "two": "--model_config llama3.2-1b --instance m7i.24xlarge --nodes 2 --node_check --metrics_port 9999",
    "four": "--model_config llama3-8b --instance r7i.16xlarge --nodes 4 --queue training --capacity spot --save_steps 50",
    "ranks": "--model_config llama3-8b --instance r7i.48xlarge --nodes 4 --nproc_per_node 4 --queue training --capacity on-demand "
             "--zero_stage 3 --gather_schedule per_layer",
    "own": "--model_config 160m --cpus 16 --memory 60GiB --nodes 3 --zone us-east-1a --queue training --hf_token_secret own-token",
    "topology": "--model_config llama3-8b --instance r7i.16xlarge --nodes 4 --queue training --topology",
    "efa": "--model_config llama3-8b --instance r7i.48xlarge --nodes 2 --fabric efa --efa 1 --image registry/tessera:fabric",
    "cuda": "--device cuda --model_config llama3.2-1b --instance g6e.xlarge --queue training-gpu",
    "claim": "--model_config llama3.2-1b --instance m7i.24xlarge --claim other --rendezvous_secret own-secret --zone us-east-1b",
}
OTHERS = {
    "runtime-nfs": f"runtime --trainer {SET} --nfs 10.0.0.5:/export --secrets",
    "runtime-fsx": f"runtime --trainer {SET} --fsx fs-0123.fsx.eu-west-1.amazonaws.com/abcdef --claim fsx-data --runtime tessera-fsx",
    "runtime-efs": f"runtime --trainer {SET} --efs fs-0123 --claim efs-data --runtime tessera-efs --node_check",
    "runtime-class": f"runtime --trainer {SET} --storage_class fsx --claim class-data --runtime tessera-class",
    "runtime-cuda": f"runtime --trainer {SET} --device cuda --nfs 10.0.0.5:/export",
    "runtime-job": "runtime --trainer job --nfs 10.0.0.5:/export",
    "queue": "queue --instance r7i.48xlarge --nodes 8",
    "queue-topology": "queue --topology --instance c7i.48xlarge --nodes 4",
    "queue-own": "queue --cpus 60 --memory 400GiB --nodes 3 --queue own",
    "queue-cuda": "queue --device cuda --instance g6e.xlarge --nodes 4",
    "cluster": "cluster --name training --region eu-west-1",
    "cluster-cuda": "cluster --name training --region eu-west-1 --device cuda",
    "cluster-reserved": "cluster --name training --region eu-west-1 --capacity_reservation cr-0123456789abcdef0",
    "cluster-efa": "cluster --name training --region eu-west-1 --efa",
    "alerts": "alerts",
    "alerts-secret": "alerts --token_secret tessera-metrics",
    "dashboards": "dashboards",
    "debug": "debug --efa 1 --image registry.example/tessera:efa",
    "debug-card": "debug --device cuda --node ip-10-0-1-10.ec2.internal",
    "debug-shell": "debug --what shell --claim training-data",
    "debug-network": "debug --what network --nodes 3",
    "debug-pair": "debug --what network --node node-a --node node-b",
}


def infrastructure(storage):
    """Returns what `terraform output -json` prints in deploy/eks/terraform."""
    subnets = {zone: f"subnet-0{i}" for i, zone in enumerate(["us-east-1a", "us-east-1b", "us-east-1c"])}
    arn = "arn:aws:iam::111122223333:role/"
    values = {
        "name": "demo", "region": "us-east-1", "zone": "us-east-1b", "storage": storage, "vpc_id": "vpc-0123",
        "private_subnets": subnets, "public_subnets": subnets,
        "service_role_arns": {key: arn + key for key in ["cluster", "system", "node"]},
        "pod_role_arns": {key: arn + key for key in ["karpenter", "cni", "ebs"] + [storage] * (storage != "fsx")},
        "bucket": "" if storage == "efs" else "tessera-demo-111122223333-us-east-1",
        "storage_security_groups": [] if storage == "s3" else ["sg-0123"],
        "file_system": {"id": "fs-0123", "dns_name": "fs-0123.fsx.us-east-1.amazonaws.com", "mount_name": "abcdefgh",
                        "access_point": "fsap-0123", "gib": 1200}}
    path = f"{FOLDER}/outputs-{storage}.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump({key: {"value": value, "sensitive": False} for key, value in values.items()}, file)
    return path


def other_job(kind):
    """A job for another program, after envsubst."""
    path = f"{FOLDER}/other-{kind}"
    with open(f"{ROOT}/tests/manifests/other_{kind}.yaml", encoding="utf-8") as file:
        text = file.read().replace("${NODES}", "4").replace("metadata:\n", "metadata:\n  namespace: training\n")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def commands():
    """The arguments of `tessera deploy` by name."""
    yield from OTHERS.items()
    for (shape, flags), trainer in itertools.product(SHAPES.items(), (SET, "jobset", "job", "pytorchjob")):
        if trainer in (SET, "pytorchjob"):
            flags = OF_RUNTIMES.sub("", flags)
        yield f"{shape}-{trainer}", f"kubernetes {RUN} {flags} --trainer {trainer} --name {shape}-{trainer.replace('.', '-')}"
    for storage, part in itertools.product(("fsx", "efs", "s3"), ("storage", "nodes")):
        yield f"{part}-{storage}", f"cluster --part {part} --infrastructure {infrastructure(storage)}"
    for kind, flags in (("trainjob", ""), ("trainjob", "--runtime tessera"), ("pytorchjob", "")):
        output = "" if "--runtime" in flags else "--output_dir /mnt/data/run"
        yield f"convert-{kind}{flags.replace(' ', '')}", f"convert --job {other_job(kind)} {RUN} {flags} {output}"


def dry_run(name, command, text):
    path = f"{FOLDER}/{name}.yaml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    # Kubeflow Trainer refuses a TrainJob without its runtime, which a dry run does not create.
    for document in text.split("\n---\n"):
        if "\nkind: TrainingRuntime\n" in document:
            apply(document)
    problems = []
    for mode in (["--server-side"], []):
        answer = kubectl("apply", "--dry-run=server", "--validate=strict", *mode, "-f", path, check_result=False)
        lines = [line for line in (answer.stdout + answer.stderr).splitlines() if not EXPECTED.search(line)]
        if answer.returncode or lines:
            problems.append(f"{command}: {mode[0] if mode else 'client-side'}: {'; '.join(lines)}")
    check(not problems, f"the server takes {name}", " ".join(problems))


def check_lint():
    """`deploy lint --server` finds what only this cluster knows."""
    job = deploy("kubernetes", *RUN.split(), "--model_config", "160m", "--cpus", "16", "--memory", "60GiB", "--trainer", "jobset", "--name", "lint",
                 "--claim", "nowhere", "--queue", "nobody")
    path = f"{FOLDER}/lint.yaml"
    for change, expected in ((("", ""), ["has no PersistentVolumeClaim 'nowhere'", "has no LocalQueue 'nobody'"]),
                             (("backoffLimit:", "backofLimit:"), [".backofLimit: field not declared in schema"])):
        with open(path, "w", encoding="utf-8") as file:
            file.write(job.replace(*change))
        answer = tessera("deploy", "lint", "--server", path)
        check(answer.returncode == 65 and all(text in answer.stdout for text in expected), f"lint --server finds: {', '.join(expected)}",
              answer.stdout + answer.stderr)


def main():
    os.makedirs(FOLDER, exist_ok=True)
    for device in ("cpu", "cuda"):
        apply(deploy("runtime", "--trainer", SET, "--device", device, "--storage_class", "none"))
    kubectl("apply", "--server-side", "-f", f"{os.environ['CLUSTER_CACHE']}/manifests/trainer/runtimes/torch_distributed.yaml")
    add_namespace("tessera-system")
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for name, arguments in commands():
            command = "tessera deploy " + arguments
            pool.submit(attempt, command, lambda n=name, c=command: dry_run(n, c, deploy(*c.split()[2:])))
        health = kubectl("kustomize", f"{ROOT}/deploy/health").stdout
        pool.submit(attempt, "deploy/health", lambda: dry_run("health", "deploy/health", health))
    attempt("deploy lint --server", check_lint)
    subprocess.run([f"{os.environ['CLUSTER_CACHE']}/python/bin/python", f"{ROOT}/tests/cluster/real/sdk_check.py"], check=True)


if __name__ == "__main__":
    main()
