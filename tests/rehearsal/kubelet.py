"""Runs a pod of a manifest as a podman container: its environment, host name, volumes, user, rights, limits and grace period.

What is scaled: the limits on memory and processors are at most those of Machine (the manifests ask for whole nodes), and
the disk behind a claim is a folder. What is left out: NOT_PLAYED.
"""
import base64
import contextlib
import ipaddress
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time

from manifests import Fields, ManifestError, of_kind
from name_server import NameServer

# Placement (here every pod has a node), probes (nothing restarts a container for them with restartPolicy Never but a
# liveness probe, and a rehearsal is shorter than those wait), and what concerns the API server only.
POD_NOT_PLAYED = {"restartPolicy", "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints",
                  "priorityClassName", "schedulerName", "automountServiceAccountToken", "serviceAccountName",
                  "enableServiceLinks", "imagePullSecrets", "subdomain", "setHostnameAsFQDN"}
CONTAINER_NOT_PLAYED = {"image", "imagePullPolicy", "ports", "livenessProbe", "readinessProbe", "startupProbe"}
SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "": 1,
            "m": 1e-3}


def quantity(text):
    """Kubernetes' quantities: "64Gi", "1500m", 94."""
    number, suffix = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", str(text)).groups()
    return float(number) * SUFFIXES[suffix]


def expand_variables(text, variables):
    """$(NAME) as Kubernetes expands it in commands and values: unknown names stay, $$ is $."""
    return re.sub(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))",
                  lambda m: "$" if m[1] == "$" else variables.get(m[2], m[0]), text)


