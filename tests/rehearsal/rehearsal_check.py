#!/usr/bin/python3
"""rehearsal_check.py TESSERA: rehearses jobs as `tessera deploy kubernetes` writes them, undisturbed and disturbed.

Every job trains the same tiny model on two pods and has to end with the same weights, bit for bit. Exit code 77 = skipped.
"""
import filecmp
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from checked_imports import require

require()
from controllers import JobSetController
from kubelet import Machine, podman
from manifests import expand, read_documents
from rehearse import num_steps

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
NUM_STEPS, SAVE_STEPS = 600, 40
TRAIN = ["--dataset", "/data/text.txt", "--text_per_line", "--packing", "--per_device_train_batch_size", "1",
         "--learning_rate", "1e-3", "--max_steps", str(NUM_STEPS), "--logging_steps", "1000"]


class Rehearsal:
    """A job, the folder of its claim, and what happened. `change` edits the manifests; `on_sync` is called while pods
    run."""

    def __init__(self, setup, trainer, flags=(), claim=None, on_sync=lambda rehearsal, run: None, change=lambda documents: None):
        self.program, self.kind = setup.program, "Job" if trainer == "job" else "JobSet"
        self.folder = tempfile.mkdtemp(dir=setup.folder)
        self.claim = claim or shutil.copytree(setup.volume, os.path.join(self.folder, "claim"))
        what = [["kubernetes", "--model", "/data/model", "--model_config", f"{setup.volume}/config.json", "--instance",
                 "m7i.8xlarge", "--nodes", "2", "--name", "toy", *TRAIN, *flags]]
        if trainer.startswith("v"):
            what.append(["runtime"])
        paths = []
        for each in what:
            paths.append(os.path.join(self.folder, f"{each[0]}.yaml"))
            with open(paths[-1], "w", encoding="utf-8") as file:
                subprocess.run([setup.program, "deploy", *each, "--trainer", trainer], stdout=file, check=True)
        documents = read_documents(paths)
        change(documents)
        machine = Machine(self.folder, setup.image, documents, {"training-data": self.claim})
        try:
            self.controller = JobSetController(machine, expand(documents), lambda run: on_sync(self, run))
            self.failure = self.controller.run(120)
        except BaseException:
            for attempt in self.controller.attempts:
                for pod in attempt.history:
                    print(f"--- {pod.name}\n{pod.text()}")
            raise
        finally:
            machine.close()
        self.output = os.path.join(self.claim, "runs", "toy")
        # The first attempt's pods, in the order of their creation (node 1 before node 0), then the next one's.
        self.pods = [pod for attempt in self.controller.attempts for pod in attempt.history]

    def check(self, condition, claim):
        if not condition:
            logs = "".join(f"--- {pod.name}: exit code {pod.exit_code}\n{pod.text()}" for pod in self.pods)
            sys.exit(f"not so: {claim}\n{logs}\n" + "\n".join(self.controller.events))

    def check_actions(self, *expected):
        actions = [event.rsplit("-> ", 1)[-1] if "->" in event else "complete" for event in self.controller.events]
        self.check(actions == list(expected), f"the controllers decide {expected}")

    def check_model(self, reference):
        self.check(num_steps({"claim": self.claim}) == NUM_STEPS, f"metrics.jsonl has {NUM_STEPS} steps, each once")
        self.check(filecmp.cmp(f"{self.output}/model.safetensors", f"{reference.output}/model.safetensors", False),
                   "the weights are those of the undisturbed job")

    def check_status(self, pods, code, *texts, conditions=()):
        """`tessera status` of a job that has these pods ends with this code and says each of these texts."""
        answers = tempfile.mkdtemp(dir=self.folder)
        top = {"kind": self.kind, "metadata": {"name": "toy"}, "status": {"conditions": list(conditions)}}
        label = {"Job": "job", "JobSet": "jobset"}[self.kind]
        for name, content in (("jobs.batch" if label == "job" else "jobsets.jobset.x-k8s.io", top),
                              (f"pods-of-{label}", {"items": [pod.api_object() for pod in pods]})):
            with open(os.path.join(answers, f"{name}.json"), "w", encoding="utf-8") as file:
                json.dump(content, file)
        said = subprocess.run([self.program, "status", "toy"], capture_output=True, text=True, check=False, env={
            **os.environ, "KUBECTL": f"{ROOT}/tests/data/kubernetes/kubectl", "KUBECTL_ANSWERS": answers})
        self.check(said.returncode == code and all(text in said.stdout for text in texts),
                   f"tessera status: {code} and {texts}, but {said.returncode}: {said.stdout}{said.stderr}")


class Disturb:
    """Kills, drains or deletes a pod once the run has finished `step` steps; the next one once a pod has been replaced."""

    def __init__(self, *disturbances):
        self.left = list(disturbances)  # (what, index, step)
        self.num_pods = 0

    def __call__(self, rehearsal, run):
        num_pods = sum(len(attempt.history) for attempt in rehearsal.controller.attempts)
        if self.left and num_pods > self.num_pods:
            what, index, step = self.left[0]
            run.pods[index].wait_until_started()
            if num_steps({"claim": rehearsal.claim}) >= step:
                self.left.pop(0)
                self.num_pods = num_pods
                getattr(run.pods[index], what)()


