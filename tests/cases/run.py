#!/usr/bin/python3
"""run.py [--program FILE] [--jobs N] [--keep] [NAME...]: runs the cases tests/cases/NAME/case.yaml, all of them by default.

A case is a folder with a case.yaml: files, command lines of the built program, and what must be so afterwards. Each case
runs in a temporary folder of its own (--keep leaves it there), in which relative paths start. Exit code 0: all passed,
1: some failed, 77: everything was skipped.

    # What the case is about.
    uses: tiny                            # builders of builders.yaml: their files, values and steps come first
    let: {train: train --model start}     # values that texts below name as $train or ${train}
    files:                                # written before the first step; !bytes: \\xNN is that byte; !py, anywhere: an expression
      run.yaml: "max_steps: 3"
      bad.txt: !bytes "caf\\xE9"
      rows.jsonl: !py jsonl({"text": f"row {i}"} for i in range(9))
    steps:
    - claim: A run writes its model.      # printed if the step fails
      run: $train --config run.yaml       # tessera with these arguments, or `sh`: a script, in which tessera is in PATH
      out: {has: "{'loss': ", columns: 80}
      after: {out/model.safetensors: true, out/absent: false}
      check: [lines("out/metrics.jsonl")[-1]["loss"] < 4]
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
Expressions know out, err, result (standard output as JSON), names of let, keep and for, and the functions below: read, text,
load, lines, tensors, scalars, exists, files, errors, jsonl, sentences, near, exp,
float32, isfinite, gone.
"""
import argparse
import array
import ast
import concurrent.futures
import difflib
import glob
import itertools
import json
import math
import os
import pty
import random
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
TIME_LIMIT_S = 240
STILL_KEYS = set("claim only_if reason files remove edit after check keep".split())     # of a step that runs nothing
GROUP_KEYS = set("claim only_if reason files remove for steps".split())
STARTS = set("run sh refused".split())
STEP_KEYS = STILL_KEYS | STARTS | set("stdin env stdout terminal limits signal code error out err json".split())
CASE_KEYS = set("uses let env files steps".split())
TEXT_KEYS = set("has lacks matches is starts ends num_lines columns each_line same_as differs_from json tensors".split())
VALUE_KEYS = set("near within rel above below at_least at_most has matches len missing".split())


class Map(dict):
    """A mapping of the file, with its line there."""

    def __init__(self, items=(), line=0, **more):
        super().__init__(items, **more)
        self.line = line


class Py(str):
    """An expression."""


class Loader(yaml.SafeLoader):
    """YAML 1.2's values (no is a word, 1e-3 a number), no key twice."""
    yaml_implicit_resolvers = {}

    def mapping(self, node):
        self.flatten_mapping(node)
        pairs = self.construct_pairs(node, deep=True)
        found = Map(pairs, line=node.start_mark.line + 1)
        if len(found) != len(pairs):
            raise yaml.constructor.ConstructorError(None, None, "a key is given twice", node.start_mark)
        return found


for tag, pattern in (("bool", "true|false"), ("null", "null|~|"), ("int", "[-+]?[0-9]+"),
                     ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), ("merge", "<<")):
    Loader.add_implicit_resolver("tag:yaml.org,2002:" + tag, re.compile("(?:" + pattern + ")$"), None)
Loader.add_constructor("tag:yaml.org,2002:map", Loader.mapping)
Loader.add_constructor("tag:yaml.org,2002:float", lambda loader, node: float(node.value))
Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))
Loader.add_constructor("!py", lambda loader, node: Py(node.value))
Loader.add_constructor("!bytes", lambda loader, node: node.value.encode("latin-1"))


def read_yaml(path):
    with open(path, encoding="utf-8") as file:
        return yaml.load(file, Loader)


def as_list(value):
    return value if isinstance(value, list) else [] if value is None else [value]


def check_keys(mapping, known, what):
    for key in mapping:
        if key not in known:
            raise ValueError(f"line {mapping.line}: '{key}' is no key of {what}")


def sentences(count, seed=1):
    """Text of English-looking sentences, one per line."""
    words = "the model reads a weight from every small layer and token again before café it writes".split()
    draw = random.Random(seed)
    return "".join(" ".join(draw.choice(words) for _ in range(draw.randint(4, 11))) + ".\n" for _ in range(count))


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def gone(pid):
    """Whether the process has ended, or does within five seconds; one that nobody waits for has."""
    for _ in range(500):
        try:
            with open(f"/proc/{int(pid)}/stat", encoding="utf-8", errors="replace") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def protobuf(data):
    """{field: value} of a message, in which every field is there once at most: numbers, or bytes."""
    def varint(at):
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                return value, at

    found, at = {}, 0
    while at < len(data):
        key, at = varint(at)
        size, at = varint(at) if key & 7 in (0, 2) else ({1: 8, 5: 4}[key & 7], at)
        found[key >> 3] = size if key & 7 == 0 else data[at:at + size]
        at += size if key & 7 else 0
    return found


