#!/usr/bin/env python3
"""manifests_check.py TESSERA: renders what `tessera deploy cluster` and deploy/health make for a matrix of options, checks it
against the schemas (../shared, where present) and against each other, and checks Terraform's files and the scripts."""
import email
import itertools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import card_monitor

try:
    import yaml
except ImportError:
    print("skipped: python3-yaml is not installed")
    sys.exit(77)

TESSERA = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
VALIDATOR = ROOT.parent / "shared/tools/validate_manifests.py"
SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="tessera-cluster-"))
failures = []


def check(condition, message):
    if not condition:
        failures.append(message)


def run(*command, stdin=None):
    return subprocess.run(command, capture_output=True, text=True, input=stdin)


def render(*flags):
    result = run(TESSERA, "deploy", *flags)
    check(result.returncode == 0, f"{flags}: {result.stderr}")
    return result.stdout


def documents(text):
    return {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(text) if d}


def outputs(storage):
    """Returns what `terraform output -json` prints."""
    arn = "arn:aws:iam::111122223333:role/"
    roles = ["karpenter", "cni", "ebs"] + ([storage] if storage != "fsx" else [])
    subnets = {zone: f"subnet-0{i}" for i, zone in enumerate(["us-east-1a", "us-east-1b", "us-east-1c"])}
    values = {
        "name": "demo", "region": "us-east-1", "zone": "us-east-1b", "storage": storage, "vpc_id": "vpc-0123",
        "private_subnets": subnets, "public_subnets": subnets,
        "service_role_arns": {key: arn + key for key in ["cluster", "system", "node"]},
        "pod_role_arns": {key: arn + "demo-" + key for key in roles},
        "bucket": "" if storage == "efs" else "tessera-demo-111122223333-us-east-1",
        "storage_security_groups": [] if storage == "s3" else ["sg-0123"],
        "file_system": {"id": "fs-0123", "dns_name": "fs-0123.fsx.us-east-1.amazonaws.com", "mount_name": "abcdefgh",
                        "access_point": "fsap-0123", "gib": 1200},
    }
    path = SCRATCH / f"outputs-{storage}.json"
    path.write_text(json.dumps({key: {"value": value, "sensitive": False} for key, value in values.items()}))
    return str(path)


def rendered_matrix():
    """File by name; everything that goes to a cluster."""
    files = {}
    where = ["--name", "demo", "--region", "us-east-1"]
    for zone, spot, efa in itertools.product(["", "us-east-1a"], [False, True], [False, True]):
        flags = where + (["--zone", zone] if zone else []) + ["--spot_only"] * spot + ["--efa"] * efa
        files[f"nodes-{zone}-{spot}-{efa}"] = render("cluster", *flags)
        files[f"cards-{zone}-{spot}-{efa}"] = render("cluster", *flags, "--device", "cuda", "--max_cards", "16")
    for storage in ["fsx", "efs", "s3"]:
        for part in ["eksctl", "storage", "nodes"]:
            files[f"{part}-{storage}"] = render("cluster", "--part", part, "--infrastructure", outputs(storage))
    group = where + ["--part", "node_group", "--zone", "us-east-1a", "--instance", "r7i.48xlarge", "--nodes", "4"]
    files["eksctl-group"] = render("cluster", *group, "--efa", "--placement_group", "training")
    files["eksctl-block"] = render("cluster", "--part", "node_group", "--infrastructure", outputs("fsx"), "--device", "cuda", "--instance",
                                   "p5.48xlarge", "--capacity_reservation", "cr-0123", "--capacity_block")
    files["queue"] = render("queue")
    files["queue-cards"] = render("queue", "--device", "cuda", "--instance", "g6e.48xlarge", "--nodes", "2")
    files["runtime-cards"] = render("runtime", "--device", "cuda", "--image", "r/tessera:1-cuda", "--storage_class", "fsx")
    files["runtime"] = render("runtime", "--image", "r/tessera:1", "--storage_class", "none")
    check("PersistentVolumeClaim" not in files["runtime"], "two claims of one name")
    for name in ["health/namespace.yaml", "health/node-problem-detector.yaml", "health/node-problem-detector-cards.yaml",
                 "health/remediation.yaml"]:
        files[name.replace("/", "-")] = (DEPLOY / name).read_text()
    if shutil.which("kubectl"):
        result = run("kubectl", "kustomize", str(DEPLOY / "health"))
        check(result.returncode == 0, f"kustomize: {result.stderr}")
        files["health"] = result.stdout
    else:
        print("not checked: deploy/health as kustomize joins it: kubectl is not installed")
    return files


