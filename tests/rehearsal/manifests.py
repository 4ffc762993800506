"""Reads the manifests of a job and expands them as the controllers do: TrainJob + ClusterTrainingRuntime -> JobSet -> Job.

A field that this rehearsal does not know is an error: what it plays should not differ from the manifest in silence. The
lists NOT_PLAYED say what it knows and leaves out.
"""
import copy

import yaml


class ManifestError(Exception):
    """The manifest is wrong, or has something that cannot be rehearsed."""


# Placement and admission: here every pod has a place.
JOB_NOT_PLAYED = {"completionMode", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "suspend", "podReplacementPolicy"}
JOBSET_NOT_PLAYED = {"suspend", "ttlSecondsAfterFinished", "startupPolicy", "managedBy"}
TRAINJOB_NOT_PLAYED = {"suspend", "labels", "annotations", "managedBy", "activeDeadlineSeconds"}


class Fields:
    """The fields of a mapping, each taken once; `done` refuses what is left."""

    def __init__(self, where, mapping):
        self.where = where
        self.left = dict(mapping or {})

    def take(self, name, default=None):
        return self.left.pop(name, default)

    def need(self, name):
        if name not in self.left:
            raise ManifestError(f"{self.where}: {name} is missing")
        return self.left.pop(name)

    def done(self, not_played=()):
        unknown = set(self.left) - set(not_played)
        if unknown:
            raise ManifestError(f"{self.where}: not known to the rehearsal: {', '.join(sorted(unknown))}")


class Job:
    """An Indexed Job, alone or of a JobSet."""

    def __init__(self, name, namespace, subdomain, spec, jobset=None):
        self.name, self.namespace, self.subdomain, self.jobset = name, namespace, subdomain, jobset
        fields = Fields(f"Job {name}", spec)
        if fields.left.get("completionMode", "Indexed" if jobset else "NonIndexed") != "Indexed":
            raise ManifestError(f"Job {name}: completionMode is not Indexed")
        self.num_pods = fields.take("completions", 1)
        if fields.take("parallelism", 1) != self.num_pods:
            raise ManifestError(f"Job {name}: parallelism and completions differ")
        self.backoff_limit = fields.take("backoffLimit", 6)
        self.policy = (fields.take("podFailurePolicy") or {}).get("rules", [])
        self.template = fields.need("template")
        fields.done(JOB_NOT_PLAYED)
        restart_policy = self.template["spec"].get("restartPolicy")
        if restart_policy != "Never":
            raise ManifestError(f"Job {name}: restartPolicy {restart_policy}: only Never can be rehearsed, and "
                                "podFailurePolicy needs it")


class JobSet:
    """A JobSet with one replicated job of one replica, or a plain Job (no restarts of the whole)."""

    def __init__(self, job, failure_policy=None):
        self.job = job
        fields = Fields(f"failurePolicy of {job.name}", failure_policy)
        self.max_restarts = fields.take("maxRestarts", 0)
        self.rules = fields.take("rules", [])
        # Without a JobSet the Job controller replaces pods one by one.
        strategy = fields.take("restartStrategy", "Recreate")
        fields.done()
        if failure_policy and strategy != "BlockingRecreate":
            raise ManifestError(f"restartStrategy {strategy}: only BlockingRecreate can be rehearsed")


def read_documents(paths):
    documents = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            documents += [d for d in yaml.safe_load_all(file) if d]
    return documents


def of_kind(documents, kind):
    return [d for d in documents if d["kind"] == kind]


