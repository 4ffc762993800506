#!/usr/bin/python3
"""Tests of what the rehearsal says that the controllers do; needs no containers. Exit code 77 = skipped."""
import sys
import unittest

try:
    import yaml  # noqa: F401
except ImportError:
    print("skipped: python3-yaml is not installed (scripts/install_packages.sh test)")
    sys.exit(77)

from controllers import JobFailure, jobset_action, matching_rule
from kubelet import expand_variables, quantity
from manifests import ManifestError, expand, merge
from name_server import answer

POLICY = [
    {"action": "FailJob", "onExitCodes": {"containerName": "node", "operator": "In", "values": [64, 78]}},
    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [1, 137]}},
]


class PodFailurePolicy(unittest.TestCase):
    def test_first_matching_rule_decides(self):
        self.assertEqual(matching_rule(POLICY, 78, "node", {"DisruptionTarget": "True"}), (0, "FailJob"))
        self.assertEqual(matching_rule(POLICY, 143, "node", {"DisruptionTarget": "True"}), (1, "FailJob"))
        self.assertEqual(matching_rule(POLICY, 75, "node", {}), (2, "Ignore"))
        self.assertIsNone(matching_rule(POLICY, 137, "node", {}))

    def test_rule_of_another_container_does_not_match(self):
        self.assertEqual(matching_rule(POLICY, 78, "node-check", {}), (2, "Ignore"))


class JobSetFailurePolicy(unittest.TestCase):
    rules = [
        {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"],
         "onJobFailureMessagePatterns": ["at index 0$"]},
        {"action": "RestartJobSetAndIgnoreMaxRestarts", "targetReplicatedJobs": ["node"],
         "onJobFailureMessagePatterns": ["at index 1$"]},
    ]

    def test_reason_message_and_target_must_match(self):
        first = "Container node for pod a/b failed with exit code 78 matching FailJob rule at index 0"
        self.assertEqual(jobset_action(self.rules, JobFailure("PodFailurePolicy", first), "node"), "FailJobSet")
        self.assertEqual(jobset_action(self.rules, JobFailure("DeadlineExceeded", first), "node"), "RestartJobSet")
        second = JobFailure("PodFailurePolicy", "Pod a/b has condition DisruptionTarget matching FailJob rule at index 1")
        self.assertEqual(jobset_action(self.rules, second, "node"), "RestartJobSetAndIgnoreMaxRestarts")
        self.assertEqual(jobset_action(self.rules, second, "launcher"), "RestartJobSet")
        # "$" keeps rule 1 from matching rule 11.
        second.message = second.message.replace("index 1", "index 11")
        self.assertEqual(jobset_action(self.rules, second, "node"), "RestartJobSet")


class Manifests(unittest.TestCase):
    def test_lists_merge_by_name_and_tolerations_append(self):
        base = {"containers": [{"name": "node", "image": "a", "env": [{"name": "A", "value": "1"}]}], "tolerations": [1]}
        patch = {"containers": [{"name": "node", "env": [{"name": "B", "value": "2"}]}], "tolerations": [2]}
        self.assertEqual(merge(base, patch), {
            "containers": [{"name": "node", "image": "a",
                            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}], "tolerations": [1, 2]})

    def job(self, **pod):
        template = {"metadata": {"labels": {"app": "x"}}, "spec": {"restartPolicy": "Never", "subdomain": "job", **pod}}
        return {"kind": "Job", "metadata": {"name": "job"},
                "spec": {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template}}

    def test_job_without_names_is_refused(self):
        service = {"kind": "Service", "metadata": {"name": "job"},
                   "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "x"}}}
        self.assertEqual(expand([service, self.job()]).job.num_pods, 2)
        with self.assertRaisesRegex(ManifestError, "no headless Service is called other"):
            expand([service, self.job(subdomain="other")])
        service["spec"]["selector"] = {"app": "y"}
        with self.assertRaisesRegex(ManifestError, "selector does not match"):
            expand([service, self.job()])

    def test_trainjob_without_what_the_trainer_needs_is_refused(self):
        replicated = {"name": "node", "template": {"metadata": {}, "spec": {}}}
        runtime = {"kind": "ClusterTrainingRuntime", "metadata": {"name": "r"},
                   "spec": {"mlPolicy": {}, "template": {"spec": {"replicatedJobs": [replicated]}}}}
        job = {"kind": "TrainJob", "metadata": {"name": "j"}, "spec": {"runtimeRef": {"name": "r"}}}
        with self.assertRaisesRegex(ManifestError, "no manifest of its runtime"):
            expand([job])
        with self.assertRaisesRegex(ManifestError, "no ancestor label"):
            expand([runtime, job])
        replicated["template"]["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
        replicated["template"]["spec"] = {"template": {"spec": {"containers": [{"name": "node"}]}}}
        with self.assertRaisesRegex(ManifestError, "without a block `trainer`"):
            expand([runtime, job])

    def test_unknown_field_is_refused(self):
        job = self.job()
        job["spec"]["backofLimit"] = 0
        service = {"kind": "Service", "metadata": {"name": "job"},
                   "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {}}}
        with self.assertRaisesRegex(ManifestError, "backofLimit"):
            expand([service, job])


class Pods(unittest.TestCase):
    def test_quantities_and_variables(self):
        self.assertEqual([quantity(q) for q in ("480Gi", "1500m", 62, "2G")], [480 * 2**30, 1.5, 62, 2e9])
        self.assertEqual(expand_variables("$(A)/$(B) $$(A) $A", {"A": "1"}), "1/$(B) $(A) $A")

    def test_name_server_answers(self):
        query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03Toy\x02ns\x00\x00\x01\x00\x01"
        known = answer(query, {"toy.ns": "10.0.0.7"})
        self.assertEqual((known[:2], known[3] & 15, known[7], known[-4:]), (b"\x12\x34", 0, 1, b"\x0a\x00\x00\x07"))
        unknown = answer(query, {})
        self.assertEqual((unknown[3] & 15, unknown[7]), (3, 0))
        ipv6 = answer(query[:-3] + b"\x1c\x00\x01", {"toy.ns": "10.0.0.7"})
        self.assertEqual((ipv6[3] & 15, ipv6[7]), (0, 0))


if __name__ == "__main__":
    unittest.main()
