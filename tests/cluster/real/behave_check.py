#!/usr/bin/env python3
"""What the real controllers make of the jobs that `tessera deploy kubernetes` writes, on nodes that kwok pretends, whose pods end as a
scenario decides. Scenarios run side by side, each with jobs of its own name."""
import concurrent.futures
import json
import os
import re
import signal
import time

from apply_check import OF_RUNTIMES, SHAPES
from cluster import (ROOT, SET, STATE, add_namespace, add_node, apply, attempt, check, check_status, delete, deploy, end_pod, find, get, index_of,
                     is_true, kubectl, patch, path_of, pods_of, remediate, remove, request, tessera, uids, wait, workloads_of)

WORDS = {SET: "trainjob", "jobset": "jobset", "job": "job"}
DONE = {"trainjob": "Complete", "jobset": "Completed", "job": "Complete"}
# Three pods without Kueue, which would admit one job after the other.
THREE = "--model_config llama3-8b --instance r7i.16xlarge --nodes 3"
# THREE_APART runs on nodes that no other scenario uses.
THREE_APART = THREE.replace("16x", "24x") + " --zone "


class Job:
    """A job of Kubeflow Trainer, of JobSet or of Kubernetes alone."""
    made = []

    def __init__(self, scenario, trainer, flags, num_pods=3):
        self.word = WORDS[trainer]
        self.name = f"{scenario}-{self.word}"
        self.num_pods = num_pods
        flags = OF_RUNTIMES.sub("", flags) if trainer == SET else flags
        self.text = deploy("kubernetes", "--model", "org/some-model", "--dataset", "org/rows", "--max_length", "1024", "--trainer", trainer,
                           "--name", self.name, *flags.split())
        self.path = f"{STATE}/manifests/{self.name}.yaml"
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(self.text)
        Job.made.append(self)

    def object(self):
        return get(self.word + "s", self.name)

    def start(self, seconds=300):
        apply(self.text)
        pods = self.pods(seconds)
        if self.word == "job":  # whose controller loses count of a pod that ends before its first look
            wait(f"{self.name} has counted its pods", lambda: self.object()["status"].get("active") == self.num_pods)
        return pods

    def pods(self, seconds=300, unlike=()):
        """All pods, once they run; `unlike`: and at least one is none of these."""
        def running():
            pods = pods_of(self.name, self.num_pods)
            return pods if not unlike or uids(pods) - uids(unlike) else []
        return wait(f"{self.num_pods} pods of {self.name} run", running, seconds)

    def ends(self, how, seconds=240):
        condition = DONE[self.word] if how == "done" else "Failed"
        wait(f"{self.name} is {how}", lambda: is_true(self.object(), condition), seconds)

    def check_status(self, code, *texts):
        check_status(self.path, code, *texts)

    def remove(self):
        remove(self.text)


def variables(pod):
    node = next(each for each in pod["spec"]["containers"] if each["name"] == "node")
    return [(each["name"], each.get("value", each.get("valueFrom"))) for each in node.get("env", [])]


