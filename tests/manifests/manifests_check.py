#!/usr/bin/python3
"""manifests_check.py TESSERA: renders manifests for many models, instances, nodes, options and versions, and checks them.

Checks: the rules of `tessera deploy lint`, what another parser of YAML reads, and for versions of Kubeflow Trainer that scripts/test_cluster.sh
does not run the strict schemas of ../shared; damaged documents show that each of these can fail. Exit code 77 = skipped.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import yaml
except ImportError:
    print("skipped: python3-yaml is not installed (scripts/install_packages.sh test)")
    sys.exit(77)

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SOURCE = pathlib.Path(__file__).resolve().parents[2]
VALIDATOR = SOURCE.parent / "shared/tools/validate_manifests.py"
JOB = ["kubernetes", "--model", "org/some-model", "--dataset", "org/rows", "--max_length", "1024"]

KINDS = ["v2.1", "v2.2", "v2.3", "v2.4", "jobset", "job", "pytorchjob"]
# Of versions of Kubeflow Trainer that scripts/test_cluster.sh does not run here: the schemas that count for them.
SCHEMAS = {"v2.3": "v2.3.0", "v2.4": "v2.3.0"}
SHAPES = [
    ["--model_config", "15m", "--instance", "c7i.8xlarge", "--nodes", "1"],
    ["--model_config", "llama3.2-1b", "--instance", "m7i.24xlarge", "--nodes", "2"],
    ["--model_config", "llama3-8b", "--instance", "r7i.16xlarge", "--nodes", "4"],
    ["--model_config", "llama3-8b", "--instance", "r7i.48xlarge", "--nodes", "128"],
    ["--model_config", "160m", "--cpus", "16", "--memory", "60GiB", "--nodes", "3"],
]
OPTIONS = [
    [],
    ["--queue", "training", "--capacity", "spot", "--zone", "eu-west-1a"],
    ["--rendezvous_secret", "mine", "--claim", "training-data", "--capacity", "on-demand", "--name", "x"],
    ["--nproc_per_node", "2", "--zero_stage", "3", "--gather_schedule", "per_layer",
     "--namespace", "team-a", "--queue", "training"],
]
# Jobs on NVIDIA cards, with the card that the plan counts with.
CARDS = [
    (["--model_config", "llama3.2-1b", "--instance", "g6e.xlarge"], "NVIDIA L40S"),
    (["--model_config", "llama3-8b", "--instance", "p5.4xlarge", "--offload_optimizer_device", "cpu", "--queue", "training-gpu",
      "--efa", "1"], "NVIDIA H100"),
    (["--model_config", "llama3-8b", "--instance", "p5en.48xlarge", "--finetuning_type", "lora", "--lora_rank", "8"], "NVIDIA H200"),
]
# For kinds whose pods are described in the manifest and not in a runtime.
OWN_PODS = ["--metrics_port", "9999", "--node_check", "--hf_token_secret", "own-token", "--priority_class", "high"]
VOLUMES = [["--storage_class", "fsx"], ["--fsx", "fs-0123.fsx.eu-west-1.amazonaws.com/abcdef"], ["--efs", "fs-0123"],
           ["--nfs", "10.0.0.5:/export"]]
# Documents of other targets: a name and the arguments after `tessera deploy`.
OTHERS = [
    ("queue", ["queue", "--instance", "r7i.48xlarge", "--nodes", "128"]),  # Admits the largest of SHAPES.
    ("queue-small", ["queue"]),
    ("queue-old", ["queue", "--kueue_api", "v1beta1", "--topology", "--instance", "c7i.48xlarge", "--nodes", "1000"]),
    ("queue-card", ["queue", "--device", "cuda", "--instance", "p5.4xlarge"]),
    ("alerts", ["alerts"]),
    ("dashboards", ["dashboards", "--monitoring_namespace", "observability"]),
    ("debug", ["debug", "--efa", "1", "--image", "registry.example/tessera:efa"]),
    ("debug-card", ["debug", "--device", "cuda", "--node", "ip-10-0-1-10.ec2.internal"]),
    ("debug-shell", ["debug", "--what", "shell", "--claim", "training-data"]),
    ("debug-network", ["debug", "--what", "network", "--nodes", "3"]),
    ("debug-pair", ["debug", "--what", "network", "--node", "node-a", "--node", "node-b"]),
    ("runtime-secrets", ["runtime", "--secrets", "--node_check"]),
]
failures = []


def check(condition, what):
    if not condition:
        failures.append(what)


def tessera(program, arguments, **more):
    return subprocess.run([program, "deploy", *arguments], capture_output=True, text=True, timeout=120, **more)


def requests():
    """Name, arguments and kind of all that is rendered."""
    for k, kind in enumerate(KINDS):
        for o, option in enumerate(OPTIONS):
            # Every kind meets every option, and every shape some of both.
            for shape in {(k + o) % len(SHAPES), (k + 2 * o + 1) % len(SHAPES)}:
                more = OWN_PODS if kind in ("jobset", "job") and o == 0 else []
                yield f"job-{kind}-{o}-{shape}", [*JOB, *SHAPES[shape], *option, *more, "--trainer", kind], kind
        for v, volume in enumerate(VOLUMES):
            yield f"runtime-{kind}-{v}", ["runtime", *volume, "--trainer", kind], kind
        for c, (card, _) in enumerate(CARDS):
            yield f"card-{kind}-{c}", [*JOB, "--device", "cuda", *card, "--trainer", kind], kind
        yield f"card_runtime-{kind}", ["runtime", "--device", "cuda", "--storage_class", "fsx", "--trainer", kind], kind
    for name, arguments in OTHERS:
        yield name, arguments, "v2.1"


def render_all(program, folder):
    """Files by kind."""
    files = {kind: [] for kind in KINDS}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(name, kind, pool.submit(tessera, program, arguments)) for name, arguments, kind in requests()]
        for name, kind, job in jobs:
            result = job.result()
            check(result.returncode == 0, f"{name}: exit code {result.returncode}: {result.stderr}")
            path = folder / f"{name}.yaml"
            path.write_text(result.stdout)
            files[kind].append(path)
    return files


def check_schemas(kind, files):
    command = [sys.executable, VALIDATOR, "--trainer", SCHEMAS[kind], *files]
    result = subprocess.run(command, capture_output=True, text=True)
    check(result.returncode == 0, f"schemas for {kind}:\n" + "\n".join(
        line for line in result.stdout.splitlines() if not line.endswith(": ok")) + result.stderr)
    documents = sum(len(documents_of(path.read_text())) for path in files)
    ok = sum(line.endswith(": ok") for line in result.stdout.splitlines())
    check(ok == documents, f"schemas for {kind}: {ok} of {documents} documents are checked")


def documents_of(text):
    return [each for each in yaml.load_all(text, LOADER) if each]


def check_lint(program, files, folder):
    """Runtime, queue and jobs of each kind together: what refers to what."""
    for kind, paths in files.items():
        jobs = [path for path in paths if path.name.startswith("job-")]
        runtimes = [path for path in paths if path.name.startswith(f"runtime-{kind}")]
        for path in jobs:
            given = [folder / "queue.yaml", path]
            if "team-a" not in path.read_text():
                given.insert(0, runtimes[0])
                given.append(folder / "alerts.yaml")
            else:
                given = given[1:]
            result = tessera(program, ["lint", *given])
            check(result.returncode == 0, f"lint: {path.name}: {result.stdout}{result.stderr}")


def pods_of(kind, documents):
    """The specifications of the pods of a job, or of its runtime."""
    for each in documents:
        if each["kind"] == "ClusterTrainingRuntime":
            each = {"kind": "JobSet", "spec": each["spec"]["template"]["spec"]}
        if each["kind"] == "PyTorchJob":
            yield each["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
        if each["kind"] == "JobSet":
            each = {"kind": "Job", "spec": each["spec"]["replicatedJobs"][0]["template"]["spec"]}
        if each["kind"] == "Job" and "node" in [c["name"] for c in each["spec"]["template"]["spec"]["containers"]]:
            yield each["spec"]["template"]["spec"]


def check_cards(program, files, folder):
    """Jobs on cards, read by another parser than ours, and together with their runtime and queue."""
    for kind in KINDS:
        for c, (flags, card) in enumerate(CARDS):
            path = folder / f"card-{kind}-{c}.yaml"
            runtime = folder / f"card_runtime-{kind}.yaml"
            result = tessera(program, ["lint", folder / "queue-card.yaml", runtime, path])
            check(result.returncode == 0, f"lint: {path.name}: {result.stdout}{result.stderr}")
            check(f"Memory of the card, an {card}: " in path.read_text(), f"{path.name}: which card")
            documents = documents_of(path.read_text())
            job = documents[-1]["spec"]
            has_pods = kind in ("jobset", "job", "pytorchjob")
            pods = list(pods_of(kind, documents if has_pods else documents_of(runtime.read_text())))
            check(len(pods) == 1, f"{path.name}: {len(pods)} kinds of pods")
            pod = pods[0]
            resources = job["trainer"]["resourcesPerNode"] if "trainer" in job else pod["containers"][0]["resources"]
            devices = {key: value for key, value in resources["limits"].items() if "/" in key}
            wanted = {"nvidia.com/gpu": "1"} | ({"vpc.amazonaws.com/efa": "1"} if "--efa" in flags else {})
            check(devices == wanted and resources["requests"] == resources["limits"], f"{path.name}: {devices}")
            check({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"], f"{path.name}: toleration")
            check(pod["nodeSelector"]["nodeType"] == "gpu", f"{path.name}: {pod['nodeSelector']}")
            shm = [mount["name"] for mount in pod["containers"][0]["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            check(len(shm) == 1 and volumes[shm[0]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}, f"{path.name}: /dev/shm")
            check("runtimeClassName" not in pod, f"{path.name}: the nodes' default runtime is NVIDIA's")


def check_mount_forms(program):
    """The console's mount commands give the same volumes."""
    for flag, name, mounted in [("--fsx", "fs-0123.fsx.eu-west-1.amazonaws.com/abcdef", "fs-0123.fsx.eu-west-1.amazonaws.com@tcp:/abcdef"),
                                ("--efs", "fs-0123", "fs-0123.efs.eu-west-1.amazonaws.com:/")]:
        one, other = (tessera(program, ["runtime", flag, value]) for value in (name, mounted))
        check(other.returncode == 0 and one.stdout == other.stdout, f"{flag} {mounted}: {other.stderr}")


