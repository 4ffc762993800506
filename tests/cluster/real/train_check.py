#!/usr/bin/env python3
"""TrainJobs that really train: pods of the image of deploy/docker on the kubelets of real_nodes.sh, and what they survive. A tiny model, on
two nodes of this machine's processors."""
import base64
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time

from cluster import (ROOT, SET, STATE, apply, attempt, check, check_status, conditions, deploy, find, get, is_true, kubectl, patch, pods_of,
                     remediate, remove, request, tessera, uids, wait)

CLAIM = f"{STATE}/claim"
# Of ten milliseconds where the machine has nothing else to do. Eight rows each, because with other work on it the ranks wait far longer for
# each other, once a step, than they compute.
STEPS = 1200


DONE = {SET: ("trainjobs", "Complete"), "jobset": ("jobsets", "Completed"), "job": ("jobs", "Complete"),
        "pytorchjob": ("pytorchjobs", "Succeeded")}


class Job:
    def __init__(self, name, nodes, *flags, trainer=SET, save_steps=100):
        self.name, self.nodes = name, nodes
        self.kind, self.done = DONE[trainer]
        self.path = f"{STATE}/manifests/{name}.yaml"
        runtime = ("--runtime", "tessera-real") if trainer == SET else ()
        text = deploy("kubernetes", "--image", "localhost/tessera:cluster", "--trainer", trainer, *runtime, "--claim", "real-data", "--name", name, "--nodes", str(nodes), "--cpus", "1", "--memory", "1GiB", "--zone", "here",
                      "--model", "/data/model", "--model_config", f"{CLAIM}/config.json", "--dataset", "/data/text.txt", "--text_per_line",
                      "--packing", "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "8", "--learning_rate", "1e-3",
                      "--logging_steps", "20", "--save_steps", str(save_steps), *flags)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)
        apply(text)

    def pods(self, unlike=()):
        """All of them, once they run; `unlike`: and none is one of these."""
        return wait(f"{self.nodes} pods of {self.name} run", lambda: (
            pods := pods_of(self.name, self.nodes)) and not uids(pods) & uids(unlike) and pods)

    def steps(self, tail_bytes=1 << 30):
        """The numbers of the steps in metrics.jsonl, in the order of its lines."""
        try:
            with open(f"{CLAIM}/runs/{self.name}/metrics.jsonl", "rb") as file:
                file.seek(max(0, os.path.getsize(file.name) - tail_bytes))
                return [int(each) for each in re.findall(rb'^\{"step":(\d+)', file.read(), re.M)]
        except FileNotFoundError:
            return []

    def reaches(self, step):
        return wait(f"{self.name} reaches step {step}", lambda: (steps := self.steps(10000)) and steps[-1] >= step and steps[-1])

    def ends(self):
        wait(f"{self.name} ends", lambda: is_true(self.object(), self.done) or is_true(self.object(), "Failed"), 600)
        check(is_true(self.object(), self.done), f"{self.name} trains to the end", conditions(self.object()))

    def object(self):
        return get(self.kind, self.name)

    def check_restarts(self, number, counted):
        status = get("jobsets", self.name)["status"]
        found = status.get("restarts", 0), status.get("restartsCountTowardsMax", 0)
        check(found == (number, counted), f"{self.name}: {number} restarts, of which {counted} count", found)

    def check_resumed(self, pods, saved):
        """The pods of an attempt go on from a checkpoint of at least this step."""
        def found():
            text = kubectl("logs", "-n", "training", pods[0]["metadata"]["name"], check_result=False).stdout
            return re.search(r"resuming from \S+ after step ([\d,]+)", text)
        step = int(wait(f"{self.name} resumes", found)[1].replace(",", ""))
        check(step >= saved, f"{self.name}: the new pods resume from the last checkpoint", f"step {step}, expected {saved} or later")
        return step


def node_of(pod):
    return pod["spec"]["nodeName"]


def start_node(index):
    subprocess.run(["bash", "-euc", f". {ROOT}/tests/cluster/real/real_nodes.sh; start_node {index}"], check=True)


def kill_container(pod):
    container = pod["status"]["containerStatuses"][0]["containerID"].split("//")[1]
    with open(f"{STATE}/{node_of(pod)}.pid", encoding="utf-8") as file:
        subprocess.run(["nsenter", "--mount", "--target", file.read().strip(), "ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "KILL",
                        container], check=True)


