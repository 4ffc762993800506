#!/usr/bin/python3
"""run.py [--program FILE] [--jobs N] [--keep] [NAME...]: runs the cases tests/cases/NAME/case.yaml, all of them by
default. A NAME with a slash is a folder elsewhere.

A case is a folder with a case.yaml: files, command lines of the built program, and what must be so afterwards. Each case
runs in a temporary folder of its own (--keep leaves it there), in which relative paths start. Exit code 0: all passed,
1: some failed, 77: everything was skipped.

    # The subject of the case.
    uses: tiny                            # builders of builders.yaml: their files, values and steps come first
    let: {train: train --model start}     # values that texts below name as $train or ${train}
    files:                                # written first; !bytes: \\xNN is that byte; !py, anywhere: an expression
      run.yaml: "max_steps: 3"
      bad.txt: !bytes "caf\\xE9"
      rows.jsonl: !py 'jsonl({"text": f"row {i}"} for i in range(9))'
    steps:
    - claim: A run writes its model.      # printed if the step fails
      run: $train --config run.yaml       # tessera with these arguments, or `sh`: a script, in which tessera is in PATH
      out: {has: "{'loss': ", columns: 80}
      after: {out/model.safetensors: true, out/absent: false}
      check: lines("out/metrics.jsonl")[-1]["loss"] < 4
    - refused: |                          # many wrong command lines with the one error line that each must get
        train                   => missing --model
        train --model m         => missing --dataset
      code: 64

Keys of a step, all optional:
  run, sh, refused      what to run; `refused` expects nothing on standard output unless `out` says otherwise
  claim, only_if        a sentence, also of inner steps; an expression: if it is false, the step is skipped (for the `reason`)
  for, steps            {name: [values]}: the steps once per combination; `steps` without `for` is a group
  files, remove         files (NAME/: a folder) to write, and paths to delete, before the command
  edit                  {file: statements}: a file of JSON, which the statements (Python) know as `it`, is changed
  stdin, env            text; {NAME: value}, null removes a variable; `env` may also be of the case
  stdout, terminal      a file, or `closed`: a pipe without reader; true: standard error is a terminal
  limits                {file_bytes, address_bytes, open_files, processors: 1}
  signal                {send: INT, after: PATTERN}: sent when standard output has the PATTERN, or a list; delay_s: later
  code                  the exit code (default 0), or the signal that ends the program, such as SIGINT; a list: one of them
  error                 the only line "error: ..." has this text; without it, a step of exit code 0 must have no such line
  out, err              what the output must be, see below
  json                  {path: value} of standard output as JSON, see below
  after                 {path: ...}: true, false (there, not there), or what the file must be
  check                 expressions (Python) that must be true; values of the operands are printed if not
  keep                  {name: expression}: values for later steps

A text (out, err, a file) is a string or list of strings that it must have, or a mapping of
  has, lacks, matches (strings, strings, regular expressions), is, starts, ends, num_lines, columns (at most),
  each_line (a regular expression for whole lines); of files also same_as, differs_from (paths), json, tensors
json and tensors are {path: value}, such as clusters[1].racks or model.norm.weight[0]. A value is compared as it is, or is a
mapping of near (with within or rel), above, below, at_least, at_most, has, matches, len, missing: true.
Texts and expressions know folder (of the case's files), case (its own), source (the tree), build and program. Expressions know
out, err, result (standard output as JSON), the names of let, keep and for, and the functions of Case.__init__().
"""
import argparse
import concurrent.futures
import glob
import itertools
import json
import math
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from case_file import Map, Py, as_list, check_keys, float32, gone, jsonl, read_yaml, scalars, sentences, tensors
from expectations import explain, json_problems, short, text_problems, value_problems

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
TIME_LIMIT_S = 240
STILL_KEYS = set("claim only_if reason files remove edit after check keep".split())     # of a step that runs nothing
GROUP_KEYS = set("claim only_if reason files remove for steps".split())
STARTS = set("run sh refused".split())
STEP_KEYS = STILL_KEYS | STARTS | set("stdin env stdout terminal limits signal code error out err json".split())
CASE_KEYS = set("uses let env files steps".split())


