"""Curves of evaluation losses of finished runs, for the scripts beside this file."""

import html
import json
import pathlib
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 460, 84, 170, 50, 60
COLORS = ["#1f2933", "#2563eb", "#dc2626", "#15803d", "#d97706", "#7c3aed", "#0891b2", "#be185d"]


class Run:
    """A finished run: its arguments, [(step, evaluation loss)] and the name that the caller gives it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.arguments = json.loads((self.folder / "training_args.json").read_text(encoding="utf-8"))
        state = json.loads((self.folder / "trainer_state.json").read_text(encoding="utf-8"))
        self.curve = [(entry["step"], entry["eval_loss"]) for entry in state["log_history"] if "eval_loss" in entry]
        if not self.curve:
            sys.exit(f"{folder}: trainer_state.json has no evaluation")
        self.loss = self.curve[-1][1]
        self.name = self.folder.name


def picture(title, runs):
    """Evaluation loss against steps as SVG, in the style of src/plan/drawing."""
    last_step = max(run.curve[-1][0] for run in runs)
    values = [loss for run in runs for _, loss in run.curve]
    low, high = min(values), max(values)
    height = (high - low) or 1

    def place(step, loss):
        x = LEFT + (WIDTH - LEFT - RIGHT) * step / last_step
        return round(x, 1), round(TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / height, 1)

    description = "; ".join(f"{run.name}: {run.loss:.4f} after {run.curve[-1][0]} steps" for run in runs)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-labelledby="title description" font-family="Helvetica, Arial, sans-serif" font-size="12" '
        f'fill="#1f2933">\n<title id="title">{title}</title>\n<desc id="description">{html.escape(description)}.</desc>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n'
        f'<text x="{LEFT}" y="28" font-size="17" font-weight="600">{title}</text>'
    ]
    for i in range(6):
        loss = low + height * i / 5
        _, y = place(0, loss)
        out.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#e4e7eb"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        step = last_step * i // 5
        out.append(f'<text x="{place(step, low)[0]}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{step}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">step</text>')
    for i, run in enumerate(runs):
        dashes = "" if i < len(COLORS) else ' stroke-dasharray="6 3"'
        stroke = f'stroke="{COLORS[i % len(COLORS)]}" stroke-width="2"{dashes}'
        points = " ".join("{},{}".format(*place(*point)) for point in run.curve)
        out.append(f'<polyline points="{points}" fill="none" {stroke}/>')
        x, y = WIDTH - RIGHT + 12, TOP + 20 * i
        out.append(f'<line x1="{x}" y1="{y}" x2="{x + 20}" y2="{y}" {stroke}/>')
        out.append(f'<text x="{x + 26}" y="{y + 4}">{html.escape(run.name)}</text>')
    return "\n".join(out) + "\n</svg>\n"
