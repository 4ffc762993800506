#!/usr/bin/env python3
"""Writes vectors.json beside itself: templates with what Jinja2 renders, set up as Transformers sets it up.

    apt-get install python3-jinja2      # or: pip install jinja2
    tests/data/jinja/make_vectors.py [--check]

--check only compares; it exits with 77 where Jinja2 is missing.
"""
import datetime
import json
import pathlib
import sys

try:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("skipped: Jinja2 is not installed")
    sys.exit(77)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda text: datetime.datetime(2025, 1, 15, 12, 34, 56).strftime(text)
    return env


CONTEXT = {
    "messages": [
        {"role": "system", "content": "  Be terse. "},
        {"role": "user", "content": "Größe? 漢字 😀 \"x\" <b> & 'y'\n"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": [1.5, True, None]}}}]},
        {"role": "tool", "content": "ok", "tool_call_id": "c1"},
        {"role": "assistant", "content": [{"type": "text", "text": "one"}, {"type": "image"}]},
    ],
    "numbers": [3, 1, 2, 10, -4],
    "floats": [1.0, 0.5, 1e16, 1e-5, 123456789.125, -0.0],
    "words": ["banana", "Apple", "cherry", "apple", "éclair"],
    "table": [{"k": "b", "v": 2}, {"k": "A", "v": 1}, {"k": "a", "v": 3}, {"k": "B"}],
    "d": {"z": 1, "a": "two", "items": 5, "nested": {"x": [10, 20, {"y": "deep"}]}},
    "text": "Hello, World and all the rest of it",
    "lines": "first\n\n  second\r\nthird\u2028fourth",
    "unicode": "ÀÉîß ǆ ﬁ İstanbul ΑΣ 漢字 😀é",
    "empty": "", "zero": 0, "nothing": None, "yes": True, "no": False, "i": 42, "f": 2.5, "n": -7,
    "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "tools": None,
}

EXPRESSIONS = """
1 + 2 * 3 - 4
7 / 2
7 // 2, -7 // 2, 7 // -2, -7 % 3, 7 % -3, 7.5 // 2, -7.5 % 2
2 ** 10, 2 ** -1, 2 ** 3 ** 2, -2 ** 2, 2.0 ** 3
(-2) ** 2, (2 + 3) * 4
1 == 1.0, true == 1, "1" == 1, none == false, [1] == [1.0], (1,) == [1], {"a": 1} == {"a": 1.0}
1 < 2 < 3, 1 < 3 < 2, 1 != 2 != 1
"a" < "b", [1, 2] < [1, 3], (1, "a") <= (1, "a"), "é" > "z"
1 in [1, 2], "a" in "abc", "z" not in d, 2 in (1, 2), "a" in d, 3 in range(5), 1.0 in numbers
"a" ~ 1 ~ none ~ true ~ 1.5 ~ [1, "x"]
not yes, not no and yes, no or "x", yes and 0, "" or none or []
1 if yes else 2, 1 if no, (1 if no) is undefined
"a" if no else "b" if no else "c"
i is even, i is odd, 9 is divisibleby 3, i is divisibleby(5), i is not even
missing is defined, missing is undefined, messages is defined, nothing is none, nothing is not none
yes is boolean, 1 is boolean, yes is true, 1 is true, no is false, i is integer, yes is integer, f is float, yes is number
"a" is string, d is mapping, d is sequence, "a" is sequence, words is iterable, 5 is iterable, range is callable, i is callable
"abc" is lower, "ABC" is upper, "Abc" is lower, "" is lower, 3 is in [1, 2, 3], "a" is in "abc", i is sameas 42, none is sameas none
i is eq 42, i is ne 1, i is gt 1, i is ge 42, i is lt 1, i is le 1, i is equalto 42, "tojson" is filter, "eq" is test, "nope" is filter
1.0, 1e16, 1e15, 1e-4, 1e-5, 0.1 + 0.2, 1e100, 123456789.125, -0.0, 5e-324, 1.5e300 * 1e10
floats
[1, 2.5, "it's", 'q"', 'both\\'"', none, true, (1,), (), {}, {"a": [1]}]
"\\n\\t\\\\ \\x41 \\u00e9 \\U0001F600 \\101 \\q" "joined" 'too'
"tab\\t nul\\x01 del\\x7f nbsp\\xa0 zwsp\\u200b é" | list
["tab\\t nul\\x01 del\\x7f nbsp\\xa0 zwsp\\u200b é \\ue000"]
1_000, 0x1F, 0b101, 0o17, 1_0.5_0, 1e3
numbers[0], numbers[-1], numbers[99], numbers["x"], numbers[1:3], numbers[::-1], numbers[-2:], numbers[:-2], numbers[::2], numbers[10:], numbers[3:1]
text[0], text[-1], text[1:4], text[::-1], text[::3], text[5:1:-1], text[99:], text[-5:]
unicode[0], unicode[-1], unicode[1:4], unicode[::-1], unicode[3:], unicode[-4:-1], unicode | length
d.a, d["a"], d.items, d["items"], d.nested.x[2].y, d["nested"]["x"][-1]["y"], d.missing, d["missing"]
d.items() | list, d.keys() | list, d.values() | list, d.get("a"), d.get("q"), d.get("q", 7), d | length
d.items(), d.keys(), d.values()
d.keys
messages[1].content, messages[1]["content"] | length, messages | length, messages[2].tool_calls[0].function.arguments.b
(1, 2, 3)[1], (1, 2)[5], [1, 2].0, words.1
range(3), range(1, 10, 3) | list, range(5, 0, -2) | list, range(3)[1], range(10)[2:8:2], range(0) | list
namespace(a=1), namespace({"x": 2}, y=3).x, dict(a=1, b=2), dict([["a", 1]], c=3), dict(d, a=0) | length
[] + [1] + [2, 3], (1,) + (2,), [0] * 3, "ab" * 3, 3 * "ab", [1] * -1
"%s is %d and %05.2f or %x|%-6s|%6s|%+d|%e|%r|%c|%%" % ("it", 42.9, 3.14159, 255, "ab", "cd", 5, 12345.678, "r", 65)
"%(a)s-%(z)03d" % d, "%s" % "x", "%s" % 1, "%s" % [1], "%.3s|%5.1f|%g|%g|%G" % ("abcdef", 2.25, 1e10, 0.0001, 1e-10)
"{} {1}".format(1, 2), 5
"{} {} {name} {0!r}".format("a", 1, name="n"), 5
"{0} {1} {name} {0!r}".format("a", 1, name="n"), "{:>8}|{:<8}|{:^8}|{:*^9}".format("ab", "cd", "ef", "g"), "{:05d} {:+.2f} {:,} {:x} {:#x} {:b} {:%} {:.3}".format(42, 1.5, 1234567, 255, 255, 5, 0.25, "abcdef")
"{0[a]} {0[nested][x][0]} {x.z} {{}}".format(d, x=d)
"<{:>{w}}>".format("a", w=5), "{:{}}|{}".format("a", 3, "b")
"{:#06x} {:#b} {:_x} {:010,} {:08,.2f}".format(255, 5, 1048576, 1234567, 1234.5), "%#06x|%#.4x|%08.3d|%#.0e|%#g" % (255, 255, -42, 2.0, 1.5)
"{:3}|{:.3}|{:.3}|{:.3}|{:.3}|{:05}|{:<05}|{:^05}".format(true, 2.0, 100.0, 1234.5, 0.5, "ab", 7, -1.5), "{:+05.0f}|{:n}|{:n}".format(-7, 1234, 1.5)
" ab ".strip(), " ab ".lstrip(), " ab ".rstrip(), "xxabxx".strip("x"), "abc".strip("ca"), "\\u3000a\\u00a0".strip()
"a,b,,c".split(","), " a  b c ".split(), "a b c d".split(" ", 2), "a b c d".rsplit(" ", 1), " a b c ".split(none, 1), " a  b  c ".rsplit(none, 1), "".split(), "".split(",")
"abc".startswith("ab"), "abc".endswith(("x", "c")), "abc".startswith("b", 1), "abc".startswith("", 5), "abc".startswith("a", -3, 2)
"aXbXc".replace("X", "-"), "aXbXc".replace("X", "-", 1), "abc".replace("", "."), "abc".replace("", ".", 2), "".replace("", "x")
"Hello".upper(), "Hello".lower(), "hello world it's".title(), "hELLO".capitalize(), "Hello".swapcase(), "Straße".casefold()
unicode.upper(), unicode.lower(), unicode.title(), unicode.capitalize(), unicode.swapcase(), unicode.casefold()
"ΑΣ ΣΑΣ".lower(), "ΑΣ".capitalize(), "ǆ".title(), "ﬁn".capitalize(), "ß".upper(), "ŉ".title()
text.find("o"), text.rfind("o"), text.find("zz"), text.index("W"), text.count("l"), "aaa".count("aa"), "abc".count(""), unicode.find("漢"), "héhé".find("h", 1), "abc".find("", 3), "abc".find("", 4)
"12".isdigit(), "1a".isdigit(), "٣".isdigit(), "²".isdigit(), "²".isdecimal(), "½".isnumeric(), "ab".isalpha(), "a1".isalnum(), " ".isspace(), "".isspace(), "漢".isalpha()
"ab".islower(), "AB".isupper(), "Ab C".istitle(), "ab".isidentifier(), "1b".isidentifier(), "a\\n".isprintable(), "é".isascii()
"a-b-c".partition("-"), "a-b-c".rpartition("-"), "abc".partition("x"), "abc".rpartition("x")
"-".join(["a", "b"]), ", ".join(d), "".join("abc"), "-".join([])
"abc".removeprefix("a"), "abc".removesuffix("c"), "abc".removeprefix("x")
"7".zfill(3), "-7".zfill(4), "ab".center(7, "*"), "abc".center(6), "ab".ljust(4) ~ "|", "ab".rjust(4), "a\\tb".expandtabs(4)
lines.splitlines(), lines.splitlines(true), "a\\n".splitlines(), "".splitlines(), "\\n".splitlines()
numbers.index(2), numbers.count(1), (1, 2).index(2), [1, 1.0, true].count(1)
-5 | abs, -2.5 | abs, numbers | map("abs") | list
text | attr("upper"), 5
d | attr("a") is undefined, d | attr("items") is callable
numbers | batch(2) | list, numbers | batch(3, 0) | list, [] | batch(2) | list
numbers | slice(3) | list, numbers | slice(3, "x") | list, numbers | slice(2) | map("length") | list
"hello WORLD" | capitalize, "ab" | center(6) ~ "|", "hello wOrld-foo (bar) it's" | title, "" | title, "a  b" | title
missing | default("x"), missing | d, "" | default("x"), "" | default("x", true), none | d("y"), none | d("y", boolean=true), d.q | default(7)
d | dictsort, {"b": 1, "A": 2, "a": 0} | dictsort, {"b": 1, "A": 2} | dictsort(true), {"b": 1, "A": 2} | dictsort(by="value", reverse=true)
"<a href='x'>&\\"</a>" | e, 5 | escape, ("<" | e) + "<", "<" ~ ("<" | safe), "<b>" + ("x" | safe), ("<" | safe) + "<", ("a" | safe) | upper, ("<x>" | e) | replace("&", "+"), "<" | safe | e, "<" | safe | forceescape
"%s-%s" | format("a", 1), "%(x)s" | format(x=5)
1000000 | filesizeformat, 1 | filesizeformat, 999 | filesizeformat, 1048576 | filesizeformat(true), 1500 | filesizeformat
words | first, words | last, "abc" | first, "abc" | last, [] | first is undefined, [] | last is undefined, d | first, {"a": 1} | last
"3.7" | float, "x" | float, "x" | float(1.5), "1e3" | float, 3 | float, " 2 " | float, "inf" | float, "1_0" | float, none | float
"42" | int, "42.9" | int, "x" | int, "x" | int(7), "0x1f" | int(base=16), "ff" | int(0, 16), "101" | int(base=2), 3.9 | int, -3.9 | int, true | int, " 12 " | int, "1_000" | int, "+5" | int, none | int, "" | int(3), "1e3" | int
table | groupby("k") | list
table | groupby("k", case_sensitive=true) | map(attribute="grouper") | list, table | groupby("v", default=0) | map("first") | list, (table | groupby("k"))[0].list
"a\\nb\\n\\nc" | indent, "a\\nb\\n\\nc" | indent(2, true), "a\\n\\nb" | indent(2, blank=true), "a\\nb" | indent("> "), "a\\nb\\n" | indent, "" | indent(first=true)
d | items | list, missing | items | list
words | join, words | join(", "), numbers | join("-"), table | join(",", attribute="k"), "abc" | join("."), [] | join("x"), [1, none, true, 1.0] | join(" "), d | join
"abc" | length, words | count, d | length, missing | length, unicode | count
"abc" | list, d | list, range(3) | list, missing | list, d.items() | list
"ABC" | lower, "abc" | upper, 5 | upper, none | lower, [1] | upper
words | map("upper") | join(","), table | map(attribute="v") | list, table | map(attribute="v", default=0) | list, table | map(attribute="q.r", default="-") | list, messages | map(attribute="role") | join(" "), words | map("replace", "a", "o") | list, words | map("truncate", 4, true, "") | list
numbers | max, numbers | min, words | min, words | max, words | max(case_sensitive=true), table | selectattr("v", "defined") | max(attribute="v"), [] | max is undefined
numbers | select("odd") | list, numbers | select("gt", 1) | list, numbers | reject("odd") | list, [0, 1, "", "x", none] | select | list, [0, 1, ""] | reject | list, numbers | select(">", 2) | list, words | select("in", ["Apple", "x"]) | list
messages | selectattr("role", "equalto", "user") | map(attribute="content") | list, messages | rejectattr("role", "in", ["user", "system"]) | map(attribute="role") | list, table | selectattr("v") | list, table | selectattr("v", "undefined") | list, messages | selectattr("role", "==", "tool") | first
"aXb" | replace("X", "-"), "aaa" | replace("a", "b", 2), 121 | replace(1, "x"), "x" | replace("", "-")
"abc" | reverse, numbers | reverse | list, d | reverse | list, (1, 2) | reverse | list
2.5 | round, 3.5 | round, 2.675 | round(2), 2.7 | round(0, "floor"), 2.1 | round(0, "ceil"), 42 | round, 1234 | round(-2), 1250 | round(-2), 1350 | round(-2), 2.345 | round(2, "floor"), -2.5 | round, 1e20 | round, 2 | round(1, "ceil")
numbers | sort, numbers | sort(reverse=true), words | sort, words | sort(case_sensitive=true), table | sort(attribute="k") | map(attribute="k") | list, table | selectattr("v", "defined") | sort(attribute="v,k", reverse=true) | map(attribute="v") | list, messages | sort(attribute="role") | map(attribute="role") | list, d | sort, "hello" | sort
5 | string, none | string, [1] | string, ("<" | safe) | string
numbers | sum, table | selectattr("v", "defined") | sum(attribute="v"), [[1], [2]] | sum(start=[]), [1.5, 2] | sum, [] | sum
"  x  " | trim, "xxaxx" | trim("x"), 5 | trim, "\\n a \\n" | trim
text | truncate(12), text | truncate(12, true), text | truncate(12, false, "!"), text | truncate(33), text | truncate(30, leeway=0), "short" | truncate(3, true, ""), text | truncate(10, end="", leeway=0)
words | unique | list, numbers | unique | list, [1, 1.0, true, "1"] | unique | list, words | unique(true) | list, table | unique(attribute="k") | map(attribute="k") | list
"a b/c?d=é&x~" | urlencode, {"a b": "c/d", "e": 1} | urlencode, [["x", "y z"]] | urlencode, 5 | urlencode
text | wordcount, "" | wordcount, "it's 5 é_f" | wordcount
{"class": "a b", "id": none, "x": 5, "y": "<\\">"} | xmlattr, {"a": 1} | xmlattr(false)
d | tojson, messages | tojson, messages | tojson(indent=2), d | tojson(indent=0), [] | tojson(indent=2), {} | tojson(indent=4), [1, [2, {"a": []}]] | tojson(indent="\\t")
d | tojson(sort_keys=true), d | tojson(separators=(",", ":")), d | tojson(indent=1, separators=("; ", " = ")), unicode | tojson(ensure_ascii=true), unicode | tojson, "\\x00\\x1f\\x7f\\u2028</script>" | tojson, "\\x7f\\u2028" | tojson(true)
floats | tojson, {1: 2, 1.5: 3, true: 4, none: 5} | tojson, (1, 2) | tojson, true | tojson, none | tojson, 5 | tojson, "x" | tojson, 1e400 | tojson, -1e400 | tojson
[{"a": 1}, "x"] | tojson | safe, ('{"a"}' | tojson) + "<", "a" | tojson | upper
strftime_now("%d %b %Y"), strftime_now("%Y-%m-%d %H:%M:%S %A %j %p %%"), strftime_now("")
[x for x in [1]]
{"a": 1, "a": 2, 1: "int", 1.0: "float", true: "bool"}
{"b": 1}.b, {"k": {"j": [1, 2]}}.k.j[1], [[1, 2], [3]][0][1], "abc"[1], "abc"[1].upper()
"a" "b" ~ 'c' "d"
"abc"|upper|lower|replace("b", "x")|list
-i, +f, --i, - i | abs, -(1 + 2), not not yes, -5 | string
text.nope is undefined, text["upper"]() , text["nope"] is undefined, nothing.x is undefined, i["x"] is undefined
missing ~ "x", missing or "default", missing == missing, missing == none, missing != 1, missing | list, missing | join("x"), missing | string, [missing], missing in [1], "x" in missing
d.__class__, text.__len__ is defined, messages.append is defined, d.update is undefined
cycler("a", "b").next(), cycler(1, 2).current, joiner("; ")() ~ "x"
(d | dictsort | first)[0], (words | sort)[0] | upper, (numbers | max) + 1
" \\n" | trim | length == 0, "a" not in "b" and 1 not in [2], not "a" in "b"
1 + 1 ~ 2 * 3, "a" ~ 1 + 1, 2 * 3 ~ "x" == "6x"
yes is not false and no is not true, 5 is not string, (5 is string) or yes
[1, 2, 3] | map("string") | join, [[3, 1], [2]] | map("sort") | list, ["a", "b"] | map("upper") | reverse | list
"x".__class__.__name__ is defined
namespace(a=[1]).a[0], namespace(x=none).x is none
d == {"z": 1, "a": "two", "items": 5, "nested": {"x": [10, 20, {"y": "deep"}]}}, messages[0] == {"content": "  Be terse. ", "role": "system"}, messages[:1] == messages[0:1]
9223372036854775807, -9223372036854775807 - 1, 3000000000 * 3, 10 ** 18
1e16 == 10000000000000000, 0.1 == 0.1, 1 / 3, 2 / 3 | round(3), 100 * 1.1, 1e22, 1e23, 123456.789e3
5 if messages else 6, "t" if d else "f", "t" if "" else "f", "t" if 0.0 else "f", "t" if () else "f", "t" if range(0) else "f", "t" if missing else "f"
cycler is defined, dict is defined
"%d%%" % 50, "%5d|%-5d|%05d" % (1, 2, 3), "%s %s" % ("a", "b"), "%i" % 3, "%o" % 8, "%X" % 255, "%#x" % 255, "%.2e" % 12345.6789
"abc" is sequence and "abc" is iterable and d is iterable and none is not iterable
""".strip().split("\n")

TEMPLATES = [
    # Whitespace control.
    "a\n  {% if yes %}\n  b\n  {% endif %}\nc\n", "a {%- if yes -%}  b  {%- endif -%} c", "  {% if yes +%}\n x{% endif %}\n",
    "a\n  {%+ if yes %} x\n  {%+ endif %}\n b", "  {{ 1 }}\n  {{- 2 -}}\n  {{ 3 }}\n", "{# c #}\nx\n  {# d #}\ny {#- e -#} z\n\n",
    "{% raw %}{{ not }} {% this %}{% endraw %}\nx", "  {%- raw -%}  {{ a }}  {%- endraw -%}  b", "{% raw %}\n  a\n  {% endraw %}\nb\n",
    "x\n\n", "x\r\ny\rz\r\n", "\n\n{% if yes %}\n\nx\n\n{% endif %}\n\n", "a{% if yes %}{% endif %} \n b", "\t{% if yes %}\tx\t{% endif %}\t\ny",
    "{{ '{{' }} {{ '}}' }} {{ {'a': {'b': 1}} }} { { } } {x} {%raw%}{%{%endraw%}", "a{#b#}c{# {{ d }} {% if %} #}e", "{%if yes%}x{%else%}y{%endif%}",
    "{{\n 1\n +\n 2 }}\n{%\n if yes\n %}z{%\n endif %}", "{{ 1 -}}\n\n {{- 2 }}", "{{ 'a\n b' }}", "a\n {%- if yes %}\n b\n {%- endif %}\n c",
    "  {% set x = 1 %}  \n  {{ x }}", "{% set x = 1 -%}\n\n  y", "{{ 1 }}{# x -#}\n  y", " {#+ x #}\n y", "{# multi\nline #}\nz",
    # Conditions and loops.
    "{% if no %}1{% elif zero %}2{% elif i > 40 %}3{% else %}4{% endif %}", "{% if a is defined and a %}x{% elif not missing %}y{% endif %}",
    "{% for x in numbers %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for x in numbers %}{{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }} {{ loop.depth }} {{ loop.depth0 }};{% endfor %}",
    "{% for x in numbers %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }};{% endfor %}", "{% for x in words %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}", "{% for x in [] %}x{% else %}none{% endfor %}{% for x in missing %}x{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }} {% endfor %}{% for c in 'abc' %}[{{ c }}]{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [[1, 2], (3, 4), 'xy'] %}{{ a }}-{{ b }} {% endfor %}",
    "{% for x in numbers if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {{ loop.last }} {% else %}no{% endfor %}",
    "{% for x in numbers if x > 100 %}{{ x }}{% else %}no{% endfor %}", "{% for x in numbers %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}!",
    "{% for x in numbers %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}!", "{% for x in [1,2] %}{% for y in [1,2,3] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in [[1, [2, [3]]]] recursive %}{{ loop.depth }}{% for y in x %}{% if y is number %}{{ y }}{% else %}({{ loop(y) if false }}){% endif %}{% endfor %}{% endfor %}",
    "{% for n in [{'v': 1, 'c': [{'v': 2, 'c': []}, {'v': 3, 'c': [{'v': 4, 'c': []}]}]}] recursive %}{{ n.v }}{% if n.c %}<{{ loop(n.c) }}>{% endif %}{{ loop.depth0 }}{% endfor %}",
    "{% set ns = namespace(found=false) %}{% for m in messages if not ns.found %}{{ m.role }} {% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}",
    "{% for m in messages if m.role != 'tool' %}{{ loop.previtem.role if loop.previtem is defined }}>{{ m.role }}>{{ loop.nextitem.role if not loop.last }};{% endfor %}",
    "{% for x in range(3) %}{% set y = x %}{{ y }}{% endfor %}{{ y is defined }}", "{% set y = 5 %}{% for x in range(3) %}{{ y }}{% set y = y + x %}{{ y }};{% endfor %}{{ y }}",
    "{% for i in [1, 2] %}{{ i }}{% endfor %}{{ i }}", "{% for x in [1] %}{% set i = i + 1 %}{{ i }}{% endfor %}{{ i }}", "{% if yes %}{% set q = 1 %}{% endif %}{{ q }}{% if no %}{% set i = 1 %}{% endif %}{{ i }}",
    "{% for x in [1, 2] %}{% if x == 1 %}{% set i = 'in' %}{% endif %}{{ i }} {% endfor %}", "{% for x in [3] %}{% if loop.first %}F{% endif %}{% endfor %}{{ loop is defined }}",
    "{% for k, vs in table | groupby('k') %}{{ k }}:{{ vs | length }} {% endfor %}{% for g in table | groupby('k') %}{{ g.grouper }}{{ g.list | map(attribute='v') | list }}{% endfor %}",
    "{% for row in numbers | batch(2) %}{{ row | join(' ') }};{% endfor %}{% for x in words | map('upper') %}{{ loop.index }}{{ x }}{{ loop.length }}{% endfor %}",
    "{% set g = numbers | select('odd') %}{{ g | list }}{{ g | list }}", "{% set g = numbers | map('string') %}{{ g | first }}{{ g | first }}{{ g | join }}",
    "{% for x in numbers %}{% set outer = loop %}{% for y in 'ab' %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in 'ab' %}{% for y in x %}{% endfor %}{{ loop.index }}{% else %}e{% endfor %}",
    "{% for x in [1, 2] %}{% break %}{% else %}e{% endfor %}{% for x in [1, 2] %}{% continue %}{% else %}f{% endfor %}", "{% for x in [1, 2] %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% else %}e{% endfor %}",
    "{{ ('<' | e) | list }}{{ ['', [1, 2] | truncate(5)] }}{{ missing | truncate }}",
    "{{ 'x' % missing }}{{ 'x' % [] }}{{ 'x' % d }}{{ '1500' | filesizeformat }}",
    # Assignment.
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}", "{% set (a, b) = [3, 4] %}{{ a + b }}", "{% set x %}  block {{ i }}\n{% endset %}[{{ x }}]",
    "{% set x | upper | trim %}  block {{ i }} {% endset %}[{{ x }}]", "{% set ns = namespace(n=0, items=[]) %}{% for x in numbers %}{% set ns.n = ns.n + x %}{% set ns.items = ns.items + [x] %}{% endfor %}{{ ns.n }}{{ ns.items }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = ns %}{{ ns.a }}{{ ns.b.a }}{{ ns.c }}", "{% set ns = namespace() %}{% set ns.x %}hi{% endset %}{{ ns.x }}", "{% set ns = namespace(a=1) %}{% set ns.a, b = 5, 6 %}{{ ns.a }}{{ b }}",
    "{% set x = 1 if yes %}{{ x }}", "{% set x = 1, 2 %}{{ x }}", "{% set tools = tools or [] %}{{ tools }}", "{% set messages = messages[1:] %}{{ messages | length }}", "{% set d = dict(d, new=1) %}{{ d.new }}{{ d | length }}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% set c = 3 %}{{ c }}{% endwith %}{{ a is defined }}{{ c is defined }}", "{% with %}{% set i = 0 %}{{ i }}{% endwith %}{{ i }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}",
    "{% filter upper %}abc {{ text }}{% endfilter %}", "{% filter replace('a', 'b') | indent(2, true) %}aa\naa{% endfilter %}", "{% set x = 'out' %}{% filter lower %}{% set x = 'IN' %}{{ x }}{% endfilter %}{{ x }}",
    # Macros.
    "{% macro m(a, b=2, c='x') %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=5) }}{{ m() }}{{ m(c=1, a=2, b=3) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{{ varargs | length }}{% endmacro %}{{ m(1, 2, 3) }}", "{% macro fact(n) %}{{ 1 if n < 2 else n * (fact(n - 1) | int) }}{% endmacro %}{{ fact(6) }}", "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}",
    "{% macro wrap(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call wrap('p') %}body {{ i }}{% endcall %}", "{% macro each(xs) %}{% for x in xs %}{{ caller(x, loop.index) }};{% endfor %}{% endmacro %}{% call(x, n) each(words) %}{{ n }}={{ x }}{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{{ caller }}{% endmacro %}{{ m() }}", "{% macro a() %}A{% endmacro %}{% macro b() %}{{ a() }}B{{ c() }}{% endmacro %}{% macro c() %}C{% endmacro %}{{ b() }}", "{{ m is defined }}{% macro m() %}{% endmacro %}{{ m is defined }}{{ m.name }}",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}", "{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}", "{% for q in [1, 2] %}{% macro m() %}{{ q }}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m(x) %}\n  {% if x %}\n  yes\n  {% else %}\n  no\n  {% endif %}\n{% endmacro %}\n{{ m(1) }}|{{ m(0) | trim }}", "{% macro m(msg) -%}\n{{ msg.role }}\n{%- endmacro %}{{ messages | map(attribute='role') | map('upper') | join }}{{ m(messages[0]) }}", "{{ m(*[1, 2], **{'c': 3}) }}{% macro m(a, b, c) %}{% endmacro %}",
    "{% macro m(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 2], **{'c': 3}) }}{{ m(*'xyz') }}{{ m(1, *[2], c=3) }}", "{% macro m() %}{{ return }}x{% endmacro %}{% set y = m() %}{{ y | length }}{{ y ~ y }}", "{% macro m(caller=none) %}{{ caller() if caller else 'no' }}{% endmacro %}{{ m() }}{% call m() %}c{% endcall %}",
    "{% macro outer() %}{% macro inner(x) %}<{{ x }}>{% endmacro %}{{ inner(1) }}{{ inner(2) }}{% endmacro %}{{ outer() }}", "{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}{% set j = joiner() %}{% for x in [1, 2, 3] %}{{ j() }}{{ x }}{% endfor %}",
    "{% macro m(tools) %}{% for t in tools %}{{ m2(t) }}{% endfor %}{% endmacro %}{% macro m2(t) %}{{ t.k }}{% endmacro %}{{ m(table) }}", "{% print 1, 'x' %}{% print(2) %}",
    # Generation, exceptions, errors when rendering.
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.role }}{% endif %}{% endfor %}", "{% generation %}\n  a\n{% endgeneration %}\nb", "{% for x in [1, 2] %}{% generation %}{{ loop.index }}{% set x = 5 %}{{ x }}{% endgeneration %}{{ x }}{% endfor %}",
    "{{ raise_exception('no ' ~ i) }}", "{{ missing.x }}", "{{ missing['x'] }}", "{{ missing() }}", "{{ missing + 1 }}", "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ [] + () }}", "{{ none + 1 }}", "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ 1.0 / 0 }}", "{{ 1 < 'a' }}", "{{ none < 1 }}", "{{ d < d }}", "{{ missing < 1 }}", "{{ 1 in 1 }}", "{{ 1 in 'a' }}", "{{ [] in d }}",
    "{{ messages.append(1) }}", "{{ d.update({}) }}", "{{ d.pop('a') }}", "{{ [].sort() }}", "{{ ''.__class__.__mro__ }}", "{{ text.nope() }}", "{{ nothing.get('x') }}", "{{ i() }}", "{{ 'abc'.index('z') }}", "{{ [1].index(2) }}", "{{ 'a'.split('') }}", "{{ '-'.join([1]) }}", "{{ '%d' % 'x' }}", "{{ '%s %s' % 'x' }}", "{{ '%s' % (1, 2) }}", "{{ '%q' % 1 }}", "{{ '{} {}'.format(1) }}", "{{ '{'.format(1) }}", "{{ '}'.format(1) }}", "{{ '{x}'.format(1) }}", "{{ '{:.2}'.format(1) }}", "{{ '{:,x}'.format(1) }}", "{{ '{:,c}'.format(65) }}", "{{ '%c' % 1114112 }}",
    "{{ 5 | length }}", "{{ none | length }}", "{{ (numbers | map('abs')) | length }}", "{{ (numbers | map('abs'))[0] is undefined }}", "{{ numbers | map('abs') | last }}", "{{ none | list }}", "{{ 5 | first }}", "{{ missing | tojson }}", "{{ [missing] | tojson }}", "{{ d.items() | tojson }}", "{{ {(1, 2): 3} | tojson }}", "{{ range(3) | tojson }}", "{{ {[]: 1} }}", "{{ missing | int }}", "{{ missing | float }}", "{{ 5 | items }}", "{{ d.items() | items | list }}",
    "{{ [1, 'a'] | sort }}", "{{ [1, none] | max }}", "{{ ['a', 1] | sum }}", "{{ 'x' | abs }}", "{{ [[]] | unique | list }}", "{{ range(100001) }}", "{{ range(1, 2, 0) }}", "{{ range('a') }}", "{{ numbers['a':] }}", "{{ numbers[::0] }}", "{{ nothing[1:] }}", "{{ d[1:] }}", "{{ missing[1:] }}", "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% set a, b = 1, 2, 3 %}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=1) }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% set x = 1 %}{% set x.y = 2 %}", "{% set q.y = 2 %}", "{% for x in [1] %}{{ loop([2]) }}{% endfor %}", "{% if missing.a.b %}{% endif %}", "{% if yes %}x{% else %}{{ 1 | nope }}{% endif %}", "{{ 1 if yes else (1 is nope) }}", "{% if yes %}{{ 1 | nope }}{% endif %}", "{{ 'abc'.strip(1) }}", "{{ 'abc'.startswith(1) }}", "{{ namespace(1) }}", "{{ dict(1) }}", "{{ numbers | batch }}", "{{ text | replace('a') }}", "{{ 'x' | indent(nope=1) }}", "{{ loop.index }}", "{{ -'a' }}", "{{ 'a' * 'b' }}", "{{ 'a' - 'b' }}", "{{ [1] * 1.5 }}", "{{ raise_exception() }}", "{{ 'a' | round }}", "{{ 2.5 | round(1, 'up') }}", "{{ numbers | groupby }}", "{{ table | groupby('v') }}", "{{ table | sort(attribute='v') }}", "{{ d | dictsort(by='x') }}", "{{ text | truncate(1) }}",
    # Errors when parsing.
    "{% if %}", "{% if yes %}", "{% endif %}", "{{ }}", "{{ 1 ", "{{ 1 + }}", "{{ (1 }}", "{{ 1) }}", "{{ [1 }}", "{% for %}{% endfor %}", "{% for x numbers %}{% endfor %}", "{% for x in numbers %}", "{% for x in numbers %}{% endif %}", "{% nope %}", "{% set %}", "{% set 1 = 2 %}", "{% set x = %}", "{% set x %}", "{{ 'abc }}", "{{ a b }}", "{{ a.1b }}", "{{ 1 | nope }}", "{{ 1 is nope }}", "{# open", "{% raw %}x", "{{ a ! b }}", "{{ @ }}", "{% break %}", "{% continue %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(1) %}{% endmacro %}", "{% macro %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ f(**d, *a) }}", "{{ 1 is string is number }}", "{% call x %}{% endcall %}", "{% filter %}{% endfilter %}", "{% for loop in [1] %}{{ loop.index }}{% endfor %}", "{% set none = 1 %}", "{% set true = 1 %}", "{{ 'a' 'b }}", "{{ '\\x4' }}", "{% for x in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "{% for x in [1] %}{% generation %}{% continue %}{% endgeneration %}{% endfor %}", "{% else %}", "{{ x if }}", "{{ {1} }}", "{{ {'a' 1} }}", "{{ {**d} }}", "{{ [*numbers] }}", "{{ lambda: 1 }}", "{% if yes %}{% else %}{% else %}{% endif %}", "{% with a %}{% endwith %}", "{{ 1 if yes else }}", "{{ x[] }}", "{{ x..y }}", "{{ | upper }}", "{% print %}", "{{ 1 = 1 }}", "{%- endfor -%}", "{{ 007 }}", "{{ 1.5.6 }}", "{{ 1. }}", "{{ .5 }}",
]


def cases():
    for expression in EXPRESSIONS:
        # A tuple shows each value as repr() has it; one by one they are shown as str() has them.
        yield "{{ (" + expression + ") }}"
    yield from TEMPLATES


def main():
    env = environment()
    vectors = []
    for template in cases():
        vector = {"template": template}
        try:
            vector["expected"] = env.from_string(template).render(**CONTEXT)
        except jinja2.exceptions.TemplateSyntaxError:
            vector["error"] = "parse"
        except SyntaxError:
            vector["error"] = "parse"
        except Exception:
            vector["error"] = "render"
        if " at 0x" not in vector.get("expected", ""):  # an address
            vectors.append(vector)
    path = pathlib.Path(__file__).with_name("vectors.json")
    text = json.dumps({"context": CONTEXT, "vectors": vectors}, ensure_ascii=False, indent=0) + "\n"
    if "--check" not in sys.argv:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path}: Jinja2 {jinja2.__version__} renders some vectors in another way")


if __name__ == "__main__":
    main()