PROBE = """
id -u; id -g; id -G; hostname
sed -n 's/^CapEff:.//p; s/^NoNewPrivs:.//p; s/^Seccomp:.//p' /proc/self/status
cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max
cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cut -d ' ' -f 1 /sys/fs/cgroup/cpu.max
(touch /x || touch /usr/x) 2>/dev/null && echo writable || echo read-only
getent ahostsv4 toy-node-0-1.toy | head -1 | cut -d ' ' -f 1
stat -c '%U %a' /etc/tessera/rendezvous/secret; cat /etc/tessera/rendezvous/secret >/dev/null && echo readable
echo "$PET_NNODES $PET_NODE_RANK $PET_NPROC_PER_NODE $PET_MASTER_ADDR $TESSERA_RESTART_ATTEMPT $HOME"
"""


def undisturbed_trainjob(setup):
    """A TrainJob of Trainer v2.1; a look into pod 0 finds what the manifest asks for."""
    seen = []

    def look(_, run):
        if not seen and len(run.pods) == 2:
            # At once: all 600 steps take less time than podman needs on a busy machine.
            pod = run.pods[0]
            pod.wait_until_started()
            seen.extend(podman("exec", f"{pod.machine.prefix}-{pod.name}", "sh", "-c", PROBE).splitlines())
            seen.append(run.pods[1].address)

    done = Rehearsal(setup, "v2.1", on_sync=look)
    done.check_actions("complete")
    peer = seen[-1] if seen else None
    done.check(seen == ["1000", "1000", "1000", "toy-node-0-0", "0000000000000000", "1", "2", str(300 * 2**20), "100000", "read-only", peer,
                        "root 440", "readable", "2 0 1 toy-node-0-0.toy 0 /tmp", peer],
               f"pod 0 has the user, rights, limits, names and variables of the manifest: {seen}")
    return done


def killed_pod_of_a_jobset(setup, reference):
    done = Rehearsal(setup, "jobset", ["--save_steps", str(SAVE_STEPS)], on_sync=Disturb(("kill", 1, 100)))
    done.check_actions("RestartJobSet", "complete")
    done.check(done.pods[0].exit_code == 137, "node 1 was killed")
    done.check(done.controller.counted_restarts == 1, "the restart counts")
    done.check("resuming from" in done.pods[-1].text(), "the second attempt resumes from a checkpoint")
    # It could not write a message of its own: kubelet takes the end of its log, if it has one.
    killed, peer = done.pods[:2]
    last_line = "".join(killed.text().splitlines()[-1:])[:40]
    done.check_status([killed, peer], 1, f"pod {killed.name}: exit code 137 (SIGKILL)" + (f": {last_line}" if last_line else "\n"))
    message = peer.termination_message(peer.container)
    # It ends on its own, or by the SIGTERM with which the JobSet ends the attempt, when its ranks may already be gone.
    done.check(message.startswith(("exit code 75: ", "stopped by SIGTERM: step ", "ended by signal 15\n")), f"its peer ended: {message}")
    complete = {"type": "Completed", "status": "True"}
    done.check_status(done.pods[2:], 0, f"finished: step {NUM_STEPS} of {NUM_STEPS}", conditions=[complete])
    done.check_model(reference)


def drained_pod_of_a_trainjob(setup, reference):
    """No checkpoints but those made on SIGTERM. Later a pod is deleted without a condition, as Karpenter does with pods that must
    not be disrupted when it loses a spot node."""
    saved = []

    def watch(rehearsal, run, disturb=Disturb(("drain", 0, 50), ("delete", 1, 300))):
        if run.attempt == 1 and not saved:
            with open(os.path.join(rehearsal.claim, "runs", "toy", "latest"), encoding="utf-8") as file:
                saved.append(file.read().strip())
        disturb(rehearsal, run)

    done = Rehearsal(setup, "v2.3", ["--save_strategy", "no"], on_sync=watch)
    done.check_actions("RestartJobSetAndIgnoreMaxRestarts", "RestartJobSetAndIgnoreMaxRestarts", "complete")
    drained = done.pods[1]
    done.check(drained.index == 0 and drained.exit_code == 143, "node 0 ends by SIGTERM within its grace period")
    done.check(done.controller.counted_restarts == 0, "the restarts do not count")
    deleted = done.pods[2]
    done.check(deleted.index == 1 and deleted.exit_code == 143 and not deleted.disrupted, "node 1 ends by SIGTERM, without a condition")
    done.check(saved and int(saved[0].split("-")[1]) >= 50, f"SIGTERM left a checkpoint: {saved}")
    done.check(saved[0] in done.pods[3].text(), "the second attempt resumes from it")
    done.check(saved[0] in drained.termination_message(drained.container), "the termination message names it")
    done.check_status([drained], 1, f"pod {drained.name}: exit code 143 (SIGTERM): stopped by SIGTERM: step ")
    done.check_model(reference)