def check_deepspeed(program, folder):
    """The pods get the text of the file, and what the plan decides agrees with it."""
    file = folder / "own.json"
    file.write_text("""{ # as DeepSpeed takes it
      bf16: {enabled: true}, "zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 2,
      "gradient_accumulation_steps": 4, "train_batch_size": 32, "gradient_clipping": 0.5}""")
    shape = ["--model_config", "llama3-8b", "--instance", "r7i.16xlarge", "--nodes", "4"]
    result = tessera(program, [*JOB, *shape, "--deepspeed", file])
    check(result.returncode == 0, f"deepspeed: {result.stderr}")
    check("A step of 32 rows" in result.stdout, "deepspeed: the rows of a step")
    words = documents_of(result.stdout)[-1]["spec"]["trainer"]["args"]
    given = dict(word[2:].split("=", 1) for word in words if "=" in word)
    keys = json.loads(given["deepspeed"])
    check(keys["zero_optimization"] == {"stage": 3} and keys["gradient_clipping"] == 0.5, f"deepspeed: {keys}")
    check(given["zero_stage"] == "3" and "own.json" not in result.stdout, f"deepspeed: {given}")
    # The pods read it like this; a contradiction would exit with 78.
    command = [program, "config", "show", "--world_size", "4", "--deepspeed", given["deepspeed"],
               *[f"--{name}={given[name]}" for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "zero_stage")]]
    shown = subprocess.run(command, capture_output=True, text=True)
    check(shown.returncode == 0, f"deepspeed: {shown.stderr}")


