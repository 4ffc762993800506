"""Plays the Job and the JobSet controller: which pods there are, and what happens after one has failed.

The rules are those of Kubernetes 1.34 (pkg/controller/job: a FailJob rule comes before the backoff limit; messages as
there, because JobSet matches them) and of JobSet 0.10 (pkg/controllers/failure_policy.go). What differs: a Job's failed
pod is replaced at once instead of after 10, 20, 40 s.
"""
import dataclasses
import re
import time

from kubelet import Pod
from manifests import ManifestError


@dataclasses.dataclass
class JobFailure:
    reason: str
    message: str


def matching_rule(policy, exit_code, container, conditions):
    """Index and action of the first rule of a podFailurePolicy that fits a failed pod, or None."""
    for index, rule in enumerate(policy):
        if "onExitCodes" in rule:
            wanted = rule["onExitCodes"]
            if wanted.get("containerName", container) != container or exit_code == 0:
                continue
            if (exit_code in wanted["values"]) == (wanted["operator"] == "In"):
                return index, rule["action"]
        else:
            for each in rule["onPodConditions"]:
                if conditions.get(each["type"]) == each.get("status", "True"):
                    return index, rule["action"]
    return None


def jobset_action(rules, failure, job_name):
    """The action of a JobSet's failure policy for a failed Job: the first rule that fits, or RestartJobSet."""
    for rule in rules:
        if rule.get("targetReplicatedJobs") and job_name not in rule["targetReplicatedJobs"]:
            continue
        reasons = rule.get("onJobFailureReasons")
        if reasons and failure.reason not in reasons:
            continue
        patterns = rule.get("onJobFailureMessagePatterns")
        if patterns and not any(re.search(pattern, failure.message) for pattern in patterns):
            continue
        return rule["action"]
    return "RestartJobSet"


class JobController:
    """One run of an Indexed Job: pods by index, replaced one by one until the backoff limit."""

    def __init__(self, machine, job, attempt):
        self.machine, self.job, self.attempt = machine, job, attempt
        self.num_failures = 0
        self.pods, self.history = {}, []
        # The last first: the others' names appear late, as in a cluster's DNS.
        for index in reversed(range(job.num_pods)):
            self.create(index)

    def create(self, index):
        job = self.job
        labels = {"batch.kubernetes.io/job-name": job.name, "batch.kubernetes.io/job-completion-index": str(index)}
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        if job.jobset:
            for where in (labels, annotations):
                where["jobset.sigs.k8s.io/jobset-name"] = job.jobset["name"]
                where["jobset.sigs.k8s.io/replicatedjob-name"] = job.jobset["replicatedjob"]
                where["jobset.sigs.k8s.io/restart-attempt"] = str(self.attempt)
        self.pods[index] = Pod(self.machine, job, index, labels, annotations)
        self.history.append(self.pods[index])
        self.pods[index].start()

    def sync(self):
        """Returns None while the Job runs, "" when it is complete, or its JobFailure."""
        failed = [pod for pod in self.pods.values() if pod.phase() == "Failed"]
        for pod in failed:
            conditions = {"DisruptionTarget": "True"} if pod.disrupted else {}
            rule = matching_rule(self.job.policy, pod.exit_code, pod.failed_container, conditions)
            where = f"pod {self.job.namespace}/{pod.name}"
            if rule is None or rule[1] == "Count":
                continue
            index, action = rule
            if action == "FailJob":
                what = (f"Container {pod.failed_container} for {where} failed with exit code {pod.exit_code}"
                        if "onExitCodes" in self.job.policy[index] else
                        f"P{where[1:]} has condition DisruptionTarget")
                return JobFailure("PodFailurePolicy", f"{what} matching {action} rule at index {index}")
            if action != "Ignore":
                raise ManifestError(f"Job {self.job.name}: the action {action} cannot be rehearsed")
        for pod in failed:
            conditions = {"DisruptionTarget": "True"} if pod.disrupted else {}
            rule = matching_rule(self.job.policy, pod.exit_code, pod.failed_container, conditions)
            if rule is None or rule[1] == "Count":
                self.num_failures += 1
            if self.num_failures > self.job.backoff_limit:
                return JobFailure("BackoffLimitExceeded", "Job has reached the specified backoff limit")
            pod.remove()
            self.create(pod.index)
        return "" if all(pod.phase() == "Succeeded" for pod in self.pods.values()) else None

    def delete(self):
        """Deletes all pods and waits until they are gone, as BlockingRecreate does."""
        for pod in self.pods.values():
            pod.delete()
        for pod in self.pods.values():
            while pod.phase() == "Running":
                time.sleep(0.02)
            pod.remove()


class JobSetController:
    """Runs a JobSet to its end. `events` are lines for people, `attempts` the runs of the Job."""

    def __init__(self, machine, jobset, on_sync=lambda run: None):
        self.machine, self.jobset, self.on_sync = machine, jobset, on_sync
        self.restarts = 0
        self.counted_restarts = 0
        self.attempts = []
        self.events = []

    def run(self, limit_s=300):
        """Returns the failure that ended the job, or None when it is complete."""
        deadline = time.monotonic() + limit_s
        while True:
            run = JobController(self.machine, self.jobset.job, self.restarts)
            self.attempts.append(run)
            try:
                while (result := run.sync()) is None:
                    self.on_sync(run)
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"the job has not ended after {limit_s} s")
                    time.sleep(0.02)
            finally:
                run.delete()
            if result == "":
                self.events.append(f"attempt {self.restarts}: complete")
                return None
            action = "FailJobSet" if self.jobset.job.jobset is None else jobset_action(
                self.jobset.rules, result, self.jobset.job.jobset["replicatedjob"])
            self.events.append(f"attempt {self.restarts}: {result.reason}: {result.message} -> {action}")
            if action == "FailJobSet":
                return result
            if action == "RestartJobSet":
                if self.counted_restarts >= self.jobset.max_restarts:
                    return result
                self.counted_restarts += 1
            elif action != "RestartJobSetAndIgnoreMaxRestarts":
                raise ManifestError(f"unknown action {action}")
            self.restarts += 1