def check_documents(files):
    paths = {name: SCRATCH / f"{name}.yaml" for name in files}
    for name, text in files.items():
        paths[name].write_text(text)
    # up.sh applies these to one cluster, so lint them together: they refer to each other.
    for storage in ["fsx", "efs", "s3"]:
        one = [paths[name] for name in [f"nodes-{storage}", f"storage-{storage}", "queue", "runtime", "health"] if name in files]
        result = run(TESSERA, "deploy", "lint", *map(str, one))
        check(result.returncode == 0, f"lint, {storage}: {result.stdout}{result.stderr}")
    result = run(TESSERA, "deploy", "lint", *[str(paths[name]) for name in ["cards--False-False", "queue-cards", "runtime-cards"]])
    check(result.returncode == 0, f"lint, cards: {result.stdout}{result.stderr}")
    if shutil.which("kubectl"):
        # eksctl's file is not an object of a cluster.
        objects = [f"--filename={path}" for name, path in paths.items() if not name.startswith("eksctl-")]
        result = run("kubectl", "label", "--local", "--overwrite", "-o", "name", "a=b", *objects)
        check(result.returncode == 0, f"kubectl: {result.stderr}")
    if not VALIDATOR.exists():
        print("not checked: schemas: there is no ../shared")
        return
    result = run("/usr/bin/python3", str(VALIDATOR), *map(str, paths.values()))
    check(result.returncode == 0, "\n".join(l for l in result.stdout.splitlines() if not l.endswith(": ok")) + result.stderr)