def last_checkpoint(job):
    with open(f"{CLAIM}/runs/{job.name}/latest", encoding="utf-8") as file:
        return int(file.read().strip().rsplit("-", 1)[1])


# --- scenarios

def run_seen(job, pods):
    """A running job through the API server."""
    check({node_of(pod) for pod in pods} == {"real-0", "real-1"}, f"{job.name}: a pod on each node", [node_of(pod) for pod in pods])
    # Kueue, with blockAdmission, admits the next job when all pods of this one are ready.
    check(all(is_true(pod, "Ready") for pod in pods), f"{job.name}: a pod is ready as soon as it runs, not once it answers")
    job.reaches(20)
    check_status(job.path, 0, "running", "step ")
    name = pods[0]["metadata"]["name"]
    health = kubectl("get", "--raw", f"/api/v1/namespaces/training/pods/{name}:9400/proxy/healthz", check_result=False)
    check('"status":"ok"' in health.stdout, f"{job.name}: the API server hands /healthz on", health.stdout + health.stderr)
    with subprocess.Popen(["kubectl", "port-forward", "-n", "training", f"pod/{name}", "9400"], stdout=subprocess.PIPE, text=True) as forward:
        forward.stdout.readline()
        address, token = "http://127.0.0.1:9400", base64.b64decode(get("secrets", "tessera-metrics")["data"]["token"]).decode()
        metrics = subprocess.run(["curl", "-sS", "-H", f"Authorization: Bearer {token}", f"{address}/metrics"], capture_output=True, text=True, check=False)
        closed = subprocess.run(["curl", "-sS", "-o", "metrics.out", "-w", "%{http_code}", f"{address}/metrics"], capture_output=True, text=True, check=False)
        seen = tessera("watch", address, "--once", "--json", "--token", token)
        forward.terminate()
    check("tessera_train_loss" in metrics.stdout, f"{job.name}: a forwarded port has its metrics", metrics.stdout[:300] + metrics.stderr)
    check(closed.stdout == "401", f"{job.name}: and not without the token of the Secret tessera-metrics", closed.stdout + closed.stderr)
    check(seen.returncode == 0 and json.loads(seen.stdout).get("step", 0) > 0, f"{job.name}: tessera watch sees it through that port",
          seen.stdout + seen.stderr)


def run_killed():
    num_steps = STEPS + 600  # enough for run_seen() on a fast machine
    job = Job("killed", 2, "--max_steps", str(num_steps), "--report_to", "dashboard")
    pods = job.pods()
    run_seen(job, pods)
    job.reaches(120)
    kill_container(pods[1])
    job.check_resumed(job.pods(unlike=pods), 100)
    job.ends()
    job.check_restarts(1, 1)
    check_status(job.path, 0, f"finished: step {num_steps} of {num_steps}")
    check(sorted(set(job.steps())) == list(range(1, num_steps + 1)), f"{job.name}: every step is there", len(job.steps()))
    remove_job(job)


def run_drained():
    """A node is drained; what the job leaves in the end is read on one node."""
    job = Job("moved", 2, "--max_steps", str(STEPS), save_steps=STEPS)
    pods = job.pods()
    job.reaches(20)
    node = node_of(pods[1])
    kubectl("drain", node, "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=120s")
    kubectl("uncordon", node)
    drained, pods = pods, job.pods(unlike=pods)
    check(0 < last_checkpoint(job) < STEPS, f"{job.name}: SIGTERM leaves a checkpoint, the first one", last_checkpoint(job))
    job.check_resumed(pods, 20)
    job.check_restarts(1, 0)
    check(not uids(drained) & uids(find("pods", f"app.kubernetes.io/instance={job.name}")), f"{job.name}: the drained pods are gone")
    job.ends()
    remove_job(job)

    one = Job("one", 1, "--max_steps", str(STEPS + 40), "--output_dir", f"/data/runs/{job.name}")
    one.ends()
    one.check_resumed(pods_of(one.name), STEPS)
    check(job.steps()[-1] == STEPS + 40, f"{one.name}: one node goes on with what two have left", job.steps()[-1])
    remove_job(one)


