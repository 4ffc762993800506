#!/usr/bin/python3
"""optimizer_summary.py PICTURE.svg RUN...: compares runs of bench_optimizers.sh with the first of them."""

import pathlib
import sys

from loss_curves import Run, picture


def main():
    target, runs = pathlib.Path(sys.argv[1]), [Run(folder) for folder in sys.argv[2:]]
    for run in runs:
        run.form, run.rate = run.arguments["optim"], run.arguments["learning_rate"]
        run.name = f"{run.form}, {run.rate:g}"
    target.write_text(picture("Evaluation loss by form of the optimizer", runs), encoding="utf-8")
    print(f"| `--optim` | learning rate | evaluation loss | against `{runs[0].form}` |\n|---|---|---|---|")
    for run in runs:
        print(f"| `{run.form}` | {run.rate:g} | {run.loss:.4f} | {100 * (run.loss / runs[0].loss - 1):+.2f} % |")


main()
