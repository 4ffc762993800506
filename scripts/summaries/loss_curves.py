"""Curves of evaluation losses of finished runs, for the scripts beside this file."""

import html
import json
import math
import pathlib
import sys

WIDTH, PANEL_HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 460, 84, 170, 50, 60
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


class Panel:
    """Losses against one quantity: `curves` are lists of (quantity, loss), one for each run. On a logarithmic axis points
    at 0 are left out."""

    def __init__(self, label, curves, logarithmic=False):
        self.label = label
        self.logarithmic = logarithmic
        self.curves = [[(x, loss) for x, loss in curve if x > 0 or not logarithmic] for curve in curves]

    def ticks(self):
        xs = [x for curve in self.curves for x, _ in curve]
        if not self.logarithmic:
            return [max(xs) * i / 5 for i in range(6)]
        low, high = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)))
        return [10.0**power for power in range(low, max(high, low + 1) + 1)]

    def draw(self, top, out):
        """Appends the elements of the panel whose upper edge is at `top`."""
        ticks = self.ticks()
        axis = math.log10 if self.logarithmic else float
        first, last = axis(ticks[0]), axis(ticks[-1])
        losses = [loss for curve in self.curves for _, loss in curve]
        low, high = min(losses), max(losses)
        height = (high - low) or 1

        def place(x, loss):
            across = (axis(x) - first) / ((last - first) or 1)
            down = (high - loss) / height
            return (
                round(LEFT + (WIDTH - LEFT - RIGHT) * across, 1),
                round(top + TOP + (PANEL_HEIGHT - TOP - BOTTOM) * down, 1),
            )

        bottom = top + PANEL_HEIGHT
        for i in range(6):
            loss = low + height * i / 5
            _, y = place(ticks[0], loss)
            out.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#e4e7eb"/>')
            out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        for tick in ticks:
            x, _ = place(tick, low)
            out.append(f'<text x="{x}" y="{bottom - BOTTOM + 20}" text-anchor="middle">{tick:,.4g}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        out.append(f'<text x="{middle}" y="{bottom - 14}" text-anchor="middle">{html.escape(self.label)}</text>')
        for i, curve in enumerate(self.curves):
            points = " ".join("{},{}".format(*place(*point)) for point in curve)
            out.append(f'<polyline points="{points}" fill="none" {stroke(i)}/>')


def stroke(i):
    dashes = "" if i < len(COLORS) else ' stroke-dasharray="6 3"'
    return f'stroke="{COLORS[i % len(COLORS)]}" stroke-width="2"{dashes}'


def picture(title, runs, panels=None):
    """Evaluation losses of the runs as SVG, in the style of src/forecast/text/drawing: against steps, unless other panels are given."""
    panels = panels or [Panel("step", [run.curve for run in runs])]
    panels = [panel for panel in panels if any(panel.curves)]
    height = PANEL_HEIGHT * len(panels)
    description = "; ".join(f"{run.name}: {run.loss:.4f} after {run.curve[-1][0]} steps" for run in runs)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title description" font-family="Helvetica, Arial, sans-serif" font-size="12" '
        f'fill="#1f2933">\n<title id="title">{title}</title>\n<desc id="description">{html.escape(description)}.</desc>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="{LEFT}" y="28" font-size="17" font-weight="600">{title}</text>'
    ]
    for i, panel in enumerate(panels):
        panel.draw(PANEL_HEIGHT * i, out)
    for i, run in enumerate(runs):
        x, y = WIDTH - RIGHT + 12, TOP + 20 * i
        out.append(f'<line x1="{x}" y1="{y}" x2="{x + 20}" y2="{y}" {stroke(i)}/>')
        out.append(f'<text x="{x + 26}" y="{y + 4}">{html.escape(run.name)}</text>')
    return "\n".join(out) + "\n</svg>\n"