def check_cards(files):
    """The pool, the queue and the runtime of nodes with NVIDIA cards, and what up.sh installs for them."""
    queue, runtime = documents(files["queue-cards"]), documents(files["runtime-cards"])
    flavor = queue["ResourceFlavor", "gpu"]["spec"]
    group = queue["ClusterQueue", "tessera-gpu"]["spec"]["resourceGroups"][0]
    quotas = {each["name"]: each["nominalQuota"] for each in group["flavors"][0]["resources"]}
    check(quotas["nvidia.com/gpu"] == "16" and quotas["vpc.amazonaws.com/efa"] == "8", f"the queue of cards: {quotas}")
    training = runtime["ClusterTrainingRuntime", "tessera-cuda"]["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = training["template"]["spec"]
    plugin = yaml.safe_load((DEPLOY / "eks/values/nvidia-device-plugin.yaml").read_text())
    wanted = plugin["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]
    check(wanted["matchExpressions"] == [{"key": "nodeType", "operator": "In", "values": ["gpu"]}], f"the device plugin: {wanted}")
    efa = yaml.safe_load((DEPLOY / "eks/values/aws-efa-k8s-device-plugin.yaml").read_text())
    tolerated = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    for name, tolerations in [("flavor", flavor["tolerations"]), ("runtime", pod["tolerations"]), ("plugin", plugin["tolerations"]),
                              ("EFA plugin", efa["tolerations"])]:
        check(tolerated in tolerations, f"cards: toleration of the {name}")
    for name, text in files.items():
        if not name.startswith("cards-"):
            continue
        nodes = documents(text)
        pool, node_class = nodes["NodePool", "gpu"]["spec"], nodes["EC2NodeClass", "gpu"]["spec"]
        template = pool["template"]
        check(template["metadata"]["labels"] == {"nodeType": "gpu"} == flavor["nodeLabels"] == pod["nodeSelector"], f"{name}: labels")
        check(template["spec"]["taints"] == [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}], f"{name}: taints")
        check(template["spec"]["nodeClassRef"]["name"] == "gpu", f"{name}: nodeClassRef")
        check(node_class["amiSelectorTerms"] == [{"alias": "al2023@latest"}], f"{name}: {node_class['amiSelectorTerms']}")
        check(pool["limits"] == {"cpu": 1024, "nvidia.com/gpu": 16}, f"{name}: {pool['limits']}")
        requirements = {r["key"]: r["values"] for r in template["spec"]["requirements"]}
        families, sizes = requirements["karpenter.k8s.aws/instance-family"], requirements["karpenter.k8s.aws/instance-size"]
        check(families == ["g6", "g6e", "p4d", "p4de", "p5", "p5e", "p5en"], f"{name}: families {families}")
        # p5.4xlarge has an interface, g6.4xlarge none.
        check(("4xlarge" in sizes) != name.endswith("-True") and "48xlarge" in sizes, f"{name}: sizes {sizes}")


def check_nodes(files):
    flavor = documents(files["queue"])["ResourceFlavor", "cpu-amx"]["spec"]
    detector = documents(files["health-node-problem-detector.yaml"])["DaemonSet", "node-problem-detector"]
    runtime = documents(files["runtime"])["ClusterTrainingRuntime", "tessera"]["spec"]["template"]["spec"]
    training = runtime["replicatedJobs"][0]["template"]["spec"]["template"]
    check(training["spec"]["nodeSelector"]["nodeType"] == "cpu-amx", f"the runtime selects {training['spec']['nodeSelector']}")
    # By this label remediate.sh knows training pods.
    label = re.search(r"-l app.kubernetes.io/component=(\w+)", (DEPLOY / "health/remediate.sh").read_text()).group(1)
    check(training["metadata"]["labels"]["app.kubernetes.io/component"] == label, "the label of training pods")
    own = documents(render("cluster", "--name", "demo", "--region", "us-east-1", "--node_role", "my.Nodes", "--node_disk_gib", "250"))
    node_class = own["EC2NodeClass", "cpu-amx"]["spec"]
    check(node_class["role"] == "my.Nodes" and node_class["blockDeviceMappings"][0]["ebs"]["volumeSize"] == "250Gi", f"own role and disk: {node_class}")
    for name, text in files.items():
        if not name.startswith("nodes-"):
            continue
        nodes = documents(text)
        pool, node_class = nodes["NodePool", "cpu-amx"]["spec"], nodes["EC2NodeClass", "cpu-amx"]["spec"]
        template = pool["template"]
        check(template["metadata"]["labels"] == {"nodeType": "cpu-amx"} == flavor["nodeLabels"], f"{name}: labels")
        check(template["spec"]["taints"] == [{"key": "intel.com/amx", "value": "true", "effect": "NoSchedule"}], f"{name}: taints")
        for pod in [flavor, training["spec"], detector["spec"]["template"]["spec"]]:
            check({"key": "intel.com/amx", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"], f"{name}: toleration")
        requirements = {r["key"]: r["values"] for r in template["spec"]["requirements"]}
        families, sizes = requirements["karpenter.k8s.aws/instance-family"], requirements["karpenter.k8s.aws/instance-size"]
        check({"c7i", "m7i", "r7i", "c8i", "m8i", "r8i"} <= set(families), f"{name}: families {families}")
        if name.endswith("-True"):
            check(sizes == ["48xlarge"], f"{name}: sizes with EFA {sizes}")
        else:
            check({"8xlarge", "16xlarge", "48xlarge"} <= set(sizes) and "96xlarge" not in sizes, f"{name}: sizes {sizes}")
        capacity = requirements["karpenter.sh/capacity-type"]
        check(capacity == (["spot"] if "-True-" in name else ["spot", "on-demand"]), f"{name}: {capacity}")
        check(("topology.kubernetes.io/zone" in requirements) == (not name.startswith("nodes--")), f"{name}: zone")
        # A spot notice leaves 120 s: Karpenter deletes a pod its grace period before this time is over.
        check(template["spec"]["terminationGracePeriod"] == "2m", f"{name}: termination")
        budgets = {reason: b["nodes"] for b in pool["disruption"]["budgets"] for reason in b["reasons"]}
        check(budgets == {"Empty": "100%", "Drifted": "0", "Underutilized": "0"}, f"{name}: budgets {budgets}")
        check(node_class["role"] == "KarpenterNodeRole-demo", f"{name}: role")
        check_user_data(name, node_class["userData"])


def check_node_groups(files):
    """Groups have what Karpenter gives its nodes: labels, taints, kubelet settings, huge pages."""
    for name, kind, taint, count in [("eksctl-group", "cpu-amx", "intel.com/amx", 4), ("eksctl-block", "gpu", "nvidia.com/gpu", 2)]:
        group = documents_of_eksctl(files[name])["managedNodeGroups"][0]
        check(group["labels"] == {"nodeType": kind} and group["taints"] == [{"key": taint, "value": "true", "effect": "NoSchedule"}], name)
        check([group["minSize"], group["desiredCapacity"], group["maxSize"]] == [0, count, count], f"{name}: sizes")
        check_node_settings(name, group["overrideBootstrapCommand"], group["preBootstrapCommands"][0])
    group, block = [documents_of_eksctl(files[name])["managedNodeGroups"][0] for name in ["eksctl-group", "eksctl-block"]]
    check(group["placement"] == {"groupName": "training"} and group["efaEnabled"] and group["availabilityZones"] == ["us-east-1a"], "the placement group")
    check("capacityReservation" not in group and "instanceMarketOptions" not in group and "iam" not in group, "a group without a reservation")
    check(block["capacityReservation"] == {"capacityReservationTarget": {"capacityReservationID": "cr-0123"}} and
          block["instanceMarketOptions"] == {"marketType": "capacity-block"} and "placement" not in block, "the capacity block")
    check("role/" in block["iam"]["instanceRoleARN"] and block["securityGroups"]["attachIDs"], "role and file system of the block's nodes")


def check_user_data(name, text):
    parts = {part.get_content_type(): part.get_payload() for part in email.message_from_string(text).get_payload()}
    check_node_settings(name, parts["application/node.eks.aws"], parts["text/x-shellscript"].lstrip())


def check_node_settings(name, node_config, script):
    kubelet = yaml.safe_load(node_config)["spec"]["kubelet"]["config"]
    check(kubelet["cpuManagerPolicy"] == "static" and kubelet["topologyManagerPolicy"] == "best-effort", f"{name}: {kubelet}")
    check(script.startswith("#!/bin/bash\n") and "transparent_hugepage" in script, f"{name}: {script}")
    result = run("bash", "-n", stdin=script)
    check(result.returncode == 0, f"{name}: {result.stderr}")


def check_cluster(files):
    terraform = "".join(path.read_text() for path in (DEPLOY / "eks/terraform").glob("*.tf"))
    for storage in ["fsx", "efs", "s3"]:
        config = documents_of_eksctl(files[f"eksctl-{storage}"])
        addons = {addon["name"]: addon for addon in config["addons"]}
        drivers = {"fsx": "aws-fsx-csi-driver", "efs": "aws-efs-csi-driver", "s3": "aws-mountpoint-s3-csi-driver"}
        for addon in ["eks-pod-identity-agent", "eks-node-monitoring-agent", "aws-ebs-csi-driver", drivers[storage]]:
            check(addon in addons, f"{storage}: no {addon}")
        check(json.loads(addons["vpc-cni"]["configurationValues"]) == {"enableNetworkPolicy": "true"}, f"{storage}: CNI")
        tags = json.loads(addons["aws-ebs-csi-driver"]["configurationValues"])["controller"]["extraVolumeTags"]
        check(tags == {"tessera-cluster": "demo"}, f"{storage}: volumes would not be found by down.sh: {tags}")
        accounts = [p["serviceAccountName"] for a in config["addons"] for p in a.get("podIdentityAssociations", [])]
        for account in accounts + ["karpenter"]:
            check(re.search(rf'account\s*= "{account}"', terraform), f"{storage}: Terraform has no role for {account}")
        group = config["managedNodeGroups"][0]
        check(bool(group.get("securityGroups")) == (storage != "s3"), f"{storage}: security groups {group}")
        volume = documents(files[f"storage-{storage}"])
        claim = volume["PersistentVolumeClaim", "training-data"]
        check(claim["metadata"]["namespace"] == "training", f"{storage}: {claim}")
        for (kind, name), document in volume.items():
            if kind == "PersistentVolume":
                bound = volume["PersistentVolumeClaim", document["spec"]["claimRef"]["name"]]
                check(bound["spec"]["volumeName"] == name, f"{storage}: {name} and its claim differ")
                check(document["spec"]["persistentVolumeReclaimPolicy"] == "Retain", f"{storage}: {name} would be deleted")


def documents_of_eksctl(text):
    found = list(yaml.safe_load_all(text))
    check(len(found) == 1, "eksctl takes one document")
    return found[0]


def check_health(files):
    plugin = json.loads((DEPLOY / "health/node-check.json").read_text())
    rule = plugin["rules"][0]
    # The node problem detector's own rules: seconds as "5s", a rule's condition among the conditions.
    check(plugin["plugin"] == "custom" and rule["type"] == "permanent", "node-check.json")
    check([c["type"] for c in plugin["conditions"]] == [rule["condition"]] == ["TesseraUnhealthy"], "node-check.json: condition")
    check(plugin["pluginConfig"]["skip_initial_status"] is True, "a node would be healthy before it was checked")
    pod = documents(files["health-node-problem-detector.yaml"])["DaemonSet", "node-problem-detector"]["spec"]["template"]["spec"]
    detector, program = pod["containers"]
    mounts = {m["name"]: m["mountPath"] for m in detector["volumeMounts"]}
    check(rule["path"].startswith(mounts["scripts"] + "/") and (DEPLOY / "health" / pathlib.Path(rule["path"]).name).exists(), rule["path"])
    check(rule["args"][0] == program["command"][2] and rule["args"][0].startswith(mounts["result"] + "/"), "the result's path")
    check(int(rule["args"][1]) >= 3 * int(program["command"][3]), "a result is too old before the next one")
    check(any(t["key"] == "tessera-unhealthy" for t in pod["tolerations"]), "a tainted node would stop reporting")
    # On nodes with cards the same, but for what the nodes are.
    watch = documents(files["health-node-problem-detector.yaml"])["DaemonSet", "node-problem-detector"]
    cards = documents(files["health-node-problem-detector-cards.yaml"])["DaemonSet", "node-problem-detector-cards"]
    environment = cards["spec"]["template"]["spec"]["containers"][1].pop("env")
    check({v["name"]: v["value"] for v in environment} == {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"},
          f"the check sees no cards: {environment}")
    text = json.dumps(watch)
    for old, new in [('"node-problem-detector"', '"node-problem-detector-cards"'), ("cpu-amx", "gpu"), ("intel.com/amx", "nvidia.com/gpu"),
                     ('"--instruction_set", "amx_bf16"', '"--cards", "1"')]:
        text = text.replace(old, new)
    expected = json.loads(text)
    template = expected["spec"]["template"]["spec"]
    template["serviceAccountName"] = template["containers"][0]["name"] = "node-problem-detector"
    template["containers"][0]["command"][2] += ",/etc/tessera/node-check/card-monitor.json"
    check(expected == cards, "the watch over nodes with cards differs from that over nodes with AMX")
    selector = re.search(r"^selector='nodeType in \((.*)\)'$", (DEPLOY / "health/remediate.sh").read_text(), re.M)
    check(selector and selector[1].split(",") == ["cpu-amx", "gpu"], "the nodes that are replaced")
    role = documents(files["health-remediation.yaml"])["ClusterRole", "tessera-node-remediation"]
    verbs = {r: set(rule["verbs"]) for rule in role["rules"] for r in rule["resources"]}
    check(verbs == {"nodes": {"get", "list", "patch"}, "pods": {"list"}, "pods/eviction": {"create"}, "nodeclaims": {"get", "delete"}},
          f"rights of the remediation: {verbs}")
    for message in card_monitor.mistakes(DEPLOY / "health/card-monitor.json"):
        check(False, message)
    check_template()


def check_template():
    """The template by which remediate.sh reads nodes, with kubectl's own engine."""
    if not shutil.which("kubectl"):
        return
    script = (DEPLOY / "health/remediate.sh").read_text()
    template = re.search(r"^template='(.*?)'$", script, re.S | re.M).group(1).replace("{{range .items}}", "{{with .}}", 1)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "creationTimestamp": "2026-01-02T03:04:05Z"},
            "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:06Z"}]}}
    sick = json.loads(json.dumps(node))
    sick["metadata"].update(name="b", labels={"karpenter.sh/nodepool": "cpu-amx"}, deletionTimestamp="2026-01-02T04:00:00Z",
                            annotations={"tessera-unhealthy-since": "1767323106"},
                            ownerReferences=[{"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "c-1", "uid": "1"}])
    sick["spec"]["taints"] = [{"key": "tessera-unhealthy", "value": "true", "effect": "NoSchedule"}]
    sick["status"]["conditions"].append({"type": "TesseraUnhealthy", "status": "True", "lastTransitionTime": "2026-01-02T03:05:06Z"})
    faulty = json.loads(json.dumps(node))
    faulty["status"]["conditions"] += [{"type": "TesseraCardFault", "status": "True", "lastTransitionTime": "2026-01-02T03:06:06Z"},
                                       {"type": "TesseraUnhealthy", "status": "False", "lastTransitionTime": "2026-01-02T03:05:06Z"}]
    sound = json.loads(json.dumps(faulty))
    sound["status"]["conditions"][1]["status"] = "False"
    for document, expected in [(node, "a - - 2026-01-02T03:04:05Z - - - 0 -"),
                               (faulty, "a - - 2026-01-02T03:04:05Z True 2026-01-02T03:06:06Z - 0 -"),
                               (sound, "a - - 2026-01-02T03:04:05Z False 2026-01-02T03:05:06Z - 0 -"),
                               (sick, "b cpu-amx c-1 2026-01-02T03:04:05Z True 2026-01-02T03:05:06Z yes 1767323106 yes")]:
        (SCRATCH / "node.json").write_text(json.dumps(document))
        result = run("kubectl", "label", "--local", "-f", str(SCRATCH / "node.json"), "x=y", "-o", "go-template=" + template)
        check(result.stdout.strip() == expected, f"template: expected '{expected}', found '{result.stdout}' {result.stderr}")


def check_terraform():
    folder = DEPLOY / "eks/terraform"
    text = "".join(path.read_text() for path in sorted(folder.glob("*.tf")))
    declared = {f"{kind}.{name}" for kind, name in re.findall(r'^resource "(\w+)" "(\w+)"', text, re.M)}
    declared |= {f"data.{kind}.{name}" for kind, name in re.findall(r'^data "(\w+)" "(\w+)"', text, re.M)}
    used = set(re.findall(r"\b(data\.aws_\w+\.\w+|(?<!data\.)aws_\w+\.\w+)", text))
    check(used <= declared, f"Terraform: not declared: {used - declared}")
    variables = set(re.findall(r'^variable "(\w+)"', text, re.M))
    check(set(re.findall(r"\bvar\.(\w+)", text)) == variables, f"Terraform: variables {variables}")
    written = set(re.findall(r'^output "(\w+)"', text, re.M))
    read = set(re.findall(r'output\("(\w+)"\)', (ROOT / "src/cluster/deploy/infrastructure.cc").read_text()))
    check(written == read, f"outputs of Terraform {written}, read by the program {read}")
    for wrong in ["AdministratorAccess", "FullAccess", 'Resource = "*"', 'Action = "*"', "PowerUser"]:
        check(wrong not in text, f"Terraform: {wrong}")
    policy = json.loads((folder / "karpenter-policy.json.tftpl").read_text())
    for statement in policy["Statement"]:
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        check(all("*" not in action for action in actions), f"Karpenter: {actions}")
        # Reading what has no ARN is all that has no resource.
        if statement["Resource"] == "*":
            check(all(re.match(r"(ec2:Describe|pricing:GetProducts|iam:ListInstanceProfiles)", a) for a in actions), f"Karpenter: {actions}")
        elif any(re.search(r":(Create|Delete|Terminate|Run|Add|Remove|Tag)", a) for a in actions) and "sqs:DeleteMessage" not in actions:
            scoped = "Condition" in statement or statement["Sid"] == "AllowScopedEC2InstanceAccessActions"
            check(scoped, f"Karpenter: {statement['Sid']} is not scoped")
    # IAM limits the size of a policy, not counting white space; Terraform leaves out the statements' names.
    check('if key != "Sid"' in text, "Terraform: the names of the statements are in Karpenter's policy")
    for statement in policy["Statement"]:
        del statement["Sid"]
    values = {"partition": "aws", "region": "ap-southeast-1", "account": "1" * 12, "name": "n" * 38,
              "node_role": "arn:aws:iam::111122223333:role/KarpenterNodeRole-" + "n" * 38,
              "queue": "arn:aws:sqs:ap-southeast-1:111122223333:" + "n" * 38}
    longest = re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], json.dumps(policy, separators=(",", ":")))
    check(len(longest) <= 6144, f"Karpenter's policy is too long for IAM: {len(longest)}")
    operator = json.loads((DEPLOY / "eks/operator-policy.json").read_text())
    for statement in operator["Statement"]:
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        if statement["Resource"] == "*":
            check(all(re.search(r":(Describe|List|Get)", a) for a in actions), f"operator: {actions}")
        check(statement["Effect"] == "Allow" and "*" not in actions, f"operator: {actions}")
    # The path that Karpenter gives its instance profiles; down.sh deletes those that it left.
    roles = next(statement for statement in operator["Statement"] if statement["Sid"] == "Roles")
    profiles = "arn:aws:iam::ACCOUNT:instance-profile/karpenter/REGION/NAME/*"
    check({"iam:RemoveRoleFromInstanceProfile", "iam:DeleteInstanceProfile"} <= set(roles["Action"]) and profiles in roles["Resource"],
          "operator: down.sh cannot delete instance profiles")
    longest = json.dumps(operator, separators=(",", ":"))
    for placeholder, value in [("NAME", "n" * 38), ("REGION", "ap-southeast-1"), ("ACCOUNT", "1" * 12)]:
        longest = longest.replace(placeholder, value)
    check(len(longest) <= 6144, f"the operator's policy is too long for IAM: {len(longest)}")
    if not shutil.which("terraform"):
        print("not checked: terraform fmt: terraform is not installed")
        return
    result = run("terraform", "fmt", "-check", "-diff", str(folder))
    check(result.returncode == 0, f"terraform fmt: {result.stdout}{result.stderr}")
    # Where Terraform looks for providers without asking a registry.
    plugins = [path for path in [pathlib.Path.home() / ".terraform.d/plugins", pathlib.Path("/usr/local/share/terraform/plugins")]
               if any(path.rglob("hashicorp/aws"))]
    if not plugins:
        print("not checked: terraform validate: the provider hashicorp/aws is not installed")
        return
    copy = shutil.copytree(folder, SCRATCH / "terraform")
    for command in [["init", "-backend=false", f"-plugin-dir={plugins[0]}"], ["validate"]]:
        result = run("terraform", f"-chdir={copy}", *command, "-no-color")
        check(result.returncode == 0, f"terraform {command[0]}: {result.stdout}{result.stderr}")


def check_scripts():
    if not shutil.which("shellcheck"):
        print("not checked: scripts: shellcheck is not installed")
        return
    scripts = [path for folder in ["deploy", "tests/cluster", "tests/image"] for path in (ROOT / folder).rglob("*.sh")]
    result = run("shellcheck", "-x", "-P", str(ROOT), *map(str, scripts))
    check(result.returncode == 0, result.stdout)


def check_document():
    """The pages open the Grafana that up.sh installs, and their commands leave what it made."""
    up = (DEPLOY / "eks/up.sh").read_text()
    release = re.search(r"release (\S+) monitoring oci", up).group(1)
    page = (ROOT / "docs/monitoring.md").read_text()
    for name, text in [("kubernetes", (ROOT / "docs/kubernetes.md").read_text()), ("monitoring", page)]:
        check(f" service/{release}-grafana " in text, f"docs/{name}.md: Grafana of {release}")
        check(f"get secret --namespace monitoring {release}-grafana --output jsonpath='{{.data.admin-password}}'" in text,
              f"docs/{name}.md: the password of {release}")
    for command in re.findall(r"^    (tessera deploy alerts.*)$", page, re.M):
        check("--token_secret tessera-metrics" in command, f"docs/monitoring.md: without the token of the pods: {command}")
    check("tessera deploy alerts --token_secret tessera-metrics" in up, "up.sh: alerts without the token")
    other, of_up = page.split("### Loki")
    check("kube-prometheus-stack" not in of_up and "do not install a second one" in other, "docs/monitoring.md: a second stack")
    loki = yaml.safe_load(re.search(r"```yaml\n(deploymentMode.*?)```", page, re.S)[1])
    check(loki["singleBinary"]["persistence"]["storageClass"] == "gp2", "docs/monitoring.md: Loki's volume has no StorageClass")


def check_fabric():
    """Checks that the program tells how to build an image with libfabric correctly."""
    dockerfile = (DEPLOY / "docker/Dockerfile").read_text()
    root = dockerfile.split(" AS root\n")[1].split("\nFROM ")[0]
    check("ARG FABRIC=\n" in root and "${FABRIC:+libfabric1}" in root, "Dockerfile: libfabric")
    check('--build-arg "FABRIC=$fabric"' in (DEPLOY / "docker/build_local.sh").read_text(), "build_local.sh: libfabric")
    refused = run(TESSERA, "deploy", "kubernetes", "--model", "org/m", "--model_config", "15m", "--dataset", "org/rows",
                  "--instance", "r7i.48xlarge", "--nodes", "2", "--fabric", "efa", "--efa", "1")
    check(refused.returncode == 64 and "--build-arg FABRIC=yes" in refused.stderr, f"--fabric efa with the default image: {refused.stderr}")


def check_kueue():
    values = yaml.safe_load((DEPLOY / "eks/values/kueue.yaml").read_text())
    config = yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"])
    check(config["waitForPodsReady"]["timeout"] == "20m" and config["waitForPodsReady"]["blockAdmission"] is True, "waitForPodsReady")
    check("trainer.kubeflow.org/trainjob" in config["integrations"]["frameworks"], "frameworks of Kueue")


def check_errors():
    good = outputs("fsx")
    damaged = SCRATCH / "damaged.json"
    root = json.loads(pathlib.Path(good).read_text())

    def without(key, value=None):
        copy = json.loads(json.dumps(root))
        if value is None:
            del copy[key]
        else:
            copy[key]["value"] = value
        damaged.write_text(json.dumps(copy))
        return ["--part", "storage", "--infrastructure", str(damaged)]

    where = ["--name", "demo", "--region", "us-east-1"]
    cases = [(64, where[:2], "--region is missing"), (64, where[2:], "--name is missing"),
             (64, ["--name", "a: b\nc", "--region", "us-east-1"], "--name"), (64, ["--name", "x" * 39, "--region", "us-east-1"], "38"),
             (64, ["--name", "1a", "--region", "us-east-1"], "letter first"), (64, ["--name", "demo", "--region", "here\n- x"], "--region"),
             (64, where + ["--ami", "bottlerocket@latest"], "--ami"),
             (64, where + ["--part", "eksctl"], "needs --infrastructure"), (64, where + ["--max_vcpus", "0"], "--max_vcpus"),
             (64, where + ["--part", "all"], "--part"), (64, where + ["--part", "node_group"], "--instance is missing"),
             (64, where + ["--part", "node_group", "--instance", "r7i.large"], "r7i.large"),
             (64, where + ["--part", "node_group", "--instance", "r7i.16xlarge", "--efa"], "with an EFA card"),
             (64, where + ["--part", "node_group", "--instance", "r7i.16xlarge", "--capacity_block"], "needs --capacity_reservation"), (64, where + ["--node_disk_gib", "10"], "--node_disk_gib"),
             (66, ["--infrastructure", "nowhere.json"], "nowhere.json"),
             (64, ["--infrastructure", good, "--name", "other"], "'other'"), (64, ["--infrastructure", good, "--storage", "efs"], "--storage")]
    for expected, flags, text in cases:
        expect_error(expected, flags, text)
    for key, value, text in [("vpc_id", None, "vpc_id"), ("storage", "nfs", "nfs"), ("vpc_id", "vpc\n- x", "vpc_id"),
                             ("private_subnets", {"us-east-1a": "subnet-1"}, "two zones"),
                             ("private_subnets", {"a: b": "subnet-1", "c": "subnet-2"}, "private_subnets"),
                             ("file_system", {"id": ""}, "file_system"), ("pod_role_arns", {}, "pod_role_arns")]:
        expect_error(65, without(key, value), text)


def expect_error(code, flags, text):
    result = run(TESSERA, "deploy", "cluster", *flags)
    lines = result.stderr.strip().split("\n")
    check(result.returncode == code and len(lines) == 1 and lines[0].startswith("error: ") and text in lines[0],
          f"{flags}: expected {code} and one line with '{text}', found {result.returncode}: {result.stderr}")
    check(result.stdout == "", f"{flags}: wrote something in spite of the error")


try:
    rendered = rendered_matrix()
    check_documents(rendered)
    check_nodes(rendered)
    check_node_groups(rendered)
    check_cards(rendered)
    check_cluster(rendered)
    check_health(rendered)
    check_terraform()
    check_scripts()
    check_kueue()
    check_fabric()
    check_document()
    check_errors()
finally:
    shutil.rmtree(SCRATCH)
print("\n".join(failures) or "all is well")
sys.exit(bool(failures))