def contradictory_settings(setup, reference):
    """The finished run's folder and another seed: 78, which would happen again."""
    done = Rehearsal(setup, "v2.2", ["--seed", "7"], claim=reference.claim)
    done.check_actions("FailJobSet")
    done.check({pod.exit_code for pod in done.pods} <= {78, 143} and 78 in {pod.exit_code for pod in done.pods},
               "the pods end with 78, at most one before its own error by the other's")
    done.check(len(done.controller.attempts) == 1 and len(done.pods) == 2, "no pod is started again")
    done.check("exit code 78 matching FailJob rule at index 0" in done.failure.message, "rule 0 ends the job")
    refused = next(pod for pod in done.pods if pod.exit_code == 78)
    message = refused.termination_message(refused.container)
    done.check(message.startswith("exit code 78: ") and "seed" in message, f"the termination message has the reason: {message}")
    failed = {"type": "Failed", "status": "True", "reason": done.failure.reason, "message": done.failure.message}
    # A pod that learns it from node 0 names the host, which node 0 itself does not.
    reason = message.strip().removeprefix("exit code 78: ").removeprefix("host toy-node-0-0: ")
    done.check_status(done.pods, 3, "exit code 78 (bad configuration): ", reason,
                      "it would fail the same way again", conditions=[failed])


def pods_of_an_indexed_job(setup, reference):
    """Without JobSet every pod is replaced on its own: one is killed, the other drained."""
    done = Rehearsal(setup, "job", ["--save_steps", str(SAVE_STEPS)],
                     on_sync=Disturb(("kill", 1, 100), ("drain", 0, 350)))
    done.check_actions("complete")
    done.check([pod.exit_code for pod in done.pods if pod.index == 1][0] == 137, "node 1 was killed")
    done.check([pod.exit_code for pod in done.pods if pod.index == 0] == [143, 0], "node 0 was drained and came back")
    done.check(done.controller.attempts[0].num_failures == 1, "the kill counts, the drained pod and 75 do not")
    done.check_model(reference)


def pod_whose_node_check_fails(setup, reference):
    """The check fails on the first node (its peer does not exist) and passes on the next."""

    def fail_once(documents):
        template = [d for d in documents if d["kind"] == "JobSet"][0]["spec"]["replicatedJobs"][0]["template"]
        check = template["spec"]["template"]["spec"]["initContainers"][0]
        words = [word for word in check["command"] if not word.startswith("--instruction_set")]  # of the machine this runs on
        command = " ".join([*words, "--passive", "--peers", "nobody.invalid:29500"])
        check["command"] = ["sh", "-c", f"mkdir /data/checked || exit 0; exec {command}"]
        check["volumeMounts"].append({"name": "data", "mountPath": "/data"})

    done = Rehearsal(setup, "jobset", ["--node_check"], change=fail_once)
    done.check_actions("complete")
    sick = done.pods[0]
    done.check((sick.index, sick.failed_container, sick.exit_code) == (1, "node-check", 1), "the first check fails")
    done.check([pod.index for pod in done.pods] == [1, 0, 1], "only its pod is replaced")
    done.check(done.controller.restarts == 0 and done.controller.attempts[0].num_failures == 0, "nothing is counted")
    done.check_status([sick], 1, f"pod {sick.name}, init container node-check: exit code 1: ", "nobody.invalid")
    done.check_model(reference)


class Setup:
    def __init__(self, program, folder):
        self.program, self.folder = os.path.realpath(program), folder
        self.volume = os.path.join(folder, "volume")
        tag = hashlib.sha256(f"{ROOT}\n".encode()).hexdigest()[:12]  # that of tests/image/image_check.sh
        built = subprocess.run([f"{ROOT}/deploy/docker/build_local.sh", tag], check=False, stdout=subprocess.DEVNULL)
        if built.returncode == 74:
            print("skipped: Debian's packages cannot be had")
            sys.exit(77)
        if built.returncode != 0:
            sys.exit("the image cannot be built")
        self.image = f"localhost/tessera:{tag}"
        subprocess.run([f"{ROOT}/tests/image/tiny_model.sh", self.program, self.volume], check=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        setup = Setup(sys.argv[1], folder)
        print(f"{time.monotonic() - begin:5.1f} s  image and model")
        reference = None
        for scenario in (undisturbed_trainjob, killed_pod_of_a_jobset, drained_pod_of_a_trainjob, pods_of_an_indexed_job,
                         pod_whose_node_check_fails, contradictory_settings):
            begin = time.monotonic()
            result = scenario(setup) if reference is None else scenario(setup, reference)
            reference = reference or result
            print(f"{time.monotonic() - begin:5.1f} s  {scenario.__name__.replace('_', ' ')}", flush=True)


if __name__ == "__main__":
    main()
