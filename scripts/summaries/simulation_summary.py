#!/usr/bin/python3
"""simulation_summary.py FOLDER CASE...: the table of bench_simulation.sh, from the records of its runs."""

import glob
import json
import statistics
import sys


def measured(run):
    """Medians of the steps that count: seconds of a step, of them computing, bytes sent by a node."""
    steps = [json.loads(line) for line in open(f"{run}/metrics.jsonl", encoding="utf-8")][2:]
    nodes = len(steps[0]["rank_compute_s"])
    return [
        statistics.median(values)
        for values in zip(
            *(
                (step["step_time_s"], statistics.mean(step["rank_compute_s"]), step["network_sent_bytes"] / nodes)
                for step in steps
            )
        )
    ]


def main():
    folder, cases = sys.argv[1], sys.argv[2:]
    print("\n| hosts | Gbit/s | racks | schedule | passes | computing | MB sent | measured | simulated | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    worst = 0
    for case in cases:
        runs = []
        for path in glob.glob(f"{folder}/{case.replace(' ', '-')}-*.simulated.json"):
            cluster = json.load(open(path, encoding="utf-8"))["clusters"][0]
            step_s, compute_s, sent_bytes = measured(path.removesuffix(".simulated.json"))
            runs.append((step_s, cluster["step_s"], cluster["step_s"] / step_s, compute_s, sent_bytes))
            if abs(cluster["node_sent_bytes"] / sent_bytes - 1) > 0.01:
                sys.exit(f"error: {path}: {cluster['node_sent_bytes']:.0f} bytes sent, the run sent {sent_bytes:.0f}")
        step_s, simulated_s, ratio, compute_s, sent_bytes = (statistics.median(values) for values in zip(*runs))
        worst = max(worst, abs(ratio - 1))
        print(
            f"| {' | '.join(case.split())} | {compute_s:.2f} s | {sent_bytes / 1e6:.1f} | {step_s:.2f} s "
            f"| {simulated_s:.2f} s | {ratio:.2f} |"
        )
    print(f"\nlargest difference: {100 * worst:.1f} %")


if __name__ == "__main__":
    main()