def value_at(value, path):
    """Of a.b[1]["c.d"]; KeyError or IndexError if it is not there."""
    for key, index, quoted in re.findall(r'([^.\[\]]+)|\[(-?\d+)\]|\["([^"]*)"\]', path):
        value = value[int(index) if index else key or quoted]
    return value


def short(value, limit=400):
    value = value if isinstance(value, str) and "\n" not in value else repr(value)
    return value if len(value) <= limit else value[:limit] + " ..."


def value_problem(expected, found):
    """Why `found` is not what is expected, or None."""
    if not (isinstance(expected, Map) and expected and set(expected) <= VALUE_KEYS):
        return None if expected == found and isinstance(expected, bool) == isinstance(found, bool) else "differs"
    for key, bound in expected.items():
        if key == "near":
            is_good = abs(found - bound) <= expected.get("within", 0) + expected.get("rel", 0) * abs(bound)
        else:
            is_good = {
                "above": lambda: found > bound, "below": lambda: found < bound, "at_least": lambda: found >= bound,
                "at_most": lambda: found <= bound, "len": lambda: len(found) == bound, "within": lambda: True,
                "rel": lambda: True, "missing": lambda: False, "has": lambda: all(part in found for part in as_list(bound)),
                "matches": lambda: re.search(bound, found)}[key]()
        if not is_good:
            return "is not " + key if key != "missing" else "is there"
    return None


