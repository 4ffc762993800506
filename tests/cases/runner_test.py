#!/usr/bin/python3
"""runner_test.py: every kind of expectation of run.py passes where it holds, and fails with a readable line where it does not."""
import os
import subprocess
import sys
import tempfile

RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run.py")
# An expectation that holds, one that does not, and what is printed of it, for a step that writes two lines and JSON.
KINDS = [
    ("code: 3", "code: 4", "expected exit code 4, found 3"),
    ("code: [2, 3]", "code: [0, 1]", "expected exit code 0 or 1, found 3"),
    ("error: what it is", "error: what else", "the error does not have what else"),
    ("out: one", "out: three", "standard output does not have three"),
    ("out: {lacks: three}", "out: {lacks: one}", "standard output has one"),
    ("out: {matches: ^t.o$}", "out: {matches: ^t$}", "standard output does not match ^t$"),
    (r'out: {is: "one\ntwo\n"}', r'out: {is: "one\nthree\n"}', "-three"),
    ("out: {starts: one}", "out: {starts: two}", "standard output does not start with two"),
    (r'out: {ends: "two\n"}', r'out: {ends: "one\n"}', r"standard output does not end with 'one\n'"),
    ("out: {num_lines: 2}", "out: {num_lines: 3}", "standard output has 2 lines, not 3"),
    ("out: {columns: 3}", "out: {columns: 2}", "standard output has a line of 3 columns: one"),
    ('out: {each_line: "[a-z]+"}', 'out: {each_line: "[a-n]+"}', "a line does not match [a-n]+: one"),
    ("err: what it is", "err: {is: x}", "standard error differs"),
    ("after: {list.json: true}", "after: {list.json: false}", "list.json is there"),
    ("after: {absent: false}", "after: {absent: true}", "absent is not there"),
    ("after: {list.json: {same_as: same.json}}", "after: {list.json: {differs_from: same.json}}", "are equal"),
    ("after: {list.json: {json: {'a[1].b': 2}}}", "after: {list.json: {json: {'a[1].b': 3}}}", "a[1].b differs"),
    ("after: {list.json: {json: {a: {len: 2}}}}", "after: {list.json: {json: {a: {len: 3}}}}", "a is not len"),
    ("after: {list.json: {json: {c: {near: 1, within: 0.1}}}}", "after: {list.json: {json: {c: {near: 1, within: 0.01}}}}", "is not near"),
    ("after: {list.json: {json: {c: {above: 1, below: 2}}}}", "after: {list.json: {json: {c: {above: 2}}}}", "is not above"),
    ("after: {list.json: {json: {d: {missing: true}}}}", "after: {list.json: {json: {c: {missing: true}}}}", "c is there"),
    ("after: {t.safetensors: {tensors: {'a.b[1]': 2.5}}}", "after: {t.safetensors: {tensors: {'a.b[1]': 2}}}", "a.b[1] differs"),
    ("check: len(out) == 8", "check: len(out) == 9", "len(out) = 8"),
    ("check: isfinite(1)", "check: isfinite(nothing)", "cannot be computed"),
    ("signal: {send: TERM, after: one}", "signal: {send: TERM, after: three}", "standard output never had three"),
]
HEAD = r"""files:
  list.json: '{"a": [0, {"b": 2}], "c": 1.05}'
  same.json: '{"a": [0, {"b": 2}], "c": 1.05}'
  t.safetensors: !py 'b"\x40" + bytes(7) + b"{\"a.b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}".ljust(64) + b"\0\0\0\0\0\0 @"'
steps:
"""
BROKEN = [("- run: x\n  kode: 1", "'kode' is no key"), ("- check: [1 == 1]\n  out: x", "'out' is no key"),
          ("- check: {a: 1}", "expected an expression"), ("- run: x\n  code: 1\n  code: 2", "a key is given twice"),
          ("- refused: x\n  code: 1", "expected COMMAND => TEXT")]


def run(text):
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/case.yaml", "w", encoding="utf-8") as file:
            file.write(text)
        done = subprocess.run([RUNNER, "--program", "/bin/true", folder + "/"], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def steps(expectations):
    text = HEAD
    for expectation in expectations:
        text += f"- sh: |\n    echo one; echo two; echo 'error: what it is' >&2; sleep 0.1; exit 3\n  {expectation}\n"
        if not expectation.startswith("code"):
            text += "  code: " + ("SIGTERM" if "after: one" in expectation else "3") + "\n"
    return text


def main():
    code, output = run(steps(good for good, bad, printed in KINDS))
    wrong = [] if code == 0 else ["expectations that hold fail:\n" + output]
    code, output = run(steps(bad for good, bad, printed in KINDS))
    wrong += [f"'{bad}' does not print '{printed}'" for good, bad, printed in KINDS if printed not in output]
    if code != 1 or output.count("case.yaml:") != len(KINDS):
        wrong.append(f"exit code {code}, expected {len(KINDS)} failures:\n{output}")
    for step, printed in BROKEN:
        code, output = run(HEAD + step + "\n")
        wrong += [] if code == 1 and printed in output else [f"{step}: {code}\n{output}"]
    print("\n".join(wrong) or f"{len(KINDS)} kinds of expectations hold and fail, {len(BROKEN)} mistakes are named")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
