#!/usr/bin/env python3
"""Makes the Unigram and WordPiece tokenizers below tests/data/tokenizers and their vectors.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 protobuf
    tests/data/make_encoder_tokenizers.py

t5            Unigram with the pipeline of T5Tokenizer: Precompiled, WhitespaceSplit and Metaspace, </s> at the end
xlm_roberta   Unigram as in newer conversions: Precompiled and Replace, Metaspace with prepend_scheme first, RobertaProcessing
unigram_bytes Unigram with byte fallback and no pre-tokenizer that splits
bert_uncased  WordPiece with BertNormalizer and BertPreTokenizer, TemplateProcessing
bert_cased    the same without lowercase, BertProcessing

The vocabularies and the rewriting rules are SentencePiece's and tokenizers' own, trained on the licence texts of Debian's
base-files; ids and decoded texts are those of tokenizers.
"""

import json
import pathlib
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers)

HERE = pathlib.Path(__file__).parent / "tokenizers"
LICENSES = [pathlib.Path("/usr/share/common-licenses") / name for name in ("Apache-2.0", "GPL-3", "MPL-2.0")]

# Code points and what becomes of them, as in SentencePiece's nmt_nfkc, of which these are a few.
RULES = {(code,): (code - 0xFEE0,) for code in range(0xFF21, 0xFF3B)}
RULES.update({(code,): (0x20,) for code in (0x9, 0xA, 0xD, 0xA0, 0x2003, 0x200B, 0x3000)})
RULES.update({(code,): () for code in (0x1, 0x7F)})
RULES.update({(0xFB01,): (0x66, 0x69), (0xBD,): (0x31, 0x2044, 0x32), (0x65, 0x301): (0xE9,), (0x41, 0x30A): (0xC5,),
              (0x2122,): (0x54, 0x4D), (0xFF76,): (0x30AB,), (0xFF76, 0xFF9E): (0x30AC,)})

TEXTS = ["", " ", "   ", "\t", "\n", "\n\n", "The licence", " the  licence ", "Licensor shall mean the copyright owner.", "unlimited",
         "We'LL see: I'D say they'Re 'Ve don't do not it's", "1234567890 12 3٤٥ Ⅷ½", "a\r\n\r\n b \n\n  c\t\td ",
         "x_y-z (\"quoted\")!! a , b . c ?", "naïve Größe İstanbul ﬁn RÉSUMÉ", "漢字かな 한국어 हिन्दी 㐀豈", "e\u0301\u0323 e\u0301 E\u0301 A\u030a \u200d\u00a0\u3000.",
         "👩‍👩‍👧 🏳️‍🌈 🇩🇪", "\x00\x01a\x7f\u0085", "ＡＢＣ\u0301Ｄ ｶﾞｶ ™", "aaaaaaaaaaaaaaaaaaaa", "=" * 33, "wor" * 40, "x" * 101, "q" * 100,
         "▁the▁▁licence", "##ing ##", "<unk>a<unk>", "<0x41> <0xE4>", "[MASK] [UNK]", "ab\u200bcd", "\u0600a \u06dd1", "\r\n\u0301x", "\u0301x",
         "zzz\U0001f600\U0001f601zzz", "\ue000 \uffff \U0010ffff", "¿qué? ¡sí!", "a\u2581b", "©\u200d©", "end of text"]


def train_sentencepiece(**options):
    with tempfile.TemporaryDirectory() as folder:
        rules = pathlib.Path(folder) / "rules.tsv"
        rules.write_text("".join("\t".join(" ".join(f"{c:X}" for c in side) for side in rule) + "\n" for rule in sorted(RULES.items())))
        sentencepiece.SentencePieceTrainer.train(
            input=",".join(map(str, LICENSES)), model_prefix=folder + "/m", model_type="unigram", normalization_rule_tsv=str(rules),
            bos_id=-1, pad_id=0, eos_id=1, unk_id=2, num_threads=1, minloglevel=2, **options)
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString((pathlib.Path(folder) / "m.model").read_bytes())
        return [(piece.piece, piece.score) for piece in model.pieces], model.normalizer_spec.precompiled_charsmap


def save(name, tokenizer, settings, added=()):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    vectors = []
    for text in [*TEXTS, *added]:
        ids = tokenizer.encode(text).ids
        vectors.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids), "with_special": tokenizer.decode(ids, skip_special_tokens=False)})
    (folder / "vectors.json").write_text("[" + ",\n ".join(json.dumps(vector, ensure_ascii=False) for vector in vectors) + "]\n")


def sentencepiece_tokenizers():
    pieces, charsmap = train_sentencepiece(vocab_size=260)
    sentinels = [f"<extra_id_{i}>" for i in range(3)]
    tokenizer = Tokenizer(models.Unigram([*pieces, *((token, 0.0) for token in reversed(sentinels))], unk_id=2))
    tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single=["$A", "</s>"], pair=["$A", "</s>", "$B", "</s>"], special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(["</s>", "<unk>", "<pad>", *sentinels])
    save("t5", tokenizer, {"tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>",
                           "extra_ids": 3, "additional_special_tokens": sentinels}, ["The <extra_id_0> shall<extra_id_1>.", "</s> a"])

    names = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>",
             "mask_token": "<mask>"}
    first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    tokenizer = Tokenizer(models.Unigram([*first, *pieces[3:], ("<mask>", 0.0)], unk_id=3))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.add_special_tokens([*(token for token, _ in first), AddedToken("<mask>", lstrip=True)])
    save("xlm_roberta", tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", **names}, ["The <mask> shall.", "a<mask>b <mask>"])

    pieces, charsmap = train_sentencepiece(vocab_size=420, byte_fallback=True)
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Strip(right=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    save("unigram_bytes", tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}, ["\u0301a", "ü\U0001f600漢"])


def bert_tokenizers():
    names = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for lower in (True, False):
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(cleanup=lower)
        tokenizer.train(list(map(str, LICENSES)), trainers.WordPieceTrainer(vocab_size=320, special_tokens=special, show_progress=False))
        # The trainer's order depends on its hash tables; a sorted vocabulary does not.
        vocab = [*special, *sorted(set(tokenizer.get_vocab()) - set(special)), "é", "##é", "漢"]
        tokenizer.model = models.WordPiece({token: i for i, token in enumerate(vocab)}, unk_token="[UNK]")
        cls, sep = ("[CLS]", 2), ("[SEP]", 3)
        tokenizer.post_processor = (processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[cls, sep])
                                    if lower else processors.BertProcessing(sep, cls))
        save("bert_uncased" if lower else "bert_cased", tokenizer, {"tokenizer_class": "BertTokenizer", "do_lower_case": lower, **names},
             ["The [MASK] shall.", "licence[MASK]", "a [sep] b"])


if __name__ == "__main__":
    sentencepiece_tokenizers()
    bert_tokenizers()