def check_pods(job, pods, num_ranks):
    first, host = pods[0]["spec"], f"{job.name}-0" if job.word == "job" else f"{job.name}-node-0-0"
    check([index_of(pod) for pod in pods] == list(range(job.num_pods)), f"{job.name}: the pods have the indexes 0 to {job.num_pods - 1}")
    expected = {"PET_NNODES": str(job.num_pods), "PET_NPROC_PER_NODE": str(num_ranks), "PET_MASTER_ADDR": f"{host}.{job.name}",
                "PET_MASTER_PORT": "29500",
                "PET_NODE_RANK": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
    for pod in pods:
        env = dict(variables(pod))
        found = {name: env.get(name) for name in expected}
        found["PET_NODE_RANK"] = (found["PET_NODE_RANK"] or {}).get("fieldRef", {}).get("fieldPath")
        check(found == expected and len(env) == len(variables(pod)), f"{job.name}: pod {index_of(pod)} has the variables of torchrun, once",
              variables(pod))
    check((first.get("hostname"), first.get("subdomain")) == (host, job.name), f"{job.name}: pod 0 is called as PET_MASTER_ADDR says",
          (first.get("hostname"), first.get("subdomain")))
    check(len({pod["spec"]["nodeName"] for pod in pods}) == job.num_pods, f"{job.name}: each pod has a node of its own")
    check(all(pod["status"]["qosClass"] == "Guaranteed" for pod in pods), f"{job.name}: the pods are Guaranteed")
    mounts = {each["name"] for each in first["containers"][0]["volumeMounts"]}
    check({"data", "tmp", "rendezvous"} <= mounts, f"{job.name}: the volumes are mounted", mounts)


def run_shape(trainer, shape, num_pods, num_ranks=1):
    """Undisturbed, from applying to the end."""
    job = Job(shape, trainer, SHAPES[shape], num_pods)
    pods = job.start()
    check_pods(job, pods, num_ranks)
    if "--queue" in SHAPES[shape]:
        wait(f"Kueue sees the pods of {job.name}", lambda: any(is_true(each, "PodsReady") for each in workloads_of(job.name)))
        loads = workloads_of(job.name)
        counts = [each.get("count", 1) for load in loads for each in load["spec"]["podSets"]]
        check(len(loads) == 1 and is_true(loads[0], "Admitted") and sum(counts) == num_pods,
              f"{job.name}: Kueue admits one workload with all pods", counts)
    if job.word != "job":  # which Kubeflow Trainer 2.4 demands
        names = [each["name"] for each in get("jobsets", job.name)["spec"]["replicatedJobs"]]
        check(all(len(each) <= 20 for each in names), f"{job.name}: names of replicated jobs have at most 20 characters", names)
    if num_pods > 1:
        budget = wait(f"the budget of {job.name} counts", lambda: (found := get("poddisruptionbudgets", job.name)).get("status", {}).get(
            "currentHealthy") == num_pods and found)["status"]
        check(budget["disruptionsAllowed"] == 1 and budget["expectedPods"] == num_pods, f"{job.name}: one pod may be evicted", budget)
    job.check_status(0, "running", f"{num_pods} pod")
    again = kubectl("apply", "--server-side", "-f", job.path, check_result=False)
    check(again.returncode == 0, f"{job.name}: can be applied again while it runs", again.stderr)
    time.sleep(2)
    check(uids(pods_of(job.name)) == uids(pods), f"{job.name}: that leaves its pods alone")
    for pod in pods:
        end_pod(pod, 0)
    job.ends("done")
    job.check_status(0, "finished")
    job.remove()
    wait(f"nothing is left of {job.name}", lambda: not find("pods", f"app.kubernetes.io/instance={job.name}")
         and not find("poddisruptionbudgets", f"app.kubernetes.io/instance={job.name}") and not workloads_of(job.name))
    check(True, f"{job.name}: nothing is left once it is deleted")


def check_restart(job, old, what, counted, seconds=300):
    """All pods of a JobSet start again, or the lost ones of a Job."""
    new = job.pods(seconds, unlike=old)
    if job.word == "job":
        def num_failed():
            return job.object()["status"].get("failed", 0)
        if counted:  # after the new pod has been created
            wait(f"{what} is counted", num_failed)
        failed = num_failed()
        check(len(uids(new) - uids(old)) == 1 and failed == counted, f"{what} is replaced alone, {'' if counted else 'not '}counted",
              f"{len(uids(new) - uids(old))} new, {failed} failed")
        return
    status = get("jobsets", job.name)["status"]
    check(not uids(new) & uids(old) and status.get("restarts") == 1 and status.get("restartsCountTowardsMax", 0) == counted,
          f"{what} restarts all, {'' if counted else 'not '}counted", status)
    attempts = {pod["metadata"]["labels"].get("jobset.sigs.k8s.io/restart-attempt") for pod in new}
    check(attempts == {"1"}, f"{what}: the new pods know their attempt", attempts)
    if job.word == "trainjob":
        check(not is_true(job.object(), "Failed"), f"{what} leaves the TrainJob unfinished", job.object().get("status"))


def run_exit(trainer, code, outcome):
    """A pod ends with `code`; outcome: counted, not counted, or failed."""
    job = Job(f"exit-{code}", trainer, THREE)
    pods = job.start()
    end_pod(pods[2], code)
    what = f"{job.name}: a pod that ends with {code}"
    if outcome != "failed":
        check_restart(job, pods, what, outcome == "counted")
    else:
        job.ends("failed")
        wait(f"no pod of {job.name} runs", lambda: all(pod["status"]["phase"] == "Failed" for pod in pods_of(job.name)))
        check(True, f"{what} fails the job and ends the others")
        job.check_status(3, str(code))
    job.remove()


def run_node_check(trainer):
    """The init container that checks the node fails: another pod for this one alone."""
    flags = THREE + (" --runtime tessera-check" if trainer == SET else " --node_check")
    job = Job("check", trainer, flags)
    pods = job.start()
    end_pod(pods[1], 1, "node-check")
    new = job.pods(unlike=pods)
    failed = get("jobs", job.name if job.word == "job" else job.name + "-node-0")["status"].get("failed", 0)
    check(len(uids(new) - uids(pods)) == 1 and failed == 0, f"{job.name}: a failed node check replaces one pod and costs nothing", failed)
    job.remove()


def run_node_lost(trainer, how, more=""):
    job = Job(how, trainer, THREE + more)
    pods = job.start()
    node = pods[1]["spec"]["nodeName"]
    if how == "drained":
        kubectl("drain", node, "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=60s")
    else:
        delete("nodes", node)
    check_restart(job, pods, f"{job.name}: a pod whose node is {how}", False)
    job.remove()


def run_silent_nodes():
    """Nodes stop answering, as if their power had failed: only the deletion of the Node frees its pod."""
    jobs = []
    for trainer, word in WORDS.items():
        for i in range(3):
            add_node(f"{word}-{i}", "r7i.24xlarge", 96, "750Gi", zone=f"silent-{word}", kwok="fake" if i else "silent")
        jobs.append(Job("silent", trainer, f"{THREE_APART}silent-{word}"))
    pods = [job.start() for job in jobs]
    with open(f"{STATE}/kwok-silent.pid", encoding="utf-8") as file:
        os.kill(int(file.read()), signal.SIGKILL)
    for job, running in zip(jobs, pods):
        wait(f"a pod of {job.name} is to go", lambda j=job: len(pods_of(j.name)) < 3)
        lost = next(each["metadata"]["name"] for each in running if each["spec"]["nodeName"] == f"{job.word}-0")
        job.check_status(2, f"pod {lost} there is Terminating", f"kubectl delete node {job.word}-0")
    for job in jobs:
        add_node(f"{job.word}-3", "r7i.24xlarge", 96, "750Gi", zone=f"silent-{job.word}")
        delete("nodes", f"{job.word}-0")
    for job, old in zip(jobs, pods):
        check_restart(job, old, f"{job.name}: a pod whose silent node is deleted", False)
        job.remove()


def run_stopped_by_kueue(trainer):
    """Kueue takes a running job's room away and gives it back."""
    job = Job("stopped", trainer, SHAPES["four"], 4)
    old = job.start()
    workload = workloads_of(job.name)[0]["metadata"]["name"]
    patch("workloads", workload, {"spec": {"active": False}})
    wait(f"no pod of {job.name}", lambda: not find("pods", f"app.kubernetes.io/instance={job.name}"))
    job.check_status(2)
    patch("workloads", workload, {"spec": {"active": True}})
    new = job.pods()
    check([variables(pod) for pod in new] == [variables(pod) for pod in old], f"{job.name}: its new pods have the same variables")
    check(new[0]["spec"].get("nodeSelector") == old[0]["spec"].get("nodeSelector"), f"{job.name}: and go to nodes of the same kind",
          new[0]["spec"].get("nodeSelector"))
    check_no_restart(job)
    job.remove()


def check_no_restart(job):
    restarts = wait(f"a status of {job.name}", lambda: (found := tessera("status", job.path, "--json").stdout) and json.loads(found))["restarts"]
    check(restarts == 0, f"{job.name}: status does not call that a restart", restarts)


def run_gang(trainer):
    """A job takes the whole queue: the next one starts no pod until it is done, and then all."""
    first, second = Job("first", trainer, SHAPES["four"], 4), Job("second", trainer, SHAPES["own"], 3)
    pods = first.start()
    apply(second.text)
    wait(f"a workload of {second.name}", lambda: workloads_of(second.name))
    time.sleep(3)
    check(not pods_of(second.name), f"{second.name}: a job without room in its queue has no pods")
    second.check_status(1, "quota")
    for pod in pods:
        end_pod(pod, 0)
    first.ends("done")
    check(len(second.pods()) == 3, f"{second.name}: it starts when the other is done")
    first.remove()
    second.remove()


def run_preempted(trainer):
    """A more important job takes the room of one that runs, which is queued again and goes on afterwards."""
    low, high = Job("low", trainer, SHAPES["four"], 4), Job("high", trainer, SHAPES["own"] + " --priority_class urgent", 3)
    low.start()
    pods = high.start()
    wait(f"no pod of {low.name}", lambda: not find("pods", f"app.kubernetes.io/instance={low.name}"))
    low.check_status(1, "preempted by another job")
    for pod in pods:
        end_pod(pod, 0)
    high.ends("done")
    low.pods()
    check_no_restart(low)
    low.remove()
    high.remove()


def run_pytorch_job():
    """The training-operator replaces pods one by one, and tells each its node in the variables of torchrun."""
    text = deploy("kubernetes", "--model", "org/some-model", "--dataset", "org/rows", "--max_length", "1024", "--trainer", "pytorchjob", "--name",
                  "dist", "--nproc_per_node", "2", *THREE.split())
    path = f"{STATE}/manifests/dist.yaml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    apply(text)

    def named():
        pods = pods_of("dist", 3)
        return {each["metadata"]["name"]: each for each in pods}
    pods = wait("3 pods of dist run", named)
    expected = {"PET_NNODES": "3", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "dist-master-0", "PET_MASTER_PORT": "29500"}
    for rank, name in enumerate(("dist-master-0", "dist-worker-0", "dist-worker-1")):
        container = pods[name]["spec"]["containers"][0]
        env = {each["name"]: each.get("value") for each in container["env"]}
        check(env.items() >= {**expected, "PET_NODE_RANK": str(rank)}.items(), f"{name} has the variables of torchrun", env)
        check(container["command"][:3] == ["env", "--unset=RANK", "--unset=WORLD_SIZE"], f"{name} drops the two that count pods")
    check(len({pod["spec"]["nodeName"] for pod in pods.values()}) == 3, "dist: each pod has a node of its own")
    check_status(path, 0, "running", "3 pod")
    again = kubectl("apply", "--server-side", "-f", path, check_result=False)
    check(again.returncode == 0, "dist: can be applied again while it runs", again.stderr)
    kubectl("drain", pods["dist-worker-0"]["spec"]["nodeName"], "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=60s")
    new = wait("dist has another worker", lambda: (now := named()) and uids(now.values()) - uids(pods.values()) and now)
    check(len(uids(new.values()) - uids(pods.values())) == 1, "dist: a drained pod is replaced alone")
    for pod in new.values():
        end_pod(pod, 0, "pytorch")
    wait("dist is done", lambda: is_true(get("pytorchjobs", "dist"), "Succeeded"))
    check_status(path, 0, "finished")
    remove(text)
    wait("nothing is left of dist", lambda: not find("pods", "app.kubernetes.io/instance=dist"))


def run_volume_owner():
    """The Job that gives a new file system to the pods' user needs CHOWN: `restricted` takes no such pod, `baseline` does."""
    written = deploy("runtime", "--namespace", "strict", "--trainer", "job", "--fsx", "fs-0123.fsx.eu-west-1.amazonaws.com/abcdef")
    check("`restricted`" in written, "deploy runtime --fsx says which namespaces take its Job")
    add_namespace("strict", **{"pod-security.kubernetes.io/enforce": "baseline"})
    kubectl("apply", "--server-side", "-f", "-", stdin=written)
    owner = "apis/batch/v1/namespaces/strict/jobs/training-data-owner"
    wait("the owner's Job has a pod", lambda: request("GET", owner).get("status", {}).get("active"))
    check(True, "a namespace that enforces baseline takes it")


def run_remediation():
    """Rounds of deploy/health/remediate.sh with the rights of its own account: a node falls sick while a job runs."""
    claim = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "spec": {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "cpu-amx"},
        "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}}
    for i in range(4):
        name = f"claimed-{i}"
        made = request("POST", path_of("nodeclaims"), {**claim, "metadata": {"name": name}})
        add_node(name, "r7i.24xlarge", 96, "750Gi", zone="claimed", owners=[
            {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": name, "uid": made["metadata"]["uid"]}])
    for file in ("namespace", "remediation"):
        kubectl("apply", "--server-side", "-f", f"{ROOT}/deploy/health/{file}.yaml")

    def set_health(node, status):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        kubectl("patch", "node", node, "--subresource=status", "-p", json.dumps({"status": {"conditions": [
            {"type": "TesseraUnhealthy", "status": status, "lastTransitionTime": now, "lastHeartbeatTime": now, "reason": "Test"}]}}))

    def is_tainted(node):
        return any(each["key"] == "tessera-unhealthy" for each in get("nodes", node)["spec"]["taints"])

    job = Job("sick", "job", THREE_APART + "claimed")
    pods = job.start()
    sick, other = (pod["spec"]["nodeName"] for pod in pods[:2])
    said = remediate()
    check(said == "", "remediation: a round without sick nodes changes nothing", said)
    set_health(sick, "True")
    said = remediate(evict_after=3600)
    check(is_tainted(sick) and len(pods_of(job.name)) == 3, "remediation: a sick node is tainted and keeps its pods for a while", said)
    set_health(sick, "False")
    said = remediate()
    check(not is_tainted(sick), "remediation: a node that is healthy again loses the taint", said)
    set_health(sick, "True")
    said = remediate() + remediate()
    new = job.pods(unlike=pods)
    check(sick not in {pod["spec"]["nodeName"] for pod in new}, "remediation: its pod is evicted and starts elsewhere", said)
    said = remediate()
    gone = get("nodeclaims", sick)
    check(gone is None or "deletionTimestamp" in gone["metadata"], "remediation: then its NodeClaim is deleted", said)
    set_health(other, "True")
    said = remediate(per_day=1)
    check("that is the budget" in said and not is_tainted(other), "remediation: the next node waits for the budget of a day", said)
    job.remove()


def run_diff():
    """up.sh applies what `kubectl diff` says has changed: nothing, right after it has been applied."""
    for arguments in (f"runtime --trainer {SET} --nfs 10.0.0.5:/export", "queue --instance r7i.48xlarge --nodes 60",
                      "queue --device cuda --instance g6e.xlarge --nodes 4"):
        text = deploy(*arguments.split())
        apply(text)
        # Between the two states that it compares, a controller may add its finalizer.
        for _ in range(3):
            answer = kubectl("diff", "--server-side", "-f", "-", stdin=text, check_result=False)
            if answer.returncode == 0:
                break
        check(answer.returncode == 0, f"deploy {arguments}: no difference once it is applied", answer.stdout + answer.stderr)


def prepare():
    os.makedirs(f"{STATE}/manifests", exist_ok=True)
    for i in range(30):
        add_node(f"r16-{i}", "r7i.16xlarge", 64, "500Gi", "spot")
    for i in range(14):
        add_node(f"r48-{i}", "r7i.48xlarge", 192, "1500Gi", devices=["vpc.amazonaws.com/efa"])
    for i in range(6):
        add_node(f"m24-{i}", "m7i.24xlarge", 96, "376Gi")
    for i in range(3):
        add_node(f"gpu-{i}", "g6e.xlarge", 4, "31Gi", kind="gpu", taint="nvidia.com/gpu", devices=["nvidia.com/gpu"])
    for text in (f"runtime --trainer {SET} --nfs 10.0.0.5:/export", f"runtime --trainer {SET} --device cuda --nfs 10.0.0.5:/export",
                 f"runtime --trainer {SET} --nfs 10.0.0.5:/export --runtime tessera-check --node_check",
                 "queue --instance r7i.48xlarge --nodes 60", "queue --device cuda --instance g6e.xlarge --nodes 4"):
        apply(deploy(*text.split()))
    wait("the volume's claim is bound", lambda: get("persistentvolumeclaims", "training-data")["status"].get("phase") == "Bound")


def side_by_side(scenarios):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for function, *arguments in scenarios:
            name = " ".join(map(str, (function.__name__, *arguments)))
            if re.search(os.environ.get("CLUSTER_ONLY", ""), name):
                pool.submit(attempt, name, lambda f=function, a=arguments: f(*a))


def main():
    prepare()
    scenarios = [(run_silent_nodes,), (run_remediation,), (run_diff,), (run_volume_owner,), (run_pytorch_job,)]
    for trainer in WORDS:
        scenarios += [(run_node_lost, trainer, "deleted"), (run_node_lost, trainer, "drained", " --queue training")]
        scenarios.append((run_node_check, trainer))
        scenarios += [(run_exit, trainer, code, outcome) for code, outcome in (
            (1, "counted"), (137, "counted"), (75, "not counted"), (143, "not counted"), (64, "failed"), (79, "failed"))]
        scenarios += [(run_shape, trainer, shape, *sizes) for shape, *sizes in (
            ("two", 2), ("four", 4), ("ranks", 4, 4), ("own", 3), ("efa", 2, 2), ("cuda", 1))]
        scenarios.append((run_stopped_by_kueue, trainer))
    side_by_side(scenarios)
    for job in Job.made:  # those of scenarios that have failed are still there
        job.remove()
    # One after the other, as each needs the whole queue.
    apply(deploy("queue", "--instance", "r7i.16xlarge", "--nodes", "4"))
    for version, kind in (("scheduling.k8s.io/v1", "PriorityClass"), ("kueue.x-k8s.io/v1beta2", "WorkloadPriorityClass")):
        apply(json.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": "urgent"}, "value": 2000}))
    for trainer in WORDS:
        side_by_side([(run_gang, trainer)])
        side_by_side([(run_preempted, trainer)])


if __name__ == "__main__":
    main()
