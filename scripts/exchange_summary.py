#!/usr/bin/python3
"""exchange_summary.py PICTURE.svg RUN...: compares runs of bench_exchange.sh with the first of them: losses and bytes."""

import json
import pathlib
import sys

from loss_curves import Run, picture


def sent_per_step(run):
    """Bytes that a node sends in a step, the mean over all steps."""
    lines = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [step for step in map(json.loads, lines) if "network_sent_bytes" in step]
    num_nodes = len(steps[0]["rank_compute_s"])
    return sum(step["network_sent_bytes"] for step in steps) / len(steps) / num_nodes


def main():
    target, runs = pathlib.Path(sys.argv[1]), [Run(folder) for folder in sys.argv[2:]]
    for run in runs:
        run.name = run.folder.name.rsplit("-", 1)[0]
    target.write_text(picture("Evaluation loss by what nodes exchange", runs), encoding="utf-8")
    exact = sent_per_step(runs[0])
    print(f"| nodes exchange | evaluation loss | against `{runs[0].name}` | MB sent a node and step | of `{runs[0].name}` |")
    print("|---|---|---|---|---|")
    for run in runs:
        sent = sent_per_step(run)
        print(
            f"| {run.name} | {run.loss:.4f} | {100 * (run.loss / runs[0].loss - 1):+.2f} % | {sent / 1e6:.2f} | "
            f"{f'1/{exact / sent:.1f}' if sent else 'none'} |"
        )


main()