def merge(base, patch):
    """Kubernetes' strategic merge, as far as pod templates need it: lists of objects with a `name` (volumeMounts: with a
    `mountPath`) merge by it, tolerations are appended, other lists replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        result = dict(base)
        for key, value in patch.items():
            if key == "tolerations":
                result[key] = base.get(key, []) + value
            else:
                result[key] = merge(base[key], value) if key in base else copy.deepcopy(value)
        return result
    if isinstance(base, list) and isinstance(patch, list):
        for key in ("mountPath", "name"):
            if all(isinstance(each, dict) and key in each for each in base + patch):
                result = {each[key]: each for each in base}
                for each in patch:
                    result[each[key]] = merge(result[each[key]], each) if each[key] in result else each
                return list(result.values())
    return copy.deepcopy(patch)


def set_env(container, name, **value):
    container["env"] = [e for e in container.get("env", []) if e["name"] != name] + [{"name": name, **value}]


def pet_variables(container, trainjob, num_nodes, procs):
    """Kubeflow Trainer's torch plugin (pkg/runtime/framework/plugins/torch/torch.go)."""
    set_env(container, "PET_NNODES", value=str(num_nodes))
    set_env(container, "PET_NPROC_PER_NODE", value=str(procs))
    set_env(container, "PET_NODE_RANK", valueFrom={
        "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}})
    set_env(container, "PET_MASTER_ADDR", value=f"{trainjob}-node-0-0.{trainjob}")
    set_env(container, "PET_MASTER_PORT", value="29500")


def node_patches(spec):
    """The pod template patches of a TrainJob for the replicated job `node`: podTemplateOverrides until Trainer v2.1,
    runtimePatches from v2.2 on."""
    for override in spec.pop("podTemplateOverrides", []):
        if any(target["name"] == "node" for target in override["targetJobs"]):
            yield {key: value for key, value in override.items() if key != "targetJobs"}
    for patch in spec.pop("runtimePatches", []):
        template = patch.get("trainingRuntimeSpec", {}).get("template", {}).get("spec", {})
        for replicated in template.get("replicatedJobs", []):
            if replicated["name"] == "node":
                yield replicated["template"]["spec"]["template"]


def expand_trainjob(document, runtimes):
    """The JobSet document that the Trainer makes of a TrainJob."""
    metadata, spec = document["metadata"], copy.deepcopy(document["spec"])
    name = metadata["name"]
    reference = spec.pop("runtimeRef")
    runtime = next((r for r in runtimes if r["metadata"]["name"] == reference["name"]), None)
    if runtime is None:
        raise ManifestError(f"TrainJob {name}: no manifest of its runtime {reference['name']}")
    jobset = copy.deepcopy(runtime["spec"]["template"]["spec"])
    policy = runtime["spec"]["mlPolicy"]
    replicated = next((r for r in jobset["replicatedJobs"] if r["name"] == "node"), None)
    if replicated is None:
        raise ManifestError(f"runtime {reference['name']}: no replicatedJob is called node")
    labels = replicated["template"].get("metadata", {}).get("labels", {})
    if labels.get("trainer.kubeflow.org/trainjob-ancestor-step") != "trainer":
        raise ManifestError(f"runtime {reference['name']}: the replicatedJob has no ancestor label, so gets no PET_*")
    job = replicated["template"]["spec"]
    for patch in node_patches(spec):
        job["template"] = merge(job["template"], patch)
    container = next((c for c in job["template"]["spec"]["containers"] if c["name"] == "node"), None)
    if container is None:
        raise ManifestError(f"runtime {reference['name']}: no container is called node")
    if "trainer" not in spec:
        raise ManifestError(f"TrainJob {name}: without a block `trainer` the Trainer sets no PET_*")

    trainer = Fields(f"TrainJob {name}: trainer", spec.pop("trainer"))
    for field in ("image", "command", "args"):
        if (value := trainer.take(field)) is not None:
            container[field] = value
    container["env"] = merge(container.get("env", []), trainer.take("env", []))
    if (resources := trainer.take("resourcesPerNode")) is not None:
        container["resources"] = resources
    num_nodes = trainer.take("numNodes", policy.get("numNodes", 1))
    procs = trainer.take("numProcPerNode", policy["torch"].get("numProcPerNode", "auto"))
    trainer.done()
    Fields(f"TrainJob {name}", spec).done(TRAINJOB_NOT_PLAYED)
    pet_variables(container, name, num_nodes, procs)
    job["parallelism"] = job["completions"] = num_nodes
    return {"kind": "JobSet", "metadata": {"name": name, "namespace": metadata.get("namespace", "default")}, "spec": jobset}


def expand_jobset(document):
    name, namespace = document["metadata"]["name"], document["metadata"].get("namespace", "default")
    fields = Fields(f"JobSet {name}", document["spec"])
    network = Fields(f"JobSet {name}: network", fields.take("network", {}))
    if not network.take("enableDNSHostnames", True):
        raise ManifestError(f"JobSet {name}: without enableDNSHostnames the pods have no names")
    subdomain = network.take("subdomain", name)
    network.done({"publishNotReadyAddresses"})
    replicated = fields.need("replicatedJobs")
    if len(replicated) != 1 or replicated[0].get("replicas", 1) != 1:
        raise ManifestError(f"JobSet {name}: only one replicated job of one replica can be rehearsed")
    success = fields.take("successPolicy", {"operator": "All"})
    if success["operator"] != "All":
        raise ManifestError(f"JobSet {name}: successPolicy {success}")
    failure_policy = fields.take("failurePolicy")
    fields.done(JOBSET_NOT_PLAYED)
    spec = copy.deepcopy(replicated[0]["template"]["spec"])
    job = Job(f"{name}-{replicated[0]['name']}-0", namespace, subdomain, spec,
              jobset={"name": name, "replicatedjob": replicated[0]["name"]})
    return JobSet(job, failure_policy)


def expand_job(document, services):
    name, namespace = document["metadata"]["name"], document["metadata"].get("namespace", "default")
    subdomain = document["spec"]["template"]["spec"].get("subdomain")
    service = next((s for s in services if s["metadata"]["name"] == subdomain), None)
    if service is None or service["spec"].get("clusterIP") != "None":
        raise ManifestError(f"Job {name}: no headless Service is called {subdomain}, so the pods have no names")
    labels = document["spec"]["template"].get("metadata", {}).get("labels", {})
    labels = {**labels, "job-name": name, "batch.kubernetes.io/job-name": name}
    if not service["spec"]["selector"].items() <= labels.items():
        raise ManifestError(f"Service {subdomain}: its selector does not match the pods of Job {name}")
    if not service["spec"].get("publishNotReadyAddresses"):
        raise ManifestError(f"Service {subdomain}: without publishNotReadyAddresses names appear too late")
    return JobSet(Job(name, namespace, subdomain, document["spec"]))


def expand(documents):
    """The one job among the documents."""
    jobs = [d for d in documents if d["kind"] in ("TrainJob", "JobSet", "Job")]
    if len(jobs) != 1:
        raise ManifestError(f"expected one TrainJob, JobSet or Job, found {len(jobs)}")
    document = jobs[0]
    if document["kind"] == "TrainJob":
        runtimes = of_kind(documents, "ClusterTrainingRuntime") + of_kind(documents, "TrainingRuntime")
        document = expand_trainjob(document, runtimes)
    if document["kind"] == "JobSet":
        return expand_jobset(document)
    return expand_job(document, of_kind(documents, "Service"))
