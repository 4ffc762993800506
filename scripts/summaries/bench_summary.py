#!/usr/bin/env python3
"""Prints what scripts/bench.sh measured as Markdown tables: bench_summary.py FOLDER [SCRIPT] >summary.md"""

import json
import pathlib
import sys


def read_lines(folder, name):
    """The results in NAME.jsonl, each with the command that produced it."""
    path = folder / f"{name}.jsonl"
    results, pending = [], []
    for line in path.read_text().splitlines() if path.exists() else []:
        entry = json.loads(line)
        if set(entry) == {"command"}:
            results += [dict(result, command=entry["command"]) for result in pending]
            pending = []
        else:
            pending.append(entry)
    return results


def commands(results):
    return "".join(f"    {command}\n" for command in dict.fromkeys(result["command"] for result in results))


def table(titles, rows):
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def number(value):
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def spread(quartiles, digits=2):
    return f"{quartiles['median']:.{digits}f} ({quartiles['q1']:.{digits}f}-{quartiles['q3']:.{digits}f})"


def shape_text(result):
    return " x ".join(str(size) for size in result["shape"].values())


def gemm_section(results):
    products = list(dict.fromkeys(result["operation"] for result in results))
    cells = {}
    for result in results:
        text = spread(result["share"])
        for other in result["compare"]:
            text += f", {other['ratio']['median']:.1f}x"
        cells[shape_text(result), result["operation"]] = text
    shapes = list(dict.fromkeys(shape for shape, _ in cells))
    rows = [[shape] + [cells.get((shape, product), "") for product in products] for shape in shapes]
    other = results[0]["compare"][0]["implementation"] if results[0]["compare"] else "nothing"
    return (
        f"{results[0]['implementation']} in {results[0]['dtype']}: share of the {results[0]['peak_name']} peak "
        f"(quartiles), median speed over {other}.\n\n" + table(["T x N x K"] + products, rows)
    )


def kernel_section(results):
    rows = [
        [
            result["operation"],
            shape_text(result),
            result["implementation"],
            f"{number(result['speed']['median'])} {result['unit']}",
            number(result["peak"]["median"]),
            spread(result["share"]),
        ]
        for result in results
    ]
    return table(["operation", "shape", "implementation", "speed", "peak", "share (quartiles)"], rows)


def comm_section(results):
    rows = [
        [
            str(result["shape"]["ranks"]),
            f"{result['shape']['bytes'] >> 20} MiB",
            f"{1e3 * result['amount_per_call'] / result['speed']['median']:.2f} ms",
            spread(result["share"]),
            ", ".join(f"{other['implementation']} {spread(other['ratio'], 1)}" for other in result["compare"]),
        ]
        for result in results
    ]
    return table(["ranks", "buffer of each", "time", "share of the memory bandwidth", "times faster than"], rows)


def tokenizer_section(results):
    rows = [
        [
            result["operation"],
            result["tokenizer"],
            result["text"],
            spread(result["mib_per_second"], 0),
            spread(result["ratio_to_reference"], 1) if result["ratio_to_reference"] else "",
        ]
        for result in results
    ]
    return table(["operation", "tokenizer", "text", "MiB/s (quartiles)", "times the plain path"], rows)


def step_name(result):
    tokens = f"{result['gradient_accumulation_steps']} x {result['micro_batch']} x {result['max_length']}"
    return [
        f"{result['preset']}, {result['layers']} layers" + (" and head" if result["with_head"] else ""),
        f"{tokens} ({result['pass_tokens']} at once)",
        "yes" if result["gradient_checkpointing"] else "no",
    ]


def step_section(results):
    rows = [
        step_name(result)
        + [
            number(result["tokens_per_second"]["median"]),
            spread(result["mfu"], 3),
            number(result["tokens_per_second_forward_backward"]["median"]),
            spread(result["mfu_forward_backward"], 3),
            f"{result['peak_tflops']['median']:.2f}",
            f"{result['peak_memory_bytes'] / 2**30:.2f} GiB" if result["peak_memory_bytes"] else "unknown",
        ]
        for result in results
    ]
    titles = ["model", "tokens of a step", "checkpointing", "tokens/s", "MFU", "forward + backward tokens/s"]
    text = table(titles + ["its MFU", "peak TFLOPS", "memory"], rows)
    shares = sorted(results[0]["operation_shares"].items(), key=lambda item: -item[1])
    listed = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares if share >= 0.002)
    return text + f"\nWhere the first of these steps goes: {listed}.\n"


def pytorch_section(results):
    rows = [
        step_name(result)[:2]
        + [
            result["against"]["name"],
            number(result["tokens_per_second_forward_backward"]["median"]),
            spread(result["against"]["ratio_forward_backward"]),
            spread(result["against"]["ratio_optimizer"]),
            spread(result["against"]["ratio_step"]),
        ]
        for result in results
    ]
    titles = ["model", "tokens of a step", "in turn with", "forward + backward tokens/s", "times faster", "optimizer"]
    return table(titles + ["whole step"], rows)


SECTIONS = [
    ("gemm", "Matrix products", gemm_section),
    ("tiles", "What feeds the tile unit", kernel_section),
    ("attention", "Attention", kernel_section),
    ("elementwise", "Element-wise operations", kernel_section),
    ("comm", "Sum of the buffers of several ranks", comm_section),
    ("optimizer", "Optimizer", kernel_section),
    ("tokenizer", "Tokenizer", tokenizer_section),
    ("train_step", "Training step", step_section),
    ("pytorch", "Training step against PyTorch", pytorch_section),
]


def main():
    folder = pathlib.Path(sys.argv[1])
    script = sys.argv[2] if len(sys.argv) > 2 else "scripts/bench.sh"
    heading_done = False
    for name, title, section in SECTIONS:
        results = read_lines(folder, name)
        if not results:
            continue
        if not heading_done:
            first = results[0]
            print(f"Measured on {first['processor']}, {first['threads']} threads, {first['time'][:10]}, by")
            print(f"`{script}`. Quartiles of the paired ratios are in parentheses.")
            heading_done = True
        print(f"\n### {title}\n\n{commands(results)}\n{section(results)}", end="")


if __name__ == "__main__":
    main()
