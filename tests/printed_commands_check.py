#!/usr/bin/python3
"""printed_commands_check.py TESSERA PAGE.md... [--update]: what pages say that a command prints is what it prints.

Looks at fenced blocks that begin with `$ tessera plan --preset` or `simulate`, whose output depends on no machine but for packed
weights: plans for this machine (--tflops without --machine) are skipped where its processor has no AMX. A line `...` stands for
lines that are left out: the page goes on at the next line that begins with the same word. --update rewrites the pages. And at
blocks, indented, below `<!-- printed by: tessera ... -->`: their words follow each other somewhere in what that command prints;
a first line that begins with `$` does not belong to them.

Numbers may differ by two hundredths or by the last digit shown, since this process's own memory counts in plans.
"""
import re
import shlex
import subprocess
import sys

BLOCK = re.compile(r"^```\n(\$ tessera (?:plan|simulate) --preset(?:[^\n]*\\\n)*[^\n]*[^\\\n])\n(.+?)^```$", re.DOTALL | re.MULTILINE)
MARKED = re.compile(r"^ *<!-- printed by: (tessera .*?) -->\n\n((?: +\S.*\n|\n(?= {4}))+)", re.MULTILINE)
FOR_THIS_MACHINE = re.compile(r"--tflops(?!.*--machine)", re.DOTALL)
NUMBER = re.compile(r"(\W*)(\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)(\W*)")


def has_amx():
    with open("/proc/cpuinfo", encoding="ascii") as file:
        return " amx_tile" in file.read()


def printed(program, command):
    words = shlex.split(command.removeprefix("$ ").replace("\\\n", " "))
    done = subprocess.run([program, *words[1:]], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).rstrip("\n").split("\n")


def first_word(line):
    return line.split()[0] if line.split() else ""


def same_word(shown, word):
    if shown == word:
        return True
    one, other = NUMBER.fullmatch(shown), NUMBER.fullmatch(word)
    if not one or not other or (one[1], one[3]) != (other[1], other[3]):
        return False
    values = [float(match[2].replace(",", "")) for match in (one, other)]
    digits = [len(match[2].partition(".")[2]) for match in (one, other)]
    return abs(values[0] - values[1]) <= max(0.02 * max(values), 1.01 * 10 ** -min(digits))


def same_line(shown, line):
    # The memory of the process before it plans varies.
    if "resident before the model" in shown and "resident before the model" in line:
        return True
    words, others = shown.split(), line.split()
    return len(words) == len(others) and all(map(same_word, words, others))


def same_lines(shown, lines):
    return len(shown) == len(lines) and all(map(same_line, shown, lines))


def has_words(shown, lines):
    """Whether the words of a block follow each other in the output; # begins the lines of a comment."""
    words = [word for line in shown for word in line.split() if word != "#"]
    output = [word for line in lines for word in line.split() if word != "#"]
    return any(all(map(same_word, words, output[at:])) for at in range(len(output) - len(words) + 1))


def now(shown, output):
    """The lines of `output` in place of those shown."""
    parts, at = [[]], 0
    for line in shown:
        if line == "...":
            parts.append([])
        else:
            parts[-1].append(line)
    lines = []
    for number, part in enumerate(parts):
        if number > 0:
            lines.append("...")
            if not part:
                break
            while at < len(output) and first_word(output[at]) != first_word(part[0]):
                at += 1
        end = at + len(part)
        # A page may stop between two tables, but not within one.
        if number + 1 == len(parts) and (end >= len(output) or output[end] != ""):
            end = len(output)
        lines += output[at:end]
        at = end
    return lines


class Pages:
    def __init__(self, program):
        self.program = program
        self.stale = []
        self.num_blocks = 0
        self.num_skipped = 0

    def check(self, page, update):
        with open(page, encoding="utf-8") as file:
            text = file.read()
        before = self.num_blocks
        for command, body in MARKED.findall(text):
            self.num_blocks += 1
            lines = [line for line in body.split("\n") if not line.lstrip().startswith("$")]
            output = printed(self.program, command)
            if not has_words(lines, output):
                self.stale.append(f"{page}: {command}\n  page:    {' '.join(lines)}\n  printed: " + "\n           ".join(output[-40:]))
        text = BLOCK.sub(lambda match: self.refreshed(page, match), text)
        if self.num_blocks == before:
            sys.exit(f"{page}: no commands were found")
        if update:
            with open(page, "w", encoding="utf-8") as file:
                file.write(text)

    def refreshed(self, page, match):
        self.num_blocks += 1
        if FOR_THIS_MACHINE.search(match[1]) and not has_amx():
            self.num_skipped += 1
            return match[0]
        shown = match[2].rstrip("\n").split("\n")
        lines = now(shown, printed(self.program, match[1]))
        if not same_lines(shown, lines):
            differs = next((pair for pair in zip(shown, lines) if not same_line(*pair)), (shown[-1], lines[-1]))
            self.stale.append(f"{page}: {match[1]}\n  page:    {differs[0]}\n  printed: {differs[1]}")
        return "```\n" + match[1] + "\n" + "\n".join(lines) + "\n```"


def main():
    update = "--update" in sys.argv
    program, *pages = [word for word in sys.argv[1:] if word != "--update"]
    checked = Pages(program)
    for page in pages:
        checked.check(page, update)
    if checked.num_skipped:
        print(f"{checked.num_skipped} skipped: their plans are for a processor with AMX, which this one is not")
    print(f"{checked.num_blocks} commands, {len(checked.stale)} with another output than the pages")
    if checked.stale and not update:
        sys.exit("\n".join(checked.stale) + f"\n{sys.argv[0]} {program} {' '.join(pages)} --update rewrites fenced blocks")


main()
