#!/usr/bin/python3
"""Makes the tokenizers below tests/data/tokenizers and their vectors (Debian's python3-regex, python3-sentencepiece).

    tests/data/make_tokenizers.py GPT2_FOLDER     with GPT-2's tokenizer.json, and vectors.json with published ids

gpt2            GPT-2's tokenizer without the tokens that no text of the vectors can contain, the others numbered anew. A
                merge whose result is no part of a text never applies to it, so texts keep the tokens that were published,
                which is checked here with a byte-pair encoder of a few lines.
llama3_pattern  The same vocabulary behind the pattern, the template and the settings of Llama 3; ids by that encoder.
sentencepiece   A SentencePiece model with byte fallback, as Llama 2 has one, trained here; ids by SentencePiece itself.

README.md has the origins.
"""

import io
import json
import pathlib
import sys

import regex
import sentencepiece

HERE = pathlib.Path(__file__).parent / "tokenizers"
LICENSES = [pathlib.Path("/usr/share/common-licenses") / name for name in ("Apache-2.0", "GPL-3", "MPL-2.0")]

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                  r"\s*[\r\n]+|\s+(?!\S)|\s+")
MORE_TEXTS = ["We'LL see: I'D say they'Re 'Ve", "1234567890 12 3٤٥ Ⅷ½", "a\r\n\r\n b \n\n  c\t\td ", "x_y-z (\"quoted\")!!\n",
              "naïve Größe İstanbul ﬁn", "漢字かな 한국어 हिन्दी", "e\u0301\u0323 \u200d\u00a0\u3000.", "👩‍👩‍👧 🏳️‍🌈 🇩🇪", "\x00\x7f\u0085"]


# GPT-2 writes every byte as a printable character.
def byte_characters():
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)}


BYTE_CHARACTERS = byte_characters()


def as_characters(text):
    return "".join(BYTE_CHARACTERS[byte] for byte in text.encode())


def byte_pair_ids(text, pattern, vocab, ranks, ignore_merges):
    ids = []
    for match in regex.finditer(pattern, text):
        word = as_characters(match.group())
        parts = [word] if ignore_merges and word in vocab else list(word)
        while len(parts) > 1:
            rank, at = min((ranks.get(pair, len(ranks)), at) for at, pair in enumerate(zip(parts, parts[1:])))
            if rank == len(ranks):
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [vocab[part] for part in parts]
    return ids


def write(name, tokenizer, config, vectors):
    (HERE / name).mkdir(parents=True, exist_ok=True)
    for file, content in (("tokenizer", tokenizer), ("tokenizer_config", config)):
        (HERE / name / f"{file}.json").write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n")
    lines = [json.dumps({"text": text, "ids": ids}, ensure_ascii=False) for text, ids in vectors]
    (HERE / name / "vectors.json").write_text("[" + ",\n ".join(lines) + "]\n")
    print(f"{name}: {len(tokenizer['model']['vocab'])} tokens, {len(vectors)} vectors")


def special_token(token_id, content):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True}


def template(token_id, content):
    return {"type": "TemplateProcessing", "pair": [],
            "single": [{"SpecialToken": {"id": content, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {content: {"id": content, "ids": [token_id], "tokens": [content]}}}


def make_byte_level(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    published = [(v["text"], v["ids"]) for v in json.loads((folder / "vectors.json").read_text())]
    everything = "\n".join(as_characters(text) for text, _ in published)
    model = tokenizer["model"]
    added = {token["content"] for token in tokenizer["added_tokens"]}
    model["vocab"] = {token: number for token, number in model["vocab"].items()
                      if token in everything or len(token) == 1 or token in added}
    model["merges"] = [merge for merge in model["merges"] if merge.replace(" ", "") in model["vocab"]]
    old, ranks = model["vocab"], {tuple(merge.split(" ")): rank for rank, merge in enumerate(model["merges"])}
    for text, ids in published:
        found = byte_pair_ids(text, GPT2_PATTERN, old, ranks, ignore_merges=False)
        if found != ids:
            sys.exit(f"{text!r}: expected {ids}, found {found}")
    vocab = {token: number for number, token in enumerate(sorted(old, key=old.get))}
    renumbered = {old[token]: number for token, number in vocab.items()}
    model["vocab"] = vocab
    for token in tokenizer["added_tokens"]:
        token["id"] = vocab[token["content"]]
    write("gpt2", tokenizer, {"tokenizer_class": "GPT2TokenizerFast", "bos_token": "<|endoftext|>",
                              "eos_token": "<|endoftext|>"},
          [(text, [renumbered[number] for number in ids]) for text, ids in published])

    first = len(vocab)
    begin, end = "<|begin_of_text|>", "<|end_of_text|>"
    tokenizer["added_tokens"] += [special_token(first, begin), special_token(first + 1, end)]
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": LLAMA3_PATTERN}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
    tokenizer["post_processor"] = template(first, begin)
    model["ignore_merges"] = True
    texts = [text for text, _ in published] + MORE_TEXTS
    vectors = [(text, byte_pair_ids(text, LLAMA3_PATTERN, vocab, ranks, ignore_merges=True)) for text in texts]
    write("llama3_pattern", tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin,
                                        "eos_token": end}, vectors)
    return texts


# Converts a SentencePiece model as Transformers does: a merge for each way in which two pieces make a third, in the
# order of that piece's score, then of the two.
def merges_of(pieces):
    numbers = {piece: number for number, (piece, _) in enumerate(pieces)}
    merges = []
    for piece, score in pieces:
        splits = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        known = [pair for pair in splits if pair[0] in numbers and pair[1] in numbers]
        merges += [(-score, numbers[a], numbers[b], f"{a} {b}") for a, b in known]
    return [merge for *_, merge in sorted(merges)]


def make_sentencepiece(texts):
    corpus = [line for path in LICENSES for line in path.read_text().splitlines()] + texts
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=model, model_type="bpe", vocab_size=1000, byte_fallback=True,
        split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, character_coverage=0.995, num_threads=1, minloglevel=2)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    size = processor.vocab_size()
    vocab = {processor.id_to_piece(number): number for number in range(size)}
    learned = [(processor.id_to_piece(number), processor.get_score(number)) for number in range(size)
               if not processor.is_byte(number) and not processor.is_control(number) and not processor.is_unknown(number)]
    space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [special_token(number, processor.id_to_piece(number)) for number in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None, "post_processor": template(1, "<s>"),
        "decoder": {"type": "Sequence", "decoders": [space, {"type": "ByteFallback"}, {"type": "Fuse"},
                                                     {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "vocab": vocab,
                  "merges": merges_of(learned)}}
    # SentencePiece ends a text at a zero byte.
    vectors = [(text, processor.encode(text)) for text in texts if "\0" not in text]
    write("sentencepiece", tokenizer, {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                                       "unk_token": "<unk>", "add_bos_token": True, "add_eos_token": False}, vectors)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    make_sentencepiece(make_byte_level(pathlib.Path(sys.argv[1])))


if __name__ == "__main__":
    main()
