"""The losses of Transformers' Trainer and of this package's for models with an encoder, in float32."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models

import tessera

VOCABULARY = 99
COMMON = dict(logging_steps=1, save_strategy="no", report_to="none", learning_rate=1e-3, max_steps=10,
              per_device_train_batch_size=4)  # fmt: skip


def tokenizer() -> Any:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)] + [(chr(0x4E00 + n), -5.0) for n in range(VOCABULARY - 3)]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.Unigram(pieces, unk_id=2)),
        pad_token="<pad>", eos_token="</s>", unk_token="<unk>", mask_token="<unk>",
    )  # fmt: skip


def t5() -> tuple[Any, Any, Any]:
    config = transformers.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                                   dropout_rate=0.0, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
                                   decoder_start_token_id=0)  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), transformers.Seq2SeqTrainer, tessera.Seq2SeqTrainer


def bert() -> tuple[Any, Any, Any]:
    config = transformers.BertConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                     num_attention_heads=4, hidden_dropout_prob=0.0,
                                     attention_probs_dropout_prob=0.0)  # fmt: skip
    return transformers.BertForMaskedLM(config), transformers.Trainer, tessera.Trainer


def rows_for(model: Any) -> Dataset:
    """Sources with targets for T5; for BERT rows of which some tokens are predicted."""
    draw, rows = random.Random(1), []
    for _ in range(48):
        ids = [draw.randrange(3, VOCABULARY) for _ in range(draw.randrange(4, 20))] + [1]
        labels = [draw.randrange(3, VOCABULARY) for _ in range(draw.randrange(2, 9))] + [1]
        if not model.config.is_encoder_decoder:
            labels = [id if draw.random() < 0.3 or place == 0 else -100 for place, id in enumerate(ids)]
        rows.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels})
    return Dataset.from_list(rows)


@pytest.mark.parametrize("make", [t5, bert])
def test_losses_and_weights_are_those_of_transformers(make: Any) -> None:
    trained = []
    for library in (transformers, tessera):
        torch.manual_seed(0)
        model, their_trainer, our_trainer = make()
        arguments = getattr(library, "Seq2SeqTrainingArguments" if make is t5 else "TrainingArguments")
        own = {"use_cpu": True} if library is transformers else {"settings": {"dtype": "float32"}}
        trainer = (their_trainer if library is transformers else our_trainer)(
            model=model,
            args=arguments(output_dir=library.__name__, **own, **COMMON),
            train_dataset=rows_for(model),
            data_collator=transformers.DataCollatorForSeq2Seq(tokenizer(), model=model if make is t5 else None),
            processing_class=tokenizer(),
        )
        trainer.train()
        trained.append(([entry["loss"] for entry in trainer.state.log_history if "loss" in entry], model))
    (their_losses, their_model), (our_losses, our_model) = trained
    assert our_losses == pytest.approx(their_losses, abs=1e-5)
    assert len(our_losses) == 10
    for (name, theirs), ours in zip(their_model.named_parameters(), our_model.parameters()):
        assert torch.allclose(theirs, ours, atol=1e-5), name


def test_masks_of_the_collator_are_drawn_here() -> None:
    """The expected loss of a random model is the same, whoever draws the masks."""
    found = []
    for library in (transformers, tessera):
        torch.manual_seed(0)
        model = bert()[0]
        own = {"use_cpu": True} if library is transformers else {"settings": {"dtype": "float32"}}
        trainer = library.Trainer(
            model=model,
            args=library.TrainingArguments(output_dir=library.__name__, **own, **{**COMMON, "learning_rate": 1e-9}),
            train_dataset=rows_for(model).remove_columns("labels"),
            data_collator=transformers.DataCollatorForLanguageModeling(tokenizer(), mlm_probability=0.4),
            processing_class=tokenizer(),
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        found.append(sum(losses) / len(losses))
    assert found[1] == pytest.approx(found[0], rel=0.01)


def test_arguments_of_the_library_are_taken() -> None:
    model, _, trainer = t5()
    arguments = transformers.Seq2SeqTrainingArguments(output_dir="out", use_cpu=True, **COMMON)
    assert trainer(model, arguments, train_dataset=rows_for(model), processing_class=tokenizer()).train().global_step == 10
    with pytest.raises(tessera.TesseraError, match="predict_with_generate"):
        trainer(model, transformers.Seq2SeqTrainingArguments(output_dir="out", use_cpu=True, predict_with_generate=True))