class Machine:
    """The rehearsal's stand-in for a cluster. `claims`: persistent volume claims and their folders."""

    def __init__(self, folder, image, documents, claims, memory_bytes=300 * 2**20, cpus=1.0):
        self.folder, self.image, self.documents, self.claims = folder, image, documents, claims
        self.memory_bytes, self.cpus = memory_bytes, cpus
        self.prefix = "rehearsal-" + secrets.token_hex(4)
        self.containers = []
        podman("network", "create", "--disable-dns", self.prefix)
        network = json.loads(podman("network", "inspect", self.prefix))[0]
        # A bridge has the lowest address of its ports. The port that stays keeps it from changing when a pod goes, which
        # would cut the others off from the name server for half a minute.
        self.bridge, self.port = network["network_interface"], f"reh{self.prefix[-8:]}"
        ip("link", "add", self.bridge, "type", "bridge")
        ip("link", "add", self.port, "address", "02:00:00:00:00:01", "master", self.bridge, "type", "veth")
        subnet = network["subnets"][0]
        self.gateway = subnet["gateway"]
        ip("address", "add", f"{self.gateway}/{subnet['subnet'].split('/')[1]}", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        self.addresses = iter(list(ipaddress.ip_network(subnet["subnet"]).hosts())[9:])  # below are podman's own
        self.names = NameServer(self.gateway)

    def close(self):
        self.names.close()
        if self.containers:
            podman("rm", "--force", "--time", "0", "--ignore", *self.containers)
        podman("network", "rm", "--force", self.prefix)
        ip("link", "delete", self.port)
        if os.path.exists(f"/sys/class/net/{self.bridge}"):
            ip("link", "delete", self.bridge)

    def object(self, kind, name, namespace, optional):
        for document in of_kind(self.documents, kind):
            metadata = document["metadata"]
            if metadata["name"] == name and metadata.get("namespace", "default") == namespace:
                return document
        if optional:
            return None
        raise ManifestError(f"no manifest of {kind} {namespace}/{name}, which is not optional")

    def contents(self, kind, name, namespace, optional=False):
        """The contents of a Secret or ConfigMap, as bytes by key."""
        document = self.object(kind, name, namespace, optional)
        if document is None:
            return {}
        plain = document.get("stringData" if kind == "Secret" else "data", {})
        result = {key: value.encode() for key, value in plain.items()}
        for key, value in document.get("data" if kind == "Secret" else "binaryData", {}).items():
            result[key] = base64.b64decode(value)
        return result


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def podman(*arguments):
    return run("podman", "--runtime", "runc", *arguments)


def ip(*arguments):
    run("ip", *arguments)


class Pod:
    def __init__(self, machine, job, index, labels, annotations):
        self.machine, self.job, self.index = machine, job, index
        self.host_name = f"{job.name}-{index}"
        # The controllers' pods have a random suffix; what peers use is the host name.
        self.name = f"{self.host_name}-{secrets.token_hex(3)[:5]}"
        self.address = str(next(machine.addresses))
        self.domain = f"{job.namespace}.svc.cluster.local"
        template = job.template
        self.labels = {**template.get("metadata", {}).get("labels", {}), **labels}
        self.annotations = {**template.get("metadata", {}).get("annotations", {}), **annotations}
        self.folder = os.path.join(machine.folder, "pods", self.name)
        os.makedirs(os.path.join(self.folder, "volumes"))
        self.log = os.path.join(self.folder, "log")
        self.disrupted = False  # the pod's condition DisruptionTarget
        self.stopping = None
        fields = Fields(f"pod of {job.name}", template["spec"])
        self.grace_s = fields.take("terminationGracePeriodSeconds", 30)
        self.security = Fields(f"pod of {job.name}: securityContext", fields.take("securityContext"))
        self.user = self.security.take("runAsUser", 0)
        self.group = self.security.take("runAsGroup", self.user)
        self.fs_group = self.security.take("fsGroup")
        non_root = self.security.take("runAsNonRoot", False)
        if non_root and self.user == 0:
            raise ManifestError(f"pod of {job.name}: runAsNonRoot, but no runAsUser")
        if self.security.take("seccompProfile", {"type": "RuntimeDefault"})["type"] != "RuntimeDefault":
            raise ManifestError(f"pod of {job.name}: only the seccomp profile RuntimeDefault can be rehearsed")
        self.security.done({"fsGroupChangePolicy"})
        self.init_containers = fields.take("initContainers", [])
        containers = fields.need("containers")
        if len(containers) != 1:
            raise ManifestError(f"pod of {job.name}: only one container can be rehearsed")
        self.container = containers[0]
        self.volumes = {volume["name"]: self.volume_folder(volume) for volume in fields.take("volumes", [])}
        fields.done(POD_NOT_PLAYED)
        self.process = self.pid = None  # of podman, and of the container
        self.failed_container = None
        self.exit_code = None
        self.created, self.finished = time.time(), None

    def volume_folder(self, volume):
        """The folder of a volume; kubelet makes emptyDir and secrets accessible to fsGroup."""
        fields = Fields(f"volume {volume['name']}", volume)
        fields.take("name")
        folder = os.path.join(self.folder, "volumes", volume["name"])
        kind = next(iter(fields.left), None)
        source = fields.take(kind)
        fields.done()
        if kind == "persistentVolumeClaim":
            if source["claimName"] not in self.machine.claims:
                raise ManifestError(f"volume {volume['name']}: no folder is given for the claim {source['claimName']}")
            folder = self.machine.claims[source["claimName"]]
        elif kind == "emptyDir":
            os.makedirs(folder)
            os.chmod(folder, 0o2777)
        elif kind in ("secret", "configMap"):
            self.write_files(folder, kind, source)
        else:
            raise ManifestError(f"volume {volume['name']}: {kind} cannot be rehearsed")
        if self.fs_group is not None and kind != "configMap":
            os.chown(folder, -1, self.fs_group)
            os.chmod(folder, os.stat(folder).st_mode | 0o2070)
        return folder

    def write_files(self, folder, kind, source):
        contents = self.machine.contents("Secret" if kind == "secret" else "ConfigMap",
                                         source.get("secretName", source.get("name")), self.job.namespace,
                                         source.get("optional", False))
        keys = source.get("items", [{"key": key, "path": key} for key in contents])
        os.makedirs(folder)
        for item in keys:
            if item["key"] not in contents:
                raise ManifestError(f"{kind} {source}: no key {item['key']}")
            path = os.path.join(folder, item["path"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(contents[item["key"]])
            mode = item.get("mode", source.get("defaultMode", 0o644))
            if self.fs_group is not None:
                os.chown(path, -1, self.fs_group)
                mode |= 0o040
            os.chmod(path, mode)

    def field(self, path, where):
        match = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
        if match:
            return getattr(self, match[1]).get(match[2], "")
        known = {"metadata.name": self.name, "metadata.namespace": self.job.namespace,
                 "spec.nodeName": f"node-{self.index}", "status.podIP": self.address}
        if path not in known:
            raise ManifestError(f"{where}: the field {path} cannot be rehearsed")
        return known[path]

    def environment(self, container, limits):
        variables = {}
        for each in container.get("env", []):
            where = f"variable {each['name']}"
            if "valueFrom" not in each:
                variables[each["name"]] = expand_variables(each.get("value", ""), variables)
                continue
            (kind, source), = each["valueFrom"].items()
            if kind == "fieldRef":
                variables[each["name"]] = self.field(source["fieldPath"], where)
            elif kind in ("secretKeyRef", "configMapKeyRef"):
                contents = self.machine.contents("Secret" if kind == "secretKeyRef" else "ConfigMap", source["name"],
                                                 self.job.namespace, source.get("optional", False))
                if source["key"] in contents:
                    variables[each["name"]] = contents[source["key"]].decode()
                elif not source.get("optional", False):
                    raise ManifestError(f"{where}: no key {source['key']}")
            elif kind == "resourceFieldRef" and source["resource"] in ("limits.cpu", "limits.memory"):
                value = limits[source["resource"].split(".")[1]] / quantity(source.get("divisor", 1))
                variables[each["name"]] = str(int(-(-value // 1)))
            else:
                raise ManifestError(f"{where}: {kind} {source} cannot be rehearsed")
        # The Job controller sets it in every container of an Indexed Job.
        variables.setdefault("JOB_COMPLETION_INDEX", str(self.index))
        return variables

    def arguments(self, container, name):
        """The arguments of `podman run` for one of the pod's containers."""
        fields = Fields(f"container {container['name']}", container)
        fields.take("name")
        limits = self.limits(fields.take("resources", {}))
        variables = self.environment(container, limits)
        fields.take("env")
        message = self.message_file(container)
        with open(message, "wb"):
            os.chmod(message, 0o666)
        fields.take("terminationMessagePolicy")  # termination_message
        result = ["run", "--name", name, "--hostname", self.host_name, "--network", self.machine.prefix,
                  "--ip", self.address, "--dns", self.machine.gateway, "--dns-option", "ndots:5",
                  "--dns-option", "timeout:1", "--dns-search", self.domain, "--no-hosts",
                  "--http-proxy=false", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
                  "--memory", str(int(limits["memory"])), "--memory-swap", str(int(limits["memory"])),
                  "--cpus", str(limits["cpu"]),
                  "--volume", f"{message}:{fields.take('terminationMessagePath', '/dev/termination-log')}"]
        result += self.rights(Fields(f"container {container['name']}: securityContext", fields.take("securityContext")))
        for mount in fields.take("volumeMounts", []):
            mount = Fields(f"mount {mount['mountPath']}", mount)
            name, path = mount.need("name"), mount.need("mountPath")
            if name not in self.volumes:
                raise ManifestError(f"mount {path}: there is no volume {name}")
            source = os.path.join(self.volumes[name], mount.take("subPath", ""))
            result += ["--volume", f"{source}:{path}" + (":ro" if mount.take("readOnly", False) else "")]
            mount.done()
        for key, value in variables.items():
            result += ["--env", f"{key}={value}"]
        if (folder := fields.take("workingDir")) is not None:
            result += ["--workdir", folder]
        command, args = (list(map(lambda text: expand_variables(str(text), variables), fields.take(what, [])))
                         for what in ("command", "args"))
        fields.done(CONTAINER_NOT_PLAYED)
        if command:
            result += ["--entrypoint", command[0]]
        return [*result, self.machine.image, *command[1:], *args]

    def limits(self, resources):
        limits = resources.get("limits", {})
        return {"memory": min(quantity(limits.get("memory", "1Ti")), self.machine.memory_bytes),
                "cpu": min(quantity(limits.get("cpu", 1000)), self.machine.cpus)}

    def rights(self, security):
        user, group = security.take("runAsUser", self.user), security.take("runAsGroup", self.group)
        result = ["--user", f"{user}:{group}"]
        if self.fs_group is not None:
            result += ["--group-add", str(self.fs_group)]
        if security.take("readOnlyRootFilesystem", False):
            result += ["--read-only", "--read-only-tmpfs=false"]
        if not security.take("allowPrivilegeEscalation", True):
            result += ["--security-opt", "no-new-privileges"]
        capabilities = security.take("capabilities", {})
        for change in ("drop", "add"):
            for name in capabilities.get(change, []):
                result += [f"--cap-{change}", name.lower()]
        security.done({"runAsNonRoot", "seccompProfile"})
        return result

    def start(self):
        for container in self.init_containers:
            name = f"{self.machine.prefix}-{self.name}-{container['name']}"
            self.machine.containers.append(name)
            with open(self.log, "ab") as log:
                code = subprocess.run(["podman", "--runtime", "runc", *self.arguments(container, name)], check=False,
                                      stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode
            if code != 0:
                self.failed_container, self.exit_code, self.finished = container["name"], code, time.time()
                return
        name = f"{self.machine.prefix}-{self.name}"
        self.machine.containers.append(name)
        self.machine.names.publish(f"{self.host_name}.{self.job.subdomain}.{self.domain}", self.address)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(["podman", "--runtime", "runc", *self.arguments(self.container, name)],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def phase(self):
        if self.exit_code is None:
            self.exit_code = self.process.poll()
            if self.exit_code is not None:
                self.finished = time.time()
                self.machine.names.withdraw(f"{self.host_name}.{self.job.subdomain}.{self.domain}", self.address)
            if self.exit_code not in (None, 0):
                self.failed_container = self.container["name"]
        if self.exit_code is None:
            return "Running"
        return "Succeeded" if self.exit_code == 0 else "Failed"

    def wait_until_started(self):
        """Waits for the pid, as signals need a process. Later ones then need no podman, which takes a second on a busy
        machine."""
        while self.pid is None and self.process is not None and self.process.poll() is None:
            state = subprocess.run(["podman", "container", "inspect", "--format", "{{.State.Status}} {{.State.Pid}}",
                                    f"{self.machine.prefix}-{self.name}"], capture_output=True, text=True, check=False)
            status, _, pid = state.stdout.strip().partition(" ")
            if status == "running":
                self.pid = int(pid)
            else:
                time.sleep(0.05)

    def signal(self, number):
        """To the first process of the container."""
        self.wait_until_started()
        with contextlib.suppress(ProcessLookupError):
            if self.pid is not None and self.phase() == "Running":
                os.kill(self.pid, number)

    def kill(self):
        """Like the kernel's out-of-memory killer, or a node that vanishes."""
        self.signal(signal.SIGKILL)

    def delete(self):
        """SIGTERM, and SIGKILL after the grace period; returns at once."""
        if self.stopping is None and self.phase() == "Running":
            self.signal(signal.SIGTERM)
            self.stopping = threading.Timer(self.grace_s, self.kill)
            self.stopping.start()

    def drain(self):
        """Evicts the pod: sets the condition first, then deletes it."""
        self.disrupted = True
        self.delete()

    def text(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def message_file(self, container):
        return os.path.join(self.folder, f"termination-log-{container['name']}")

    def termination_message(self, container):
        """Kubelet's message of a container that has ended: the file, at most 4096 bytes, or the end of the log."""
        with open(self.message_file(container), "rb") as file:
            message = file.read(4096)
        if not message and self.exit_code != 0 and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = b"".join(self.text().encode()[-2048:].splitlines(True)[-80:])
        return message.decode(errors="replace")

    def api_object(self):
        """The pod as the API server shows it."""
        def timestamp(seconds):
            return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))

        status = {"phase": self.phase()}
        if self.disrupted:
            status["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
        ended = self.failed_container or self.container["name"]
        for kind, containers in (("initContainerStatuses", self.init_containers), ("containerStatuses", [self.container])):
            status[kind] = [{"name": each["name"], "state": {"terminated": {
                "exitCode": self.exit_code, "reason": "Error" if self.exit_code else "Completed",
                "message": self.termination_message(each), "finishedAt": timestamp(self.finished)}}
                if self.finished and each["name"] == ended else {"waiting": {"reason": "PodInitializing"}}} for each in containers]
        return {"metadata": {"name": self.name, "namespace": self.job.namespace, "labels": self.labels,
                             "annotations": self.annotations, "creationTimestamp": timestamp(self.created)},
                "spec": {"containers": [{"name": self.container["name"]}]}, "status": status}

    def remove(self):
        if self.process is not None:
            self.process.wait()
        if self.stopping is not None:
            self.stopping.cancel()
        shutil.rmtree(os.path.join(self.folder, "volumes"))
