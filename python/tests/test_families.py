"""Models with an encoder: T5 by Seq2SeqTrainer, BERT by masked tokens."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sample_rows import texts

from tessera import Seq2SeqTrainer, Seq2SeqTrainingArguments, TesseraError, Trainer, TrainingArguments
from tessera._program import program_path

T5 = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 48,
      "num_layers": 2, "num_heads": 4, "vocab_size": 300, "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0,
      "tie_word_embeddings": False, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}  # fmt: skip
BERT = {"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40, "max_position_embeddings": 64,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": 0}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "model", "learns", "from", "rows", "row", "text"]
BERT_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [{"id": id, "content": WORDS[id], "special": True, "single_word": False, "lstrip": False,
                      "rstrip": False, "normalized": False} for id in range(5)],
    "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                   "lowercase": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100, "vocab": {word: id for id, word in enumerate(WORDS)}},
}  # fmt: skip


def new_model(config: dict[str, Any], tokenizer: str) -> str:
    Path("config.json").write_text(json.dumps(config))
    subprocess.run([program_path(), "init", "--config", "config.json", "--tokenizer", tokenizer, "--output", "new",
                    "--dtype", "float32"], check=True, capture_output=True)  # fmt: skip
    return "new"


def bert() -> str:
    Path("tokenizer").mkdir()
    Path("tokenizer/tokenizer.json").write_text(json.dumps(BERT_TOKENIZER))
    Path("tokenizer/tokenizer_config.json").write_text(json.dumps({"mask_token": "[MASK]", "pad_token": "[PAD]"}))
    return new_model(BERT, "tokenizer")


class DataCollatorForLanguageModeling:
    """With the attributes of Transformers' class of this name."""

    mlm = True
    mlm_probability = 0.3
    mask_replace_prob = 1.0
    random_replace_prob = 0.0
    whole_word_mask = False


def common(**changed: Any) -> dict[str, Any]:
    return {"output_dir": "out", "max_steps": 8, "logging_steps": 1, "learning_rate": 0.01, "save_strategy": "no",
            "settings": {"measure_peak": False}, **changed}  # fmt: skip


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_t5_learns_rows_of_sources_and_targets(model: str) -> None:
    rows = [{"input_ids": [5 + n, 6, 7, 1], "attention_mask": [1] * 4, "labels": [5 + n, 1, -100]} for n in range(40)]
    arguments = Seq2SeqTrainingArguments(**common(max_steps=60))
    trainer = Seq2SeqTrainer(new_model(T5, model), arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert losses(trainer)[-1] < 0.8 * losses(trainer)[0]
    metrics = trainer.evaluate()
    assert metrics["eval_num_target_tokens"] == 80  # the padding of labels is no target
    assert metrics["eval_loss"] < losses(trainer)[0]


def test_generation_in_evaluations_is_refused() -> None:
    with pytest.raises(TesseraError, match="predict_with_generate"):
        Seq2SeqTrainingArguments("out", predict_with_generate=True)


def test_collator_says_which_tokens_are_masked() -> None:
    rows = texts(40)
    by_collator = Trainer(bert(), TrainingArguments(**common()), DataCollatorForLanguageModeling(), rows)
    by_collator.train()
    masking = {"mlm_probability": 0.3, "mask_replace_prob": 1.0, "random_replace_prob": 0.0}
    settings = {"measure_peak": False, **masking}
    by_settings = Trainer("new", TrainingArguments(**common(output_dir="other", settings=settings)), None, rows)
    by_settings.train()
    assert losses(by_collator) == losses(by_settings)
    default = Trainer("new", TrainingArguments(**common(output_dir="default")), None, rows)
    default.train()
    assert losses(by_collator) != losses(default)


def test_decoder_has_no_masked_tokens(model: str) -> None:
    with pytest.raises(TesseraError, match="mlm"):
        Trainer(model, TrainingArguments(**common()), DataCollatorForLanguageModeling(), texts(9)).train()


def test_masking_of_whole_words_is_refused(model: str) -> None:
    collator = DataCollatorForLanguageModeling()
    collator.whole_word_mask = True
    with pytest.raises(TesseraError, match="whole_word_mask"):
        Trainer(model, TrainingArguments(**common()), collator, texts(9))
