"""Trains a causal language model on the texts of a JSONL file with Transformers' Trainer; started by torchrun."""

from dataclasses import dataclass

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)


@dataclass
class ScriptArguments:
    model: str
    dataset: str
    max_length: int = 512


def main():
    script, args = HfArgumentParser((ScriptArguments, TrainingArguments)).parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(script.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(script.model, dtype="bfloat16", attn_implementation="sdpa")

    def tokenize(batch):
        texts = [text + tokenizer.eos_token for text in batch["text"]]
        return tokenizer(texts, truncation=True, max_length=script.max_length)

    with args.main_process_first():
        texts = load_dataset("json", data_files=script.dataset, split="train")
        rows = texts.map(tokenize, batched=True, remove_columns=texts.column_names)
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
