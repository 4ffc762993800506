"""The cluster of scripts/test_cluster.sh for checks: its objects, the program, and how a check is counted."""
import http.client
import json
import os
import re
import ssl
import subprocess
import threading
import time
import traceback

STATE = os.environ["CLUSTER_STATE"]
ROOT = os.environ["CLUSTER_ROOT"]
SET = os.environ["CLUSTER_SET"]
NAMESPACE = "training"
with open(os.environ["KUBECONFIG"], encoding="utf-8") as file:
    TOKEN = re.search(r"token: (\w+)", file.read())[1]
TLS = ssl.create_default_context(cafile=f"{STATE}/tls/ca.crt")
local = threading.local()
GROUPS = {"pods": "api/v1", "nodes": "api/v1", "persistentvolumeclaims": "api/v1", "events": "api/v1", "secrets": "api/v1",
          "jobs": "apis/batch/v1", "poddisruptionbudgets": "apis/policy/v1", "jobsets": "apis/jobset.x-k8s.io/v1alpha2",
          "trainjobs": "apis/trainer.kubeflow.org/v1alpha1", "workloads": "apis/kueue.x-k8s.io/v1beta2",
          "pytorchjobs": "apis/kubeflow.org/v1", "nodeclaims": "apis/karpenter.sh/v1"}
UNNAMESPACED = {"nodes", "nodeclaims"}
lock = threading.Lock()
# The server, etcd or a webhook did not answer in time.
TIMED_OUT = re.compile(r"deadline exceeded|timed? ?out|unable to return a response in the time|connection (refused|reset)|unexpected EOF",
                       re.I)


# --- checks

def count(result, what, found=""):
    line = f"{result:<7} {what}" + (f": {found}" if found else "")
    with lock, open(os.environ["CHECKS"], "a", encoding="utf-8") as file:
        print(line, flush=True)
        file.write(line.replace("\n", " ") + "\n")


def check(holds, what, found=""):
    """Counts a claim; `found` says what came instead."""
    count("ok" if holds else "FAILED", what, "" if holds else str(found)[:600])


def attempt(what, scenario):
    """Runs checks; what they wait for in vain, or what is refused meanwhile, is a failed check."""
    try:
        scenario()
    except (TimeoutError, RuntimeError) as error:
        count("FAILED", what, str(error))
    except Exception:  # pylint: disable=broad-except # the next scenario may still say something
        count("FAILED", what, traceback.format_exc())


def wait(what, condition, seconds=240):
    """Repeats a condition until it gives something, and returns that."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.5)
    return found


# --- objects

def request(method, path, body=None, kind="application/json"):
    """An answer of the API server; None if there is no such object. Every thread keeps a connection."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
    for attempts_left in range(4, -1, -1):
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPSConnection("127.0.0.1", 6443, context=TLS, timeout=120)
        try:
            local.connection.request(method, f"/{path}", None if body is None else json.dumps(body), headers)
            answer = local.connection.getresponse()
            text = answer.read().decode()
            if answer.status < 429 or not TIMED_OUT.search(text):
                break
        except (ConnectionError, http.client.HTTPException):  # closed while it was idle
            del local.connection
            if not attempts_left:
                raise
    if answer.status == 409 and method == "POST":  # an earlier attempt went through
        return request("GET", f"{path}/{body['metadata']['name']}")
    if answer.status >= 400 and answer.status != 404:
        raise RuntimeError(f"{method} {path}: {text[:400]}")
    return None if answer.status == 404 else json.loads(text)


def path_of(kind, name=""):
    return f"{GROUPS[kind]}/{'' if kind in UNNAMESPACED else f'namespaces/{NAMESPACE}/'}{kind}{'/' if name else ''}{name}"


def get(kind, name):
    return request("GET", path_of(kind, name))


def find(kind, selector=""):
    return request("GET", f"{path_of(kind)}?labelSelector={selector}")["items"]


def patch(kind, name, body, part=""):
    return request("PATCH", path_of(kind, name) + part, body, "application/merge-patch+json")


def delete(kind, name):
    return request("DELETE", path_of(kind, name))


def add_namespace(name, **labels):
    request("POST", "api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})


def kubectl(*arguments, stdin=None, check_result=True):
    """A request that takes too long on a machine with much other work is repeated: whatever is asked for here can be asked for twice."""
    for _ in range(5):
        result = subprocess.run(["kubectl", *arguments], capture_output=True, text=True, input=stdin, check=False)
        if result.returncode == 0 or not TIMED_OUT.search(result.stderr):
            break
        time.sleep(2)
    if check_result and result.returncode != 0:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()[:600]}")
    return result


def apply(text):
    kubectl("apply", "--server-side", "-f", "-", stdin=text)