class Case:
    def __init__(self, name, program, keep):
        self.name, self.program = name, program
        self.folder = tempfile.mkdtemp(prefix=f"tessera_case_{name}_")
        self.keep_folder = keep
        self.problems, self.skipped, self.num_commands = [], [], 0
        self.lock = threading.Lock()
        self.values = {"folder": self.folder, "program": program, "build": os.path.dirname(program), "source": SOURCE,
                       "case": os.path.join(HERE, name)}
        self.environment = dict(os.environ, XDG_CACHE_HOME=self.path(".cache"), PATH=os.path.dirname(program) + ":" +
                                os.environ.get("PATH", ""))
        self.functions = {
            "read": self.read, "text": lambda path: self.read(path).decode(), "jsonl": jsonl, "sentences": sentences,
            "load": lambda path: json.loads(self.read(path)), "exists": lambda path: os.path.lexists(self.path(path)),
            "lines": lambda path: [json.loads(line) for line in self.read(path).splitlines()], "tensors": self.tensors,
            "scalars": self.scalars, "float32": float32, "gone": gone,
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

    def tensors(self, name):
        """{name: values} of a .safetensors file."""
        data = self.read(name)
        length = struct.unpack("<Q", data[:8])[0]
        found = {}
        for tensor, entry in json.loads(data[8:8 + length]).items():
            if tensor == "__metadata__":
                continue
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            kind = {"F32": "f", "F64": "d", "I64": "q", "I32": "i", "U8": "B", "I8": "b", "BF16": "H", "U16": "H"}[entry["dtype"]]
            values = array.array(kind, data[begin:end])
            if entry["dtype"] == "BF16":
                values = array.array("f", array.array("I", (value << 16 for value in values)).tobytes())
            found[tensor] = list(values)
        return found

    def scalars(self, folder, tag):
        """{step: value} of a tag in TensorBoard's files of a folder."""
        found = {}
        for name in os.listdir(self.path(folder)):
            data = self.read(os.path.join(folder, name))
            while data:
                length = struct.unpack("<Q", data[:8])[0]
                event, data = protobuf(data[12:12 + length]), data[16 + length:]
                value = protobuf(protobuf(event[5])[1]) if 5 in event else {}
                if value.get(1) == tag.encode():
                    found[event[2]] = struct.unpack("<f", value[2])[0]
        return found

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

    def explain(self, expression, more):
        """The values of the operands of an expression."""
        tree = ast.parse(expression, mode="eval").body
        while isinstance(tree, ast.UnaryOp):
            tree = tree.operand
        parts = [tree]
        if isinstance(tree, ast.Compare):
            parts = [tree.left, *tree.comparators]
        elif isinstance(tree, ast.Call):
            parts = tree.args
        elif isinstance(tree, ast.BoolOp):
            parts = tree.values
        lines = []
        for part in parts:
            source = ast.get_source_segment(expression, part)
            if not isinstance(part, ast.Constant):
                try:
                    lines.append(f"    {source} = {short(self.evaluate(source, more))}")
                except Exception as error:  # pylint: disable=broad-except
                    lines.append(f"    {source}: {error!r}")
        return "\n".join(lines)

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
                process.stdin.write(step.get("stdin", b"") if isinstance(step.get("stdin"), bytes)
                                    else step.get("stdin", "").encode())
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
        with self.lock:
            self.num_commands += 1
        if wanted:
            self.problem(step, f"standard output never had {short(wanted[0]['after'])}, after which {wanted[0]['send']} was to be sent", argv)
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

    def text_problems(self, expected, text, what):
        """What is wrong with a text."""
        if not isinstance(expected, Map):
            expected = Map(has=expected)
        check_keys(expected, TEXT_KEYS, "an expected text")
        problems = [f"{what} does not have {short(part)}" for part in as_list(expected.get("has")) if part not in text]
        problems += [f"{what} has {short(part)}" for part in as_list(expected.get("lacks")) if part in text]
        problems += [f"{what} does not match {pattern}" for pattern in as_list(expected.get("matches"))
                     if not re.search(pattern, text, re.MULTILINE)]
        if "is" in expected and text != expected["is"]:
            difference = difflib.unified_diff(expected["is"].splitlines(True), text.splitlines(True), "expected", "found")
            problems.append(f"{what} differs:\n" + "".join(line if line.endswith("\n") else line + "\n\\ no newline\n"
                                                           for line in difference))
        if not text.startswith(expected.get("starts", "")):
            problems.append(f"{what} does not start with {short(expected['starts'])}: {short(text)}")
        if not text.endswith(expected.get("ends", "")):
            problems.append(f"{what} does not end with {short(expected['ends'])}: {short(text[-400:])}")
        lines = text.splitlines()
        if "num_lines" in expected and len(lines) != expected["num_lines"]:
            problems.append(f"{what} has {len(lines)} lines, not {expected['num_lines']}")
        problems += [f"{what} has a line of {len(line.encode())} columns: {line}" for line in lines
                     if len(line.encode()) > expected.get("columns", len(line.encode()))]
        problems += [f"{what}: a line does not match {expected['each_line']}: {line}" for line in lines
                     if "each_line" in expected and not re.fullmatch(expected["each_line"], line)]
        if "json" in expected:
            problems += self.json_problems(expected["json"], text, what)
        return problems

    def json_problems(self, expected, text, what):
        try:
            return self.value_problems(expected, json.loads(text), what)
        except ValueError as error:
            return [f"{what} is not JSON: {error}"]

    def value_problems(self, expected, whole, what):
        problems = []
        for path, wanted in expected.items():
            try:
                if isinstance(whole, Tensors):
                    match = re.fullmatch(r"(.*?)(\[.*\])?", path)
                    found = value_at(whole[match[1]], match[2] or "")
                else:
                    found = value_at(whole, path)
            except (KeyError, IndexError, TypeError):
                if not (isinstance(wanted, Map) and wanted.get("missing")):
                    problems.append(f"{what} has no {path}: {short(whole)}")
                continue
            try:
                wrong = value_problem(wanted, found)
            except TypeError as error:
                wrong = str(error)
            if wrong:
                problems.append(f"{what}: {path} {wrong}\n  expected {short(wanted, 2000)}\n  found    {short(found, 2000)}")
        return problems

    def file_problems(self, name, expected):
        path = self.path(name)
        if isinstance(expected, bool):
            is_there = bool(glob.glob(path)) or os.path.lexists(path)
            return [] if is_there == expected else [f"{name} is " + ("there" if is_there else "not there")]
        if not os.path.exists(path):
            return [f"{name} is not there"]
        data = self.read(name)
        content = data.decode(errors="backslashreplace")
        problems = self.text_problems(expected, content, name)
        if problems and "differs" not in problems[0]:
            problems.append(f"{name}: {short(content, 2000)}")
        if isinstance(expected, Map):
            for key in ("same_as", "differs_from"):
                if key in expected and (data == self.read(expected[key])) != (key == "same_as"):
                    problems.append(f"{name} and {expected[key]} are " + ("equal" if key != "same_as" else "different"))
            if "tensors" in expected:
                problems += self.value_problems(expected["tensors"], Tensors(self.tensors(name)), name)
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
                problems += self.text_problems(step[name], text, "standard " + {"out": "output", "err": "error"}[name])
        if "json" in step:
            problems += self.json_problems(step["json"], out, "standard output")
        for name, expected in step.get("after", {}).items():
            problems += self.file_problems(name, expected)
        more = {"out": out, "err": err, "code": code}
        for expression in as_list(step.get("check")):
            if not isinstance(expression, str):
                raise ValueError(f"line {step.line}: expected an expression, in quotes if it has a colon, found {expression}")
            try:
                if not self.evaluate(expression, more):
                    problems.append(f"not true: {expression}\n" + self.explain(expression, more))
            except Exception as error:  # pylint: disable=broad-except
                problems.append(f"cannot be computed: {expression}: {error!r}")
        try:
            for name, expression in step.get("keep", {}).items():
                self.values[name] = self.evaluate(expression, more)
        except Exception as error:  # pylint: disable=broad-except
            problems.append(f"cannot be kept: {expression}: {error!r}")
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
            case = read_yaml(os.path.join(HERE, self.name, "case.yaml"))
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


class Tensors(dict):
    """Values by the names of tensors, which may have dots."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(SOURCE, "build/release/tessera"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    known = sorted(os.path.basename(os.path.dirname(path)) for path in glob.glob(HERE + "/*/case.yaml"))
    unknown = [name for name in arguments.names if name not in known]
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
            print(f"{'FAILED' if case.problems else 'passed'} {case.name}: {case.num_commands} commands, {case.seconds:.1f} s")
    failed = sum(1 for case in cases if case.problems)
    print(f"{len(cases) - failed} passed, {failed} failed")
    if failed:
        return 1
    return 77 if all(case.skipped and case.num_commands == 0 for case in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
