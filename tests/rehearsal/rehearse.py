#!/usr/bin/python3
"""rehearse.py --image IMAGE --claim NAME=DIR [--kill POD@STEP | --drain POD@STEP | --delete POD@STEP] [--memory MIB] [--cpus N] FILE.yaml...

Runs the job of rendered manifests on this machine as root: one podman container per pod, restarted by the rules of the
manifests. With --kill the pod of that index is killed when metrics.jsonl (of the claim's newest run) has STEP lines, with
--drain it gets a SIGTERM and its grace period, as on a drained node. Prints what the controllers decide, and rank 0's
log; exit code 0 if the job completes, 1 if it fails. Needs podman, runc, netavark and python3-yaml.
"""
import argparse
import glob
import os
import sys
import tempfile
import time

from controllers import JobSetController
from kubelet import Machine
from manifests import ManifestError, expand, read_documents


def num_steps(claims, since=0.0):
    """Lines of the newest metrics.jsonl on a claim; 0 if nothing was written to it since that time."""
    files = [f for folder in claims.values() for f in glob.glob(os.path.join(folder, "**/metrics.jsonl"), recursive=True)
             if os.path.getmtime(f) >= since]
    if not files:
        return 0
    with open(max(files, key=os.path.getmtime), "rb") as file:
        return file.read().count(b"\n")


def disturb_once(machine, what, index, step):
    """Kills, drains or deletes a pod when the run has got to `step`."""
    done, begin = [], time.time()

    def on_sync(run):
        run.pods[index].wait_until_started()
        if not done and num_steps(machine.claims, begin) >= step:
            done.append(True)
            getattr(run.pods[index], what)()

    return on_sync


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True)
    parser.add_argument("--claim", action="append", default=[], metavar="NAME=DIR")
    disturbance = parser.add_mutually_exclusive_group()
    for what in ("kill", "drain", "delete"):
        disturbance.add_argument(f"--{what}", metavar="POD@STEP")
    parser.add_argument("--memory", type=int, default=300, metavar="MIB", help="limit of a pod, if its own is higher")
    parser.add_argument("--cpus", type=float, default=1, help="limit of a pod, if its own is higher")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    claims = dict(each.split("=", 1) for each in arguments.claim)
    with tempfile.TemporaryDirectory() as folder:
        try:
            documents = read_documents(arguments.files)
            jobset = expand(documents)
            machine = Machine(folder, arguments.image, documents, claims, arguments.memory * 2**20, arguments.cpus)
            try:
                on_sync = lambda run: None
                for what in ("kill", "drain", "delete"):
                    if (value := getattr(arguments, what)) is not None:
                        index, step = map(int, value.split("@"))
                        on_sync = disturb_once(machine, what, index, step)
                controller = JobSetController(machine, jobset, on_sync)
                failure = controller.run(3600)
            finally:
                machine.close()
        except ManifestError as error:
            sys.exit(f"error: {error}")
        print(controller.attempts[-1].pods[0].text())
        print("\n".join(controller.events))
        return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