def run_lost(rank, trainer):
    """The node of a rank vanishes, and another one takes its place."""
    job = Job(f"lost-{rank}", 2, "--max_steps", str(STEPS), trainer=trainer)
    pods = job.pods()
    name, lost, kept = pods[int(rank)]["metadata"]["name"], node_of(pods[int(rank)]), node_of(pods[1 - int(rank)])
    job.reaches(120)
    with open(f"{STATE}/{lost}.pid", encoding="utf-8") as file:
        os.kill(int(file.read()), signal.SIGKILL)
    wait("its pod is to go", lambda: "deletionTimestamp" in get("pods", name)["metadata"])
    # All pods of a JobSet end. The other one of a Job waits for the lost one, and reads metrics.jsonl for status.
    gone, seen = ([pods[int(rank)]], "last seen: step ") if trainer == "job" else (pods, f"it is in /data/runs/{job.name}/metrics.jsonl")
    check_status(job.path, 2, f"pod {name} there is Terminating", f"kubectl delete node {lost}", seen)
    index = len(glob.glob(f"{STATE}/real-*.pid"))
    start_node(index)
    kubectl("delete", "node", lost)
    saved = last_checkpoint(job)
    pods = job.pods(unlike=gone)
    check({node_of(pod) for pod in pods} == {kept, f"real-{index}"}, f"{job.name}: another node takes the place of the lost one")
    job.check_resumed(pods, saved)
    job.ends()
    if trainer == SET:
        job.check_restarts(1, 0)
    check(sorted(set(job.steps())) == list(range(1, STEPS + 1)), f"{job.name}: every step is there", len(job.steps()))
    remove_job(job)


def run_without_trainer(trainer):
    """A JobSet and a Job, whose pods find each other by names of another form."""
    job = Job(f"as-{trainer}", 2, "--max_steps", "100", trainer=trainer)
    job.ends()
    check(job.steps() == list(range(1, 101)), f"{job.name}: every step is there", job.steps()[-3:])
    check_status(job.path, 0, "finished: step 100 of 100")
    remove_job(job)


def run_pytorch_job():
    """kubelet starts a killed container again in its pod; the launcher of the other one waits for it."""
    job = Job("dist", 2, "--max_steps", str(STEPS), trainer="pytorchjob")
    pods = {each["metadata"]["name"]: each for each in job.pods()}
    job.reaches(120)
    kill_container(pods["dist-worker-0"])
    wait("the container is started again", lambda: get("pods", "dist-worker-0")["status"]["containerStatuses"][0]["restartCount"] == 1)
    check(uids(pods_of(job.name)) == uids(pods.values()), "dist: a killed container is started again in its pod")
    job.ends()
    check(sorted(set(job.steps())) == list(range(1, STEPS + 1)), "dist: every step is there", len(job.steps()))
    check_status(job.path, 0, f"finished: step {STEPS} of {STEPS}")
    remove_job(job)


def run_debug():
    """The pods of `deploy debug`: a node as `tessera doctor` sees it, and the network between two nodes."""
    image = ("debug", "--image", "localhost/tessera:cluster", "--node")
    apply(deploy(*image, "real-0"))
    wait("tessera-doctor ends", lambda: get("pods", "tessera-doctor-real-0")["status"].get("phase") in ("Succeeded", "Failed"))
    said = kubectl("logs", "-n", "training", "tessera-doctor-real-0").stdout
    check("NUMA node 0" in said and get("pods", "tessera-doctor-real-0")["spec"]["nodeName"] == "real-0", "debug: tessera doctor on that node", said)
    apply(deploy(*image, "real-0", "--node", "real-1", "--what", "network"))
    wait("tessera-network ends", lambda: is_true(get("jobs", "tessera-network"), "Complete") or is_true(get("jobs", "tessera-network"), "Failed"))
    said = kubectl("logs", "-n", "training", "job/tessera-network").stdout
    check(is_true(get("jobs", "tessera-network"), "Complete") and "Gbit/s" in said, "debug: the network between two nodes", said)
    check(get("jobs", "tessera-network")["spec"]["ttlSecondsAfterFinished"] == 86400, "debug: its Job stays for a day")
    patch("jobs", "tessera-network", {"spec": {"ttlSecondsAfterFinished": 1}})
    wait("nothing is left of tessera-network", lambda: get("jobs", "tessera-network") is None)
    check(True, "debug: and goes by itself")


def remove_job(job):
    with open(job.path, encoding="utf-8") as file:
        remove(file.read())
    wait(f"nothing is left of {job.name}", lambda: not find("pods", f"app.kubernetes.io/instance={job.name}"))


