#!/usr/bin/python3
"""exchange_summary.py PICTURE.svg RUN...: compares runs of bench_exchange.sh with the first of them: losses, tokens and bytes."""

import itertools
import json
import pathlib
import sys

from loss_curves import Panel, Run, picture


class Exchange(Run):
    """A run with what its steps cost: at step k, `tokens[k]` of all nodes and `sent[k]` bytes of each, so far."""

    def __init__(self, folder):
        super().__init__(folder)
        self.name = self.folder.name.rsplit("-", 1)[0]
        lines = (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        # A resumed run may have done some steps twice: the last time counts.
        by_step = {step["step"]: step for step in map(json.loads, lines) if "network_sent_bytes" in step}
        steps = [by_step[step] for step in sorted(by_step)]
        num_nodes = len(steps[0]["rank_compute_s"])
        self.tokens = list(itertools.accumulate((step["num_tokens"] for step in steps), initial=0))
        self.sent = list(itertools.accumulate((step["network_sent_bytes"] / num_nodes for step in steps), initial=0))

    def sent_per_step(self):
        return self.sent[-1] / (len(self.sent) - 1)

    def loss_against(self, quantity, unit):
        return [(quantity[step] / unit, loss) for step, loss in self.curve]


def main():
    target, runs = pathlib.Path(sys.argv[1]), [Exchange(folder) for folder in sys.argv[2:]]
    panels = [
        Panel("thousand tokens of all nodes", [run.loss_against(run.tokens, 1e3) for run in runs]),
        Panel("GB sent by a node", [run.loss_against(run.sent, 1e9) for run in runs], logarithmic=True),
    ]
    target.write_text(picture("Evaluation loss by what nodes exchange", runs, panels), encoding="utf-8")
    exact = runs[0].sent_per_step()
    print(f"| nodes exchange | evaluation loss | against `{runs[0].name}` | MB sent a node and step | of `{runs[0].name}` |")
    print("|---|---|---|---|---|")
    for run in runs:
        sent = run.sent_per_step()
        print(
            f"| {run.name} | {run.loss:.4f} | {100 * (run.loss / runs[0].loss - 1):+.2f} % | {sent / 1e6:.2f} | "
            f"{f'1/{exact / sent:.1f}' if sent else 'none'} |"
        )


main()