class Case:
    def __init__(self, name, program, keep):
        self.source = os.path.abspath(name) if "/" in name else os.path.join(HERE, name)
        self.name, self.program = os.path.basename(self.source), program
        self.folder = tempfile.mkdtemp(prefix=f"tessera_case_{self.name}_")
        self.keep_folder = keep
        self.problems, self.skipped, self.num_steps = [], [], 0
        self.lock = threading.Lock()
        self.values = {"folder": self.folder, "program": program, "build": os.path.dirname(program), "source": SOURCE,
                       "case": self.source}
        self.environment = dict(os.environ, XDG_CACHE_HOME=self.path(".cache"), PATH=os.path.dirname(program) + ":" +
                                os.environ.get("PATH", ""))
        self.functions = {
            "read": self.read, "text": lambda path: self.read(path).decode(), "jsonl": jsonl, "sentences": sentences,
            "load": lambda path: json.loads(self.read(path)), "exists": lambda path: os.path.lexists(self.path(path)),
            "lines": lambda path: [json.loads(line) for line in self.read(path).splitlines()], "tensors": lambda path: tensors(self.read(path)),
            "scalars": lambda folder, tag: {step: value for path in glob.glob(self.path(folder) + "/*")
                                            for step, value in scalars(self.read(path), tag).items()},
            "float32": float32, "gone": gone,
            "files": lambda pattern: sorted(os.path.relpath(path, self.folder) for path in glob.glob(self.path(pattern),
                                                                                                 recursive=True)),
            "errors": lambda text: [line[7:] for line in text.splitlines() if line.startswith("error: ")],
            "near": lambda a, b, within: abs(a - b) <= within, "exp": math.exp, "isfinite": math.isfinite,
            "json": json, "re": re, "math": math, "time": time, "os": os, "glob": glob.glob}

    # Files.

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def write_files(self, files):
        for name, content in (files or {}).items():
            path = self.path(self.expand(name))
            content = self.expand(content)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if path.endswith("/"):
                continue
            with open(path, "wb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())

    # Values.

    def expand(self, value):
        """The value with expressions evaluated, and with the known names after $ replaced."""
        if isinstance(value, Py):
            return self.evaluate(value)
        if isinstance(value, str):
            return re.sub(r"\$(?:(\w+)|\{(\w+)\})",
                          lambda match: str(self.values.get(match[1] or match[2], match[0])), value)
        if isinstance(value, list):
            return [self.expand(item) for item in value]
        if isinstance(value, Map):
            return Map(((self.expand(key), self.expand(item)) for key, item in value.items()), line=value.line)
        return value

    def names(self, more=None):
        names = {**self.functions, **self.values, **(more or {})}
        if "out" in names and names["out"][:1] in ("{", "["):
            try:
                names["result"] = json.loads(names["out"])
            except ValueError:
                pass
        return names

    def evaluate(self, expression, more=None):
        return eval(expression, self.names(more))  # pylint: disable=eval-used

    # Processes.

    def start(self, argv, step):
        """Runs a command to its end: exit code or name of the signal, standard output, standard error."""
        limits = step.get("limits", {})
        if limits.get("processors"):
            argv = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *argv]
        flags = [f"--{name}={limits[key]}:{limits[key]}"
                 for key, name in (("file_bytes", "fsize"), ("address_bytes", "as"), ("open_files", "nofile")) if key in limits]
        if "open_files" in limits:
            flags[-1] = flags[-1].rsplit(":", 1)[0] + ":"
        if flags:
            argv = ["prlimit", *flags, *argv]
        environment = dict(self.environment)
        for name, value in step.get("env", {}).items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = str(value)
        out_read, out_write = os.pipe()
        err_read, err_write = pty.openpty() if step.get("terminal") else os.pipe()
        redirected = step.get("stdout")
        if redirected == "closed":
            os.close(out_read)
        with open(out_write if redirected in (None, "closed") else self.path(redirected), "wb") as out:
            process = subprocess.Popen(argv, cwd=self.folder, env=environment, stdin=subprocess.PIPE, stdout=out,
                                       stderr=err_write, process_group=0)
        os.close(err_write)
        if redirected not in (None, "closed"):
            os.close(out_write)
        texts, wanted = {"out": b"", "err": b""}, list(as_list(step.get("signal")))
        state = threading.Lock()

        def follow(name, descriptor):
            while True:
                try:
                    piece = os.read(descriptor, 65536)
                except OSError:  # a terminal whose other side is closed
                    piece = b""
                if not piece:
                    break
                with state:
                    texts[name] += piece
                    while wanted and re.search(wanted[0]["after"].encode(), texts["out"]):
                        time.sleep(wanted[0].get("delay_s", 0))
                        process.send_signal(getattr(signal, "SIG" + wanted.pop(0)["send"]))
            os.close(descriptor)

        def feed():
            try:
                text = step.get("stdin", "")
                process.stdin.write(text if isinstance(text, bytes) else text.encode())
                process.stdin.close()
            except BrokenPipeError:
                pass

        threads = [threading.Thread(target=follow, args=("err", err_read)), threading.Thread(target=feed)]
        if redirected != "closed":
            threads.append(threading.Thread(target=follow, args=("out", out_read)))
        for thread in threads:
            thread.start()
        try:
            code = process.wait(TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            self.problem(step, f"the command ran for more than {TIME_LIMIT_S} s", argv)
        for thread in threads:
            thread.join()
        if wanted:
            self.problem(step, f"standard output never had {short(wanted[0]['after'])}: no {wanted[0]['send']} was sent", argv)
        return (code if code >= 0 else signal.Signals(-code).name, texts["out"].decode(errors="backslashreplace"),
                texts["err"].decode(errors="backslashreplace"))

    # Expectations.

    def problem(self, step, message, argv=None, outcome=None):
        lines = [f"{self.name}/case.yaml:{getattr(step, 'line', '?')}: " + step.get("claim", "")]
        if argv:
            lines.append("  $ " + " ".join(shlex.quote(word) for word in argv))
        lines.append("  " + message.replace("\n", "\n  "))
        if outcome:
            for name, text in zip(("exit code", "standard output", "standard error"), outcome):
                shown = str(text).splitlines()
                lines += [f"  {name}: " + ("" if len(shown) != 1 else short(shown[0], 1000))]
                if len(shown) > 1 and f"{name} differs:" not in message:
                    lines += ["    | " + line for line in (["..."] if len(shown) > 30 else []) + shown[-30:]]
        with self.lock:
            self.problems.append("\n".join(lines))

    def file_problems(self, name, expected):
        path = self.path(name)
        if isinstance(expected, bool):
            is_there = bool(glob.glob(path)) or os.path.lexists(path)
            return [] if is_there == expected else [f"{name} is " + ("there" if is_there else "not there")]
        if not os.path.exists(path):
            return [f"{name} is not there"]
        data = self.read(name)
        content = data.decode(errors="backslashreplace")
        problems = text_problems(expected, content, name)
        if problems and "differs" not in problems[0]:
            problems.append(f"{name}: {short(content, 2000)}")
        if isinstance(expected, Map):
            for key in ("same_as", "differs_from"):
                if key in expected and (data == self.read(expected[key])) != (key == "same_as"):
                    problems.append(f"{name} and {expected[key]} are " + ("equal" if key != "same_as" else "different"))
            if "tensors" in expected:
                problems += value_problems(expected["tensors"], tensors(data), name)
        return problems

    def expect(self, step, argv, outcome):
        code, out, err = outcome
        problems = []
        wanted = as_list(step.get("code", 0))
        if code not in wanted:
            problems.append(f"expected exit code {' or '.join(map(str, wanted))}, found {code}")
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        if "error" in step:
            if len(errors) != 1 or not err.endswith("\n"):
                problems.append(f"expected one line of error, found {len(errors)}")
            problems += [f"the error does not have {short(part)}" for part in as_list(step["error"])
                         if not any(part in line for line in errors)]
        elif wanted == [0] and errors and "err" not in step:
            problems.append("the program succeeded with an error")
        for name, text in (("out", out), ("err", err)):
            if name in step:
                problems += text_problems(step[name], text, "standard " + {"out": "output", "err": "error"}[name])
        if "json" in step:
            problems += json_problems(step["json"], out, "standard output")
        for name, expected in step.get("after", {}).items():
            problems += self.file_problems(name, expected)
        more = {"out": out, "err": err, "code": code}
        for expression in as_list(step.get("check")):
            if not isinstance(expression, str):
                raise ValueError(f"line {step.line}: expected an expression, in quotes if it has a colon, found {expression}")
            try:
                if not self.evaluate(expression, more):
                    problems.append(f"not true: {expression}\n" + explain(expression, lambda part: self.evaluate(part, more)))
            except Exception as error:  # pylint: disable=broad-except
                problems.append(f"cannot be computed: {expression}: {error!r}")
        try:
            for name, expression in step.get("keep", {}).items():
                self.values[name] = self.evaluate(expression, more)
        except Exception as error:  # pylint: disable=broad-except
            problems.append(f"cannot be kept: {expression}: {error!r}")
        with self.lock:
            self.num_steps += 1
        if problems:
            self.problem(step, "\n".join(problems), argv, outcome if argv else None)

    # Steps.

    def run_step(self, step):
        check_keys(step, GROUP_KEYS if "steps" in step else STEP_KEYS if STARTS & set(step) else STILL_KEYS, "such a step")
        if "only_if" in step and not self.evaluate(step["only_if"]):
            self.skipped += as_list(self.expand(step.get("reason")))
            return
        for path in as_list(self.expand(step.get("remove"))):
            shutil.rmtree(self.path(path)) if os.path.isdir(self.path(path)) else os.remove(self.path(path))
        self.write_files(step.get("files"))
        if "steps" in step:
            self.run_group(step)
            return
        for name, statements in step.get("edit", {}).items():
            path = self.path(self.expand(name))
            changed = json.loads(self.read(path))
            exec(statements, self.names({"it": changed}))  # pylint: disable=exec-used
            self.write_files({path: json.dumps(changed)})
        step = self.expand(Map({key: value for key, value in step.items() if key not in ("files", "edit")}, line=step.line))
        if "refused" in step:
            self.run_table(step)
        elif "run" in step or "sh" in step:
            argv = ["tessera", *shlex.split(step["run"])] if "run" in step else ["/bin/sh", "-c", step["sh"]]
            self.expect(step, argv, self.start(argv, step))
        else:
            self.expect(step, None, (0, "", ""))

    def run_group(self, step):
        choices = {name: self.expand(values) for name, values in step.get("for", {}).items()}
        for combination in itertools.product(*choices.values()):
            self.values.update(zip(choices, combination))
            before = len(self.problems)
            for inner in step["steps"]:
                inner.setdefault("claim", step.get("claim", ""))
                self.run_step(inner)
            if choices and len(self.problems) > before:
                self.problems[before] = f"with {dict(zip(choices, combination))}:\n" + self.problems[before]

    def run_table(self, step):
        def run_line(line):
            command, *text = re.split(r"(?:^|\s+)=> ", line, maxsplit=1)
            if not text:
                raise ValueError(f"line {step.line}: expected COMMAND => TEXT, found '{line}'")
            argv = ["tessera", *shlex.split(command)]
            row = Map(step, error=text[0].strip(), out=step.get("out", Map({"is": ""})), line=step.line)
            self.expect(row, argv, self.start(argv, row))

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(run_line, [line for line in step["refused"].splitlines() if line.strip()]))

    def run(self):
        begin = time.monotonic()
        try:
            case = read_yaml(os.path.join(self.source, "case.yaml"))
            check_keys(case, CASE_KEYS, "a case")
            builders = read_yaml(os.path.join(HERE, "builders.yaml"))
            for part in [builders[name] for name in as_list(case.get("uses"))] + [case]:
                for name, value in part.get("let", {}).items():
                    self.values[name] = self.expand(value)
                self.environment.update(self.expand(part.get("env", Map())))
                self.write_files(part.get("files"))
                for step in part["steps"]:
                    self.run_step(step)
        except Exception as error:  # pylint: disable=broad-except
            self.problems.append(f"{self.name}/case.yaml: {type(error).__name__}: {error}")
        finally:
            if self.keep_folder:
                print(f"{self.name}: {self.folder}")
            else:
                shutil.rmtree(self.folder, ignore_errors=True)
        self.seconds = time.monotonic() - begin
        return self


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(SOURCE, "build/release/tessera"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    known = sorted(os.path.basename(os.path.dirname(path)) for path in glob.glob(HERE + "/*/case.yaml"))
    unknown = [name for name in arguments.names if "/" not in name and name not in known]
    if unknown:
        sys.exit(f"error: {unknown[0]}: no such case; there are {', '.join(known)}")
    program = os.path.abspath(arguments.program)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(Case(name, program, arguments.keep).run) for name in arguments.names or known]
        cases = []
        for done in concurrent.futures.as_completed(running):
            case = done.result()
            cases.append(case)
            for problem in case.problems:
                print(problem, flush=True)
            for reason in case.skipped:
                print(f"{case.name}: skipped: {reason}")
            print(f"{'FAILED' if case.problems else 'passed'} {case.name}: {case.num_steps} steps, {case.seconds:.1f} s")
    failed, skipped = (sum(len(found) for found in lists) for lists in zip(*((case.problems, case.skipped) for case in cases)))
    passed = max(0, sum(case.num_steps for case in cases) - failed)
    print(f"cases: {passed} passed, {failed} failed, {skipped} skipped")     # scripts/test_report.py counts steps
    return 1 if failed else 77 if skipped and not passed else 0


if __name__ == "__main__":
    sys.exit(main())
