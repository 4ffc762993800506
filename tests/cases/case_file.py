"""Reads case.yaml, and makes and reads what cases work on (run.py has the format)."""
import array
import json
import random
import re
import struct
import time

import yaml


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
    """Whether the process has ended, or does within five seconds; a zombie has."""
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


def tensors(data):
    """{name: values} of the bytes of a .safetensors file."""
    length = struct.unpack("<Q", data[:8])[0]
    found = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        kind = {"F32": "f", "F64": "d", "I64": "q", "I32": "i", "U8": "B", "I8": "b", "BF16": "H", "U16": "H"}[entry["dtype"]]
        values = array.array(kind, data[begin:end])
        if entry["dtype"] == "BF16":
            values = array.array("f", array.array("I", (value << 16 for value in values)).tobytes())
        found[name] = list(values)
    return found


def scalars(data, tag):
    """{step: value} of a tag in the bytes of a file of TensorBoard."""
    found = {}
    while data:
        length = struct.unpack("<Q", data[:8])[0]
        event, data = protobuf(data[12:12 + length]), data[16 + length:]
        value = protobuf(protobuf(event[5])[1]) if 5 in event else {}
        if value.get(1) == tag.encode():
            found[event[2]] = struct.unpack("<f", value[2])[0]
    return found