def run_health():
    """deploy/health: the node problem detector tells the API server what `tessera doctor --node_check` has found; a round of the
    remediation taints the node, and takes the taint off when it is well again."""
    text = kubectl("kustomize", f"{ROOT}/deploy/health").stdout
    text = re.sub(r"image: \S*node-problem-detector:\S+", "image: localhost/node-problem-detector:cluster", text)
    text = text.replace('schedule: "*/2 * * * *"', 'schedule: "0 0 1 1 *"')  # rounds are below; the image of the CronJob's is not here
    apply(re.sub(r"image: tessera$", "image: localhost/tessera:cluster", text, flags=re.M))
    nodes = [each["metadata"]["name"] for each in request("GET", "api/v1/nodes?labelSelector=nodeType=cpu-amx,topology.kubernetes.io/zone=here")["items"]]
    pods = "api/v1/namespaces/tessera-system/pods?labelSelector=app.kubernetes.io/name=node-problem-detector"

    def detectors():
        found = {each["spec"].get("nodeName"): each["metadata"]["name"] for each in request("GET", pods)["items"] if is_true(each, "Ready")}
        return set(nodes) <= set(found) and found
    detector = wait("a detector runs on each node", detectors)

    def on_detector(node, command, check_result=True):
        return kubectl("exec", "-n", "tessera-system", detector[node], "-c", "node-check", "--", "sh", "-c", command, check_result=check_result)

    def condition(node, status, message=""):
        return wait(f"TesseraUnhealthy of {node} is {status}, {message}", lambda: (
            found := conditions(get("nodes", node)).get("TesseraUnhealthy", {})).get("status") == status and message in found["message"])

    def leave(node, code, message):
        """What the loop beside the detector leaves after a check."""
        on_detector(node, f"printf '%s\\n{code}\\n{message}\\n' $(date +%s) >/run/tessera/test && mv /run/tessera/test /run/tessera/node-check")
        condition(node, "True" if code else "False", message)

    def is_tainted():
        return any(each["key"] == "tessera-unhealthy" for each in get("nodes", nodes[0])["spec"].get("taints", []))
    for node in nodes:
        wait(f"the loop has checked {node}", lambda n=node: on_detector(n, "test -s /run/tessera/node-check", False).returncode == 0)
        _, code, message, *_ = on_detector(node, "cat /run/tessera/node-check").stdout.split("\n")
        condition(node, {"0": "False", "1": "True"}.get(code, "Unknown"), message.strip()[:50])
        check(True, f"health: the condition of {node} says what its check has found")
    for node in nodes[1:]:
        leave(node, 0, "")
    leave(nodes[0], 1, "memory_pattern: a bit that does not stay")
    said = remediate()
    check(is_tainted(), "health: a sick node is tainted", said)
    leave(nodes[0], 0, "")
    said = remediate()
    check(not is_tainted(), "health: a node that is well again loses its taint", said)


def prepare():
    subprocess.run([f"{ROOT}/tests/image/tiny_model.sh", os.environ["TESSERA"], CLAIM], check=True)
    for folder, _, files in os.walk(CLAIM):
        for each in (folder, *(os.path.join(folder, file) for file in files)):
            shutil.chown(each, 1000, 1000)
    size = {"storage": "1Gi"}
    request("POST", "api/v1/persistentvolumes", {"metadata": {"name": "real"}, "spec": {
        "capacity": size, "accessModes": ["ReadWriteMany"], "storageClassName": "", "hostPath": {"path": CLAIM},
        "claimRef": {"namespace": "training", "name": "real-data"}}})
    request("POST", "api/v1/namespaces/training/persistentvolumeclaims", {"metadata": {"name": "real-data"}, "spec": {
        "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "real", "resources": {"requests": size}}})
    os.environ["HF_TOKEN"] = "hf_that_no_pod_uses"
    apply(deploy("runtime", "--image", "localhost/tessera:cluster", "--trainer", SET, "--storage_class", "none", "--claim", "real-data",
                 "--runtime", "tessera-real", "--secrets"))


def main():
    prepare()
    for scenario, *arguments in ((run_killed,), (run_without_trainer, "jobset"), (run_without_trainer, "job"), (run_pytorch_job,),
                                 (run_debug,), (run_drained,), (run_lost, "0", SET), (run_lost, "1", "job"), (run_health,)):
        name = " ".join((scenario.__name__, *arguments))
        if re.search(os.environ.get("CLUSTER_ONLY", ""), name):
            begin = time.monotonic()
            attempt(name, lambda s=scenario, a=arguments: s(*a))
            print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