def remove(text):
    kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=text)


def conditions(thing):
    return {each["type"]: each for each in (thing or {}).get("status", {}).get("conditions") or []}


def is_true(thing, kind):
    return conditions(thing).get(kind, {}).get("status") == "True"


# --- the program

def tessera(*arguments):
    return subprocess.run([os.environ["TESSERA"], *arguments], capture_output=True, text=True, check=False)


def deploy(*arguments):
    """Returns what `tessera deploy` writes."""
    result = tessera("deploy", *arguments)
    if result.returncode != 0:
        raise RuntimeError(f"tessera deploy {' '.join(arguments)}: exit code {result.returncode}: {result.stderr}")
    return result.stdout


def check_status(path, code, *texts):
    """What `tessera status` says of a job. It may take a moment to see what the API server has, and one that is busy may not answer."""
    end = time.monotonic() + 240
    while (answer := tessera("status", path)).returncode != code or not all(text in answer.stdout for text in texts):
        if time.monotonic() > end:
            break
        time.sleep(0.5)
    found = answer.stdout + answer.stderr
    name = os.path.basename(path).removesuffix(".yaml")
    check(answer.returncode == code and all(text in found for text in texts), f"status of {name}: {code}{', '.join(('',) + texts)}",
          f"{answer.returncode}: {found}")


def remediate(evict_after=0, per_day=3):
    """A round of deploy/health/remediate.sh with the rights of its own account; returns what it says."""
    token = kubectl("create", "token", "tessera-node-remediation", "-n", "tessera-system").stdout.strip()
    account = f"{STATE}/remediation.kubeconfig"
    with open(os.environ["KUBECONFIG"], encoding="utf-8") as admin, open(account, "w", encoding="utf-8") as file:
        file.write(re.sub(r"token: \w+", f"token: {token}", admin.read()))
    settings = {"MAX_PER_DAY": str(per_day), "MAX_SICK_PERCENT": "50", "MIN_SICK_S": "0", "MIN_AGE_S": "0",
                "EVICT_AFTER_S": str(evict_after), "KUBECONFIG": account}
    answer = subprocess.run(["sh", f"{ROOT}/deploy/health/remediate.sh"], capture_output=True, text=True, check=False,
                            env={**os.environ, **settings})
    return answer.stdout if answer.returncode == 0 else "failed: " + answer.stdout + answer.stderr


# --- jobs and their pods

def index_of(pod):
    return int(pod["metadata"]["annotations"].get("batch.kubernetes.io/job-completion-index", "-1"))


def pods_of(job, running=None):
    """The pods of a job that are not being deleted, by index; with `running` only if all of that number run."""
    pods = [each for each in find("pods", f"app.kubernetes.io/instance={job}") if "deletionTimestamp" not in each["metadata"]]
    if running is not None:
        pods = [each for each in pods if each["status"].get("phase") == "Running"]
        if len(pods) != running:
            return []
    return sorted(pods, key=index_of)


def uids(things):
    return {each["metadata"]["uid"] for each in things}


def workloads_of(job):
    return [each for each in find("workloads") if any(owner["name"] == job for owner in each["metadata"].get("ownerReferences", []))]


# --- nodes that only pretend

def add_node(name, instance, cpus, memory, capacity="on-demand", kind="cpu-amx", taint="intel.com/amx", zone="us-east-1a", kwok="fake",
             owners=(), devices=()):
    """A node as the project's NodePool makes it; `cpus` and `memory` are what it has for pods."""
    resources = {"cpu": str(cpus), "memory": memory, "pods": "110", "ephemeral-storage": "80Gi", **{each: "1" for each in devices}}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "nodeType": kind,
              "node.kubernetes.io/instance-type": instance, "topology.kubernetes.io/zone": zone,
              "karpenter.sh/capacity-type": capacity, "karpenter.sh/nodepool": kind}
    request("POST", "api/v1/nodes", {
        "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": kwok}, "ownerReferences": list(owners)},
        "spec": {"taints": [{"key": taint, "value": "true", "effect": "NoSchedule"}]},
        "status": {"allocatable": resources, "capacity": resources}})


def end_pod(pod, code, container="node"):
    """A container of a pod on such a node ends with this exit code, and with it the pod."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ended = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": now, "finishedAt": now}}
    status = {"phase": "Failed" if code else "Succeeded"}
    for key, part in (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")):
        containers = pod["spec"].get(part, [])
        if any(each["name"] == container for each in containers):
            status[key] = [{"name": each["name"], "image": each["image"], "imageID": "", "ready": False, "restartCount": 0, "state": ended}
                           for each in containers]
    patch("pods", pod["metadata"]["name"], {"status": status}, "/status")
