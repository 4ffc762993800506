#!/usr/bin/env python3
"""test_report.py BUILD_FOLDER: what ctest's last run in BUILD_FOLDER found, case by case: of every case that failed the end
of its output, the cases that were skipped and why, and how many there were. ctest itself counts suites."""

import collections
import re
import sys

OUTPUT_LINES = 60  # of a case that failed

# A test in ctest's log: its name, output, seconds, and what became of it.
TEST = re.compile(r'^\d+/\d+ Test: (.*?)\n.*?\n-{10,}\n(.*?)<end of output>\nTest time = +[\d.]+ sec\n-{10,}\n(.*?)\n"',
                  re.DOTALL | re.MULTILINE)
CASE = re.compile(r'^\[ RUN      \] (\S+)\n(.*?)^\[ *(OK|FAILED|SKIPPED|CRASHED) *\] \1(.*?)$', re.DOTALL | re.MULTILINE)
COUNTS = re.compile(r'^cases: (\d+) passed, (\d+) failed, (\d+) skipped$', re.MULTILINE)


def tail(text):
    return '\n'.join(text.rstrip().splitlines()[-OUTPUT_LINES:])


def main(folder):
    with open(f'{folder}/Testing/Temporary/LastTest.log', errors='replace') as file:
        log = file.read()
    total = collections.Counter()
    skipped = collections.defaultdict(list)
    for test, output, status in TEST.findall(log):
        counts = COUNTS.findall(output)
        if counts:
            counts = dict(zip(('passed', 'failed', 'skipped'), map(int, counts[-1])))
        else:
            word = 'passed' if 'Test Passed.' in status else 'skipped' if 'kip' in status else 'failed'
            counts = {word: 1}
        total.update(counts)
        cases = CASE.findall(output)
        for case, said, word, rest in cases:
            if word == 'SKIPPED':
                skipped[said.split(': Skipped\n')[-1].strip()].append(case)
            elif word in ('FAILED', 'CRASHED'):
                print(f'--- {test}: {case} {word.lower()}{rest}\n{tail(said)}')
        if counts.get('skipped') and not cases:
            for reason in re.findall('skipped: (.*)', output) or [tail(output)]:
                skipped[reason].append(test)
        if counts.get('failed') and not any(word in ('FAILED', 'CRASHED') for _, _, word, _ in cases):
            print(f'--- {test} failed: {status}\n{tail(output)}')
    for reason, cases in skipped.items():
        print(f'skipped, {reason.splitlines()[-1] if reason else "without a reason"}: {", ".join(cases)}')
    print(f'{total["passed"]} passed, {total["failed"]} failed, {total["skipped"]} skipped')


main(sys.argv[1])
