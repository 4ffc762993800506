#!/usr/bin/env python3
"""Compares ids and decoded text of Tessera's tokenizer with those of Hugging Face's tokenizers (pip install tokenizers==0.23.3).

    compare.py HELPER TOKENIZER_FOLDER [TEXT_FILE...]      HELPER is tokenize_lines; lines of the files are texts, too

Exits with 77 (skipped) if the package is not installed. The JavaScript package that compare.mjs takes does not follow the rules of
Precompiled and knows CJK ideographs of the first plane only.
"""

import json
import pathlib
import random
import subprocess
import sys

try:
    from tokenizers import Tokenizer
except ImportError:
    print("skipped: pip install tokenizers==0.23.3")
    sys.exit(77)

SEED = 20261130
NUM_RANDOM_TEXTS = 6000
NUM_LINES = 6000  # of the files, at most

WORDS = ["the", "Hello", "world", "I", "don't", "Größe", "naïve", "x86", "foo_bar", "ﬁ", "ＡＢＣ１２３", "résumé", "Ångström", "straße",
         "İstanbul", "ΑΣ", "안녕하세요", "こんにちは世界", "你好，世界", "नमस्ते", "क्ष", "हि", "ไทย", "Привет", "мир", "עברית", "العربية"]
SPACES = [" ", " ", " ", "  ", "   ", "      ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\ufeff", "\u1680"]
CONTRACTIONS = ["'s", "'S", "n't", " n't", "'RE", "'ve", " do not ", "\u2019s", " ' ", " . ", " , ", "?!", "...", "``", "''"]
MARKS = list(".,()|_-#@\\'\"$^`~+=") + ["!!", "[]", "->", "##", "//", "“", "—", "。", "、", "▁", "▁▁"]
ACCENTS = ["é", "e\u0301", "ü", "u\u0308", "ß", "ı", "A\u030a", "Ω", "q\u0301\u0323", "\uff21\u0301", "\u0344", "\u1e9b\u0323", "ｶﾞ", "ﾊﾟ", "㍿", "½", "①",
           "™", "ª", "ﷺ", "\u0fb2\u0f71\u0f80"]
ODD = ["😀", "👩‍👩‍👧", "🏳️‍🌈", "🇩🇪🇫", "✅\ufe0f", "©\u200d", "\u200d", "\u0301", "\u0000", "\u0001", "\u007f", "\x1b", "\u009f", "\u00ad", "\u0600a",
       "\ue000", "\ufffd", "\r\n\u0301", "\t\u0301", "٣", "४५", "Ⅷ", "一二", "𝟘𝟙", "<0x41>", "<0xE4>", "<unk>", "[UNK]"]


def random_texts(rng, added):
    def character():
        while True:
            code = rng.randrange(rng.choice([0x80, 0x250, 0x3000, 0x10000, 0x110000]))
            if not 0xD800 <= code < 0xE000:
                return chr(code)

    kinds = [lambda kind=kind: rng.choice(kind) for kind in (WORDS, SPACES, CONTRACTIONS, MARKS, ACCENTS, ODD, added)]
    kinds += [character, character, lambda: character() + chr(0x300 + rng.randrange(0x70)), lambda: str(rng.randrange(10 ** rng.randrange(1, 9))),
              lambda: rng.choice(added)[:rng.randrange(1, 6)], lambda: rng.choice("ab=-!x あ") * rng.randrange(2, 60),
              lambda: "".join(rng.choice("abcdefgh") for _ in range(rng.randrange(1, 220)))]
    return ["".join(rng.choice(kinds)() for _ in range(rng.randrange(1, 14))) for _ in range(NUM_RANDOM_TEXTS)]


def main():
    helper, folder, *files = sys.argv[1:]
    rng = random.Random(SEED)
    theirs = Tokenizer.from_file(folder + "/tokenizer.json")
    theirs.no_truncation()
    theirs.no_padding()
    added = [token["content"] for token in json.loads(theirs.to_str())["added_tokens"]] or ["<s>"]
    lines = [line for file in files for line in pathlib.Path(file).read_text(encoding="utf8").split("\n")]
    texts = rng.sample(lines, min(NUM_LINES, len(lines))) + random_texts(rng, added)
    failures = 0
    for special in (True, False):
        run = subprocess.run([helper, folder, str(special).lower()], input="".join(json.dumps(text) + "\n" for text in texts),
                             stdout=subprocess.PIPE, text=True, check=True)
        ours = run.stdout.split("\n")[:-1]
        assert len(ours) == len(texts), f"{len(texts)} texts gave {len(ours)} lines"
        for text, line in zip(texts, ours):
            ids = theirs.encode(text, add_special_tokens=special).ids
            quote = line.index('"')
            found = [int(id) for id in line[:quote].split()], json.loads(line[quote:])
            expected = ids, theirs.decode(ids, skip_special_tokens=False)
            if found == expected:
                continue
            failures += 1
            if failures <= 10:
                print(f"{text!r} (seed {SEED})\n  expected {str(expected)[:400]}\n  got      {str(found)[:400]}", file=sys.stderr)
    print(f"{folder}: {len(texts)} texts, {failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