def check_unknown_nodes(program):
    """The step of nodes that the catalogue lacks takes what it takes on a type of their size."""
    def step_s(*nodes):
        out = tessera(program, [*JOB, "--model_config", "llama3-8b", "--nodes", "4", *nodes]).stdout
        return float(re.search(r"A step of 32 rows takes about ([\d.]+) s", out)[1])
    known, unknown = step_s("--instance", "r7i.16xlarge"), step_s("--cpus", "62", "--memory", "463GiB")
    check(abs(unknown / known - 1) < 0.1, f"a step takes {known} s on r7i.16xlarge, {unknown} s with its --cpus and --memory")
    slow = step_s("--cpus", "62", "--memory", "463GiB", "--network_gbps", "1")
    check(slow > 3 * unknown, f"a step takes {slow} s with 1 Gbit/s, {unknown} s with 25")


def check_kinds(program, folder):
    """A kind without rules is reported, rather than passing silently."""
    path = folder / "other.yaml"
    path.write_text("apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: a}\n")
    result = tessera(program, ["lint", path])
    check(result.returncode == 0 and "TFJob a: not checked" in result.stdout and "none of them checked" in result.stdout
          and "no finding" not in result.stdout, f"lint of an unknown kind: {result.stdout}")


def check_images(program):
    """A manifest for cards has an image with CUDA."""
    for device, suffix in [("cpu", ""), ("cuda", "-cuda")]:
        shape = ["--model_config", "15m", "--instance", "c7i.8xlarge" if device == "cpu" else "g6e.xlarge", "--device", device]
        for arguments in (["runtime", "--device", device], [*JOB, *shape]):
            images = set(re.findall(r'image: "(tessera:.*)"', tessera(program, arguments).stdout))
            check(len(images) == 1 and re.fullmatch(r"tessera:[\d.]+" + suffix, images.pop()), f"{arguments}: {images}")


