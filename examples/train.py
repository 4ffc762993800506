"""Fine-tunes a language model on text, by itself or as a rank under torchrun, mpirun, srun or a TrainJob.

A script for Transformers' Trainer, in which two lines are Tessera's: those that import. It needs the packages datasets
and transformers, for the rows and the tokenizer; PyTorch is not used.

    python train.py --model HuggingFaceTB/SmolLM2-135M --text train.txt
    torchrun --nproc_per_node 2 train.py --model Llama-3-8B --text train.txt --deepspeed cpu-ds.json
"""

import argparse

from datasets import load_dataset
from transformers import AutoTokenizer

from tessera import Trainer
from tessera import TrainingArguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder, or a name on the Hugging Face Hub")
    parser.add_argument("--text", required=True, nargs="+", help="text files, a document per line")
    parser.add_argument("--output_dir", default="tuned")
    parser.add_argument("--max_length", type=int, default=512, help="tokens per row")
    parser.add_argument("--max_steps", type=int, default=-1)
    parser.add_argument("--deepspeed", help="a DeepSpeed configuration file")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint of output_dir")
    options = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    lines = load_dataset("text", data_files={"train": options.text}, split="train")
    lines = lines.filter(lambda row: row["text"].strip() != "")
    rows = lines.map(
        lambda batch: tokenizer(batch["text"], truncation=True, max_length=options.max_length),
        batched=True,
        remove_columns=["text"],
    ).train_test_split(test_size=0.05, seed=42)

    trainer = Trainer(
        model=options.model,
        args=TrainingArguments(
            output_dir=options.output_dir,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=4,
            learning_rate=2e-5,
            lr_scheduler_type="cosine",
            warmup_steps=0.03,
            num_train_epochs=1,
            max_steps=options.max_steps,
            gradient_checkpointing=True,
            bf16=True,
            use_cpu=True,
            logging_steps=1,
            eval_strategy="epoch",
            save_strategy="epoch",
            report_to="none",
            deepspeed=options.deepspeed,
        ),
        train_dataset=rows["train"],
        eval_dataset=rows["test"],
        processing_class=tokenizer,
    )
    trainer.train(resume_from_checkpoint=options.resume or None)
    trainer.save_model()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
