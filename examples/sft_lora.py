"""Teaches a chat model to answer in a given way: LoRA on conversations, the loss on answers only.

A script for TRL's SFTTrainer and PEFT, in which the imports are Tessera's. It needs no other package.

    python sft_lora.py --model HuggingFaceTB/SmolLM2-135M-Instruct
    python sft_lora.py --model meta-llama/Llama-3.2-1B-Instruct --dataset chats.jsonl --nproc_per_node 2
"""

import argparse

import tessera
from tessera import LoraConfig, SFTConfig, SFTTrainer, TrainerCallback

CITIES = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Norway": "Oslo",
    "Austria": "Vienna",
    "Greece": "Athens",
}


def conversations() -> list:
    """Rows as TRL takes them; all answers are worded alike, which is what the model is to learn."""
    rows = []
    for country, city in CITIES.items():
        for question in (
            f"What is the capital of {country}?",
            f"Name {country}'s capital.",
            f"{country}: its capital?",
        ):
            answer = f"Of {country} it is {city}, as everybody knows, and every map of {country} shows."
            rows.append({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]})
    return rows


class StopWhenLearned(TrainerCallback):
    """Ends the run once the loss is low, and keeps what was learned."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and logs.get("loss", 1) < 0.05:
            control.should_training_stop = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder, or a name on the Hugging Face Hub")
    parser.add_argument("--dataset", help="conversations: a file, a folder or a name on the Hub")
    parser.add_argument("--chat_template", help="for a model without one: chatml, llama3 or a file")
    parser.add_argument("--output_dir", default="adapter")
    parser.add_argument("--max_steps", type=int, default=60)
    parser.add_argument("--nproc_per_node", type=int, help="ranks to start on this machine")
    options = parser.parse_args()

    trainer = SFTTrainer(
        model=options.model,
        args=SFTConfig(
            output_dir=options.output_dir,
            max_steps=options.max_steps,
            per_device_train_batch_size=6,
            learning_rate=1e-3,
            assistant_only_loss=True,
            logging_steps=5,
            save_strategy="no",
            report_to="none",
            nproc_per_node=options.nproc_per_node,
            settings={"chat_template": options.chat_template} if options.chat_template else {},
        ),
        train_dataset=options.dataset or conversations(),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[StopWhenLearned()],
    )
    print(trainer.train())
    print(tessera.generate(options.model, "The capital of France is", adapter=options.output_dir, max_new_tokens=16,
                           temperature=0))  # fmt: skip


if __name__ == "__main__":
    main()