def check_pages(program, folder):
    """The commands of the pages write manifests without a finding."""
    commands = []
    for page in ["kubernetes", "monitoring", "image"]:
        text = (SOURCE / f"docs/{page}.md").read_text()
        lines = re.sub(r"\\\n\s*", "", text).split("\n")
        commands += [match[1] for line in lines if (match := re.match(r"    (?:HF_TOKEN=\S+ )?tessera (deploy [^|>#]*)", line))]
    check(len(commands) >= 11, f"commands of the pages: {commands}")
    shutil.copy(SOURCE / "tests/manifests/other_trainjob.yaml", folder / "t5-large.yaml")
    for command in commands:
        words = command.split()[1:]
        if words[0] == "kubernetes":
            words = [word for word in words if not word.startswith("data/config.json")]
            words = [word for word in words if word != "--model_config"] + ["--model_config", "llama3.2-1b"]
        result = tessera(program, words, cwd=folder, env=dict(os.environ, HF_TOKEN="hf_token"))
        check(result.returncode == 0, f"{command}: {result.stderr}")
        linted = tessera(program, ["lint", "-"], input=result.stdout)
        check(linted.returncode == 0 and "no finding\n" in linted.stdout, f"{command}: {linted.stdout}{linted.stderr}")


def check_values(files):
    """Rules that hold for every job, checked with a YAML parser other than ours."""
    for kind in KINDS:
        for path in files[kind]:
            documents = {each["kind"]: each for each in documents_of(path.read_text())}
            if not path.name.startswith(("job-", "card-")):
                continue
            spec = next(documents[name] for name in ("TrainJob", "JobSet", "Job", "PyTorchJob") if name in documents)["spec"]
            if kind == "pytorchjob":
                replicas = spec["pytorchReplicaSpecs"]
                container = replicas["Master"]["template"]["spec"]["containers"][0]
                resources, nodes = container["resources"], sum(each["replicas"] for each in replicas.values())
            elif kind in ("jobset", "job"):
                job = spec if kind == "job" else spec["replicatedJobs"][0]["template"]["spec"]
                container = job["template"]["spec"]["containers"][0]
                resources, nodes = container["resources"], job["completions"]
            else:
                container = spec["trainer"]
                resources, nodes = container["resourcesPerNode"], container["numNodes"]
            check(resources["requests"] == resources["limits"], f"{path.name}: not Guaranteed")
            check(re.fullmatch(r"\d+", resources["limits"]["cpu"]) is not None, f"{path.name}: not whole CPUs")
            check(container["args"][0] == "launch" and "--dataset=org/rows" in container["args"], f"{path.name}: arguments")
            check(("PodDisruptionBudget" in documents) == (nodes > 1), f"{path.name}: budget")
            check(("Secret" in documents) == ("mine" not in path.read_text()), f"{path.name}: secret")


def check_arguments(program, files):
    """`tessera train` takes the arguments of the pods."""
    for kind in KINDS:
        jobs = [each for each in files[kind] if each.name.startswith("job-")][:3]
        for path in jobs + [each for each in files[kind] if each.name.startswith("card-")]:
            words = re.findall(r'^ +- "(--.*|launch|train)"$', path.read_text(), re.MULTILINE)
            arguments = words[words.index("train") + 1:]
            if "launch" in arguments:  # those of a PyTorchJob's Workers, which are the same
                arguments = arguments[:arguments.index("launch")]
            result = subprocess.run([program, "config", "show", *arguments], capture_output=True, text=True)
            check(len(arguments) > 5 and result.returncode == 0, f"{path.name}: {arguments}: {result.stderr}")


