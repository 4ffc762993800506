"""Checks texts, values and expressions against expectations (run.py has the format)."""
import ast
import difflib
import json
import re

from case_file import Map, as_list, check_keys

TEXT_KEYS = set("has lacks matches is starts ends num_lines columns each_line same_as differs_from json tensors".split())
VALUE_KEYS = set("near within rel above below at_least at_most has matches len missing".split())


def value_at(value, path):
    """The value at a.b[1]["c.d"], or at name.of.tensor[1]; KeyError or IndexError if it is not there."""
    name, bracket, index = path.partition("[")
    if name in value:
        value, path = value[name], bracket + index
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


def text_problems(expected, text, what):
    """The problems with a text."""
    if not isinstance(expected, Map):
        expected = Map(has=expected)
    check_keys(expected, TEXT_KEYS, "an expected text")
    problems = [f"{what} does not have {short(part)}" for part in as_list(expected.get("has")) if part not in text]
    problems += [f"{what} has {short(part)}" for part in as_list(expected.get("lacks")) if part in text]
    problems += [f"{what} does not match {pattern}" for pattern in as_list(expected.get("matches"))
                 if not re.search(pattern, text, re.MULTILINE)]
    if "is" in expected and text != expected["is"]:
        difference = list(difflib.unified_diff(expected["is"].splitlines(True), text.splitlines(True), "expected", "found"))
        problems.append(f"{what} differs:\n" + "".join(line if line.endswith("\n") else line + "\n\\ no newline\n"
                                                       for line in difference[:60]) + "..." * (len(difference) > 60))
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
        problems += json_problems(expected["json"], text, what)
    return problems


def json_problems(expected, text, what):
    try:
        return value_problems(expected, json.loads(text), what)
    except ValueError as error:
        return [f"{what} is not JSON: {error}"]


def value_problems(expected, whole, what):
    problems = []
    for path, wanted in expected.items():
        try:
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


def explain(expression, evaluate):
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
                lines.append(f"    {source} = {short(evaluate(source))}")
            except Exception as error:  # pylint: disable=broad-except
                lines.append(f"    {source}: {error!r}")
    return "\n".join(lines)
