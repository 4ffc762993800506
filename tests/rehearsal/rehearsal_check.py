#!/usr/bin/python3
"""rehearsal_check.py TESSERA: rehearses jobs as `tessera deploy kubernetes` writes them, undisturbed and disturbed.

Every job trains the same tiny model on two pods and has to end with the same weights, bit for bit. Exit code 77 = skipped.
"""
import filecmp
import hashlib
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
    """A job, the folder behind its claim, and what happened. `on_sync` is called while pods run."""

    def __init__(self, setup, trainer, flags=(), claim=None, on_sync=lambda rehearsal, run: None, variables=()):
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
        for document in documents:
            if document["kind"] == "TrainJob":
                document["spec"]["trainer"].setdefault("env", []).extend(variables)
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


class Disturb:
    """Kills or drains a pod once the run has finished so many steps; the next one after a pod has been replaced."""

    def __init__(self, *disturbances):
        self.left = list(disturbances)  # (what, index, step)
        self.num_pods = 0

    def __call__(self, rehearsal, run):
        if self.left and len(run.history) > self.num_pods:
            what, index, step = self.left[0]
            if num_steps({"claim": rehearsal.claim}) >= step:
                self.left.pop(0)
                self.num_pods = len(run.history)
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

    def look(rehearsal, run):
        if not seen and num_steps({"claim": rehearsal.claim}) >= 1:
            pod = run.pods[0]
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
    done = Rehearsal(setup, "jobset", ["--save_steps", str(SAVE_STEPS)], on_sync=Disturb(("kill", 1, 150)))
    done.check_actions("RestartJobSet", "complete")
    done.check(done.pods[0].exit_code == 137, "node 1 was killed")
    done.check(done.controller.counted_restarts == 1, "the restart counts")
    done.check("resuming from" in done.pods[-1].text(), "the second attempt resumes from a checkpoint")
    done.check_model(reference)


def drained_pod_of_a_trainjob(setup, reference):
    """Without checkpoints but that of the SIGTERM."""
    saved = []

    def watch(rehearsal, run, disturb=Disturb(("drain", 0, 150))):
        if run.attempt == 1 and not saved:
            with open(os.path.join(rehearsal.claim, "runs", "toy", "latest"), encoding="utf-8") as file:
                saved.append(file.read().strip())
        disturb(rehearsal, run)

    done = Rehearsal(setup, "v2.3", ["--save_strategy", "no"], on_sync=watch)
    done.check_actions("RestartJobSetAndIgnoreMaxRestarts", "complete")
    drained = done.pods[1]
    done.check(drained.index == 0 and drained.exit_code == 143, "node 0 ends by SIGTERM within its grace period")
    done.check(done.controller.counted_restarts == 0, "the restart does not count")
    done.check(saved and int(saved[0].split("-")[1]) >= 150, f"SIGTERM left a checkpoint: {saved}")
    done.check(saved[0] in done.pods[-1].text(), "the second attempt resumes from it")
    done.check_model(reference)


def contradictory_settings(setup, reference):
    """The finished run's folder and another seed: 78, which would happen again."""
    done = Rehearsal(setup, "v2.1", ["--seed", "7"], claim=reference.claim)
    done.check_actions("FailJobSet")
    done.check({pod.exit_code for pod in done.pods} <= {78, 143} and 78 in {pod.exit_code for pod in done.pods},
               "the pods end with 78, at most one before its own error by the other's")
    done.check(len(done.controller.attempts) == 1 and len(done.pods) == 2, "no pod is started again")
    done.check("exit code 78 matching FailJob rule at index 0" in done.failure.message, "rule 0 ends the job")


def pods_of_an_indexed_job(setup, reference):
    """Without JobSet every pod is replaced on its own: one is killed, the other drained."""
    done = Rehearsal(setup, "job", ["--save_steps", str(SAVE_STEPS)],
                     on_sync=Disturb(("kill", 1, 100), ("drain", 0, 350)))
    done.check_actions("complete")
    done.check([pod.exit_code for pod in done.pods if pod.index == 1][0] == 137, "node 1 was killed")
    done.check([pod.exit_code for pod in done.pods if pod.index == 0] == [143, 0], "node 0 was drained and came back")
    done.check(done.controller.attempts[0].num_failures == 1, "the kill counts, the drained pod and 75 do not")
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
                         contradictory_settings):
            begin = time.monotonic()
            result = scenario(setup) if reference is None else scenario(setup, reference)
            reference = reference or result
            print(f"{time.monotonic() - begin:5.1f} s  {scenario.__name__.replace('_', ' ')}", flush=True)


if __name__ == "__main__":
    main()