def check_can_fail(program, folder):
    """The checks see damage of each kind."""
    good = sorted(folder.glob("job-v2.3-0-*.yaml"))[0].read_text()
    unknown = folder / "unknown-field.yaml"
    unknown.write_text(good.replace("  runtimeRef:\n", "  flavour: x\n  runtimeRef:\n"))
    if VALIDATOR.exists():
        result = subprocess.run([sys.executable, VALIDATOR, "--trainer", "v2.3.0", unknown], capture_output=True, text=True)
        check(result.returncode == 1 and "flavour" in result.stdout, "the validator accepts an unknown field")
    wrong = folder / "wrong.yaml"
    wrong.write_text(good.replace("numProcPerNode: 1", "numProcPerNode: auto"))
    result = tessera(program, ["lint", wrong])
    check(result.returncode == 65 and "numProcPerNode" in result.stdout, "lint accepts numProcPerNode auto")
    result = tessera(program, ["lint", folder / "queue-small.yaml", folder / "job-v2.1-1-3.yaml"])
    check(result.returncode == 65 and "it is never admitted" in result.stdout, f"lint accepts a job above the quota: {result.stdout}")
    apart = folder / "apart.yaml"
    apart.write_text("".join((folder / "card-job-0.yaml").read_text().rpartition('nvidia.com/gpu: "1"')[::2]))
    result = tessera(program, ["lint", apart])
    check(result.returncode == 65 and "nvidia.com/gpu has no limit" in result.stdout, f"lint accepts a card without a limit: {result.stdout}")
    broken = folder / "broken.yaml"
    broken.write_text(good.replace("metadata:\n", "metadata: [\n", 1))
    result = tessera(program, ["lint", broken])
    check(result.returncode == 65 and "broken.yaml:" in result.stderr, f"lint accepts broken YAML: {result.stderr}")


def check_repeatable(program):
    """Two runs differ in the generated secret only; text of the user arrives as it is."""
    odd = "/data/it's \"odd\" {{ 1 }} # &x: *.jsonl"
    arguments = [*JOB, *SHAPES[0], "--dataset", odd, "--trainer", "jobset"]
    first, second = (tessera(program, arguments).stdout for _ in range(2))
    changed = [(a, b) for a, b in zip(first.splitlines(), second.splitlines()) if a != b]
    check(len(changed) == 1 and changed[0][0].startswith("  secret: "), f"two runs differ: {changed}")
    jobset = [each for each in yaml.load_all(first, LOADER) if each["kind"] == "JobSet"][0]
    container = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    check(f"--dataset={odd}" in container["args"], f"text has changed: {container['args']}")
    result = tessera(program, [*JOB, *SHAPES[0], "--grace_period_s", "200", "--capacity", "on-demand"])
    check("--grace_period_s=200" in result.stdout and "--termination_grace_s=210" in result.stdout,
          f"a grace period that was given has changed: {result.stderr}")
    batch = ["--global_batch_size", "30", "--per_device_train_batch_size", "1"]
    result = tessera(program, [*JOB, *SHAPES[2], *batch])
    check("--per_device_train_batch_size=1\"" in result.stdout and "--global_batch_size=30\"" in result.stdout,
          f"a batch size that was given has changed: {result.stderr}")


def check_templates(program, folder):
    """Templates can be written, edited and used; a mistake in them is the user's."""
    own = folder / "templates"
    check(tessera(program, ["templates", "--output", own]).returncode == 0, "templates are not written")
    check(tessera(program, ["templates", "--output", own]).returncode == 64, "templates are overwritten")
    queue = own / "queue.yaml.jinja"
    text = queue.read_text()
    queue.write_text(text.replace("BestEffortFIFO", "StrictFIFO"))
    result = tessera(program, ["queue", "--templates", own])
    check("queueingStrategy: StrictFIFO" in result.stdout, f"an edited template is not used: {result.stderr}")
    queue.write_text(text.replace("namespaceSelector", "selector"))
    result = tessera(program, ["queue", "--templates", own])
    check(result.returncode == 65 and "namespaceSelector: is missing" in result.stderr, f"lint of templates: {result.stderr}")
    (own / "quue.yaml.jinja").write_text("")
    result = tessera(program, ["queue", "--templates", own])
    check(result.returncode == 64 and "did you mean queue.yaml.jinja?" in result.stderr, f"names: {result.stderr}")


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.chdir(folder)
        files = render_all(program, folder)
        if failures:
            sys.exit("\n".join(failures))
        if VALIDATOR.exists():
            for kind in SCHEMAS:
                check_schemas(kind, files[kind])
        else:
            print(f"not checked against schemas: {VALIDATOR} is not there")
        check_lint(program, files, folder)
        check_values(files)
        check_cards(program, files, folder)
        check_mount_forms(program)
        check_deepspeed(program, folder)
        check_unknown_nodes(program)
        check_kinds(program, folder)
        check_images(program)
        check_pages(program, folder)
        check_arguments(program, files)
        check_can_fail(program, folder)
        check_repeatable(program)
        check_templates(program, folder)
    if failures:
        sys.exit("\n".join(failures))
    print(f"{sum(map(len, files.values()))} renderings checked")


if __name__ == "__main__":
    main()
