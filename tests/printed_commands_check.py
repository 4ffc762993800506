#!/usr/bin/python3
"""printed_commands_check.py TESSERA PAGE.md... [--update]: what pages say that a command prints is what it prints.

Looks at fenced blocks that begin with `$ tessera plan --preset`, whose output depends on no machine. A line `...` stands for
lines that are left out: the page goes on at the next line that begins with the same word. --update rewrites the pages.
"""
import re
import shlex
import subprocess
import sys

BLOCK = re.compile(r"^```\n(\$ tessera plan --preset(?:[^\n]*\\\n)*[^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def printed(program, command):
    words = shlex.split(command.removeprefix("$ ").replace("\\\n", " "))
    done = subprocess.run([program, *words[1:]], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).rstrip("\n").split("\n")


def first_word(line):
    return line.split()[0] if line.split() else ""


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


def main():
    update = "--update" in sys.argv
    program, *pages = [word for word in sys.argv[1:] if word != "--update"]
    stale, num_blocks = [], 0
    for page in pages:
        with open(page, encoding="utf-8") as file:
            text = file.read()

        def refresh(match, page=page):
            nonlocal num_blocks
            num_blocks += 1
            shown = match[2].rstrip("\n").split("\n")
            lines = now(shown, printed(program, match[1]))
            if lines != shown:
                differs = next((pair for pair in zip(shown, lines) if pair[0] != pair[1]), (shown[-1], lines[-1]))
                stale.append(f"{page}: {match[1]}\n  page:    {differs[0]}\n  printed: {differs[1]}")
            return "```\n" + match[1] + "\n" + "\n".join(lines) + "\n```"

        text = BLOCK.sub(refresh, text)
        if update:
            with open(page, "w", encoding="utf-8") as file:
                file.write(text)
    if num_blocks < len(pages):
        sys.exit("no commands were found")
    print(f"{num_blocks} commands, {len(stale)} with another output than the pages")
    if stale and not update:
        sys.exit("\n".join(stale) + f"\n{sys.argv[0]} {program} {' '.join(pages)} --update rewrites the pages")


main()
