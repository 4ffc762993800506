"""The Markdown of compare.sh job: job_table.py FOLDER reads FOLDER/job/job.json, and writes job.md and job_line.md there."""

import json
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TITLES = ["", "Trainer, DeepSpeed ZeRO-3, Gloo", "Tessera", "ratio"]


def table(titles, rows):
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def median(rounds, value):
    return statistics.median(value(one) for one in rounds)


def number(value):
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def data(value):
    return f"{value / 2**30:.2f} GiB" if value >= 2**27 else f"{value / 2**20:.3f} MiB"


def lines_of(path):
    """Counts the lines that are neither empty nor comments."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return sum(1 for line in lines if line and not line.startswith(("#", '"""')))


def steady_rate(one, tokens):
    return sum(tokens[step - 1] for step in one["steady_steps"]) / one["steady_s"]


def measured_rows(rounds):
    theirs, ours = rounds["hf"], rounds["tessera"]
    real = ours[0]["tokens"]  # nothing is padded here
    padded = theirs[0]["tokens"]  # Transformers counts what is in input_ids

    def row(title, value, text, faster):
        a, b = median(theirs, value), median(ours, value)
        ratio = (b / a if faster else a / b) if min(a, b) > 0 else 0
        # Next to nothing is not worth a factor.
        return [title, text(a), text(b), f"{ratio:.1f}" if 0 < ratio < 1000 else ""]

    def seconds(value):
        return f"{number(value)} s"

    others = "" if theirs[0]["own_network"] else ", other programs' included"
    rows = [
        row("start to the end of the first step", lambda one: one["first_step_s"], seconds, False),
        row("tokens/s after it, real", lambda one: steady_rate(one, real), number, True),
    ]
    if padded != real:
        a = median(theirs, lambda one: steady_rate(one, padded))
        rows.append(["tokens/s after it, padding counted", number(a), "no padding", ""])
    rows += [
        row("peak resident memory of a rank", lambda one: one["rank_bytes"], data, False),
        row("peak memory of all processes, shared pages once", lambda one: one["total_bytes"], data, False),
        row(f"through the loopback device in a step{others}", lambda one: one["network_bytes"], data, False),
        row("a checkpoint holds training up for", lambda one: one["checkpoint_s"], seconds, False),
        row("size of the checkpoint", lambda one: one["checkpoint_bytes"], data, False),
        row("the whole job", lambda one: one["whole_s"], seconds, False),
    ]
    return rows


def set_up_rows(record):
    script, config = lines_of(ROOT / "scripts/compare/train.py"), lines_of(ROOT / "scripts/compare/cpu-ds.json")
    return [
        ["lines of set-up", f"{script} + {config} + 1 (script, DeepSpeed file, command)", f"{config} + 1 (file, command)", ""],
        ["operators compiled before the first run", f"{number(record['compile_s'])} s", "none", ""],
    ]


def command_text(words):
    text = " ".join(words).replace(f"{ROOT}/", "")
    return text.replace(words[0], "tessera", 1) if words[0].endswith("/tessera") else text


def readme_line(record):
    every = [batch["rounds"] for batch in record["batches"].values()]

    def speed(rounds, name):
        return median(rounds[name], lambda one: steady_rate(one, rounds["tessera"][0]["tokens"]))

    faster = sorted(speed(rounds, "tessera") / speed(rounds, "hf") for rounds in every)
    faster = " to ".join(dict.fromkeys(f"{ratio:.0f}" for ratio in (faster[0], faster[-1])))
    first = [median(every[0][name], lambda one: one["first_step_s"]) for name in ("hf", "tessera")]
    memory = [median(every[0][name], lambda one: one["total_bytes"]) / 2**30 for name in ("hf", "tessera")]
    return (
        "A job of Transformers' Trainer with DeepSpeed ZeRO-3 and Gloo on two ranks, given to `tessera` with the same arguments, trains\n"
        f"**{faster} times as fast**, with {memory[1]:.1f} instead of {memory[0]:.1f} GiB of memory, and ends its "
        f"first step after {first[1]:.0f} instead of {first[0]:.0f} seconds\n"
        "([table and commands](docs/performance.md#a-training-job-against-the-stack-that-it-replaces)).\n"
    )


def batch_section(batch, found):
    micro_batch, accumulation = batch.split("x")
    rounds = found["rounds"]
    theirs, ours = rounds["hf"][0], rounds["tessera"][0]
    ratios = ", ".join(
        f"{steady_rate(b, ours['tokens']) / steady_rate(a, ours['tokens']):.1f}" for a, b in zip(rounds["hf"], rounds["tessera"])
    )
    rows = [
        [str(step), number(tokens), f"{a:.4f}", f"{b:.4f}", f"{abs(a - b):.4f}"]
        for step, (tokens, a, b) in enumerate(zip(ours["tokens"], theirs["losses"], ours["losses"]), 1)
    ]
    commands = "\n".join(f"    {command_text(found['commands'][name])}" for name in ("hf", "tessera"))
    return "\n".join(
        [
            f"### Rows of a micro-batch: {micro_batch}, micro-batches of a step: {accumulation}\n",
            f"{commands}\n",
            table(TITLES, measured_rows(rounds)),
            f"Medians over rounds in turn, in which Tessera was {ratios} times as fast by real tokens. Losses of the first:\n",
            table(["step", "tokens", "loss, Trainer", "loss, Tessera", "apart"], rows),
        ]
    )


def page(record):
    versions = ", ".join(f"{name} {value}" for name, value in record["versions"].items())
    lines = [
        f"Measured on {record['machine']}, {record['time'][:10]}, by `scripts/compare.sh job`; {versions}. The model has",
        f"{record['parameters'] / 1e9:.2f} billion parameters.\n",
    ]
    lines += [batch_section(batch, found) for batch, found in record["batches"].items()]
    return "\n".join([*lines, table(TITLES, set_up_rows(record))])


def main():
    folder = pathlib.Path(sys.argv[1])
    record = json.loads((folder / "job" / "job.json").read_text())
    (folder / "job.md").write_text(page(record))
    (folder / "job_line.md").write_text(readme_line(record))


if __name__ == "__main__":
    main()
