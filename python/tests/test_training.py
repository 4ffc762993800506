"""Runs as a Python user starts, follows, stops and resumes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Iterator

import pytest
from sample_rows import texts

import tessera
from tessera import SFTConfig, SFTTrainer, TesseraError, Trainer, TrainerCallback, TrainingArguments
from tessera._program import program_path


def arguments(**changed: Any) -> TrainingArguments:
    settings = {"output_dir": "out", "max_steps": 6, "logging_steps": 1, "per_device_train_batch_size": 2,
                "save_strategy": "no", "report_to": "none"}  # fmt: skip
    changed["settings"] = {"measure_peak": False, **changed.get("settings", {})}
    return TrainingArguments(**{**settings, **changed})


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


class Recorder(TrainerCallback):
    """Writes down its calls, and asks for what the test wants."""

    def __init__(self, **wanted: int) -> None:
        self.calls: list[tuple[str, int]] = []
        self.wanted = wanted

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.calls.append(("begin", state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.calls.append(("step", state.global_step))
        for name, step in self.wanted.items():
            if state.global_step == step:
                setattr(control, name, True)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.calls.append(("log", state.global_step))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        assert metrics["eval_loss"] > 0
        self.calls.append(("evaluate", state.global_step))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert Path(args.output_dir, f"checkpoint-{state.global_step}").is_dir()
        self.calls.append(("save", state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.calls.append(("end", state.global_step))


def test_trains_as_the_program_does(model: str) -> None:
    rows = texts(40)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer = Trainer(model, arguments(), train_dataset=rows)
    output = trainer.train()
    subprocess.run([program_path(), "train", "--model", model, "--dataset", "rows.jsonl", "--max_steps", "6",
                    "--logging_steps", "1", "--per_device_train_batch_size", "2", "--save_strategy", "no",
                    "--output_dir", "by-program"], check=True, capture_output=True)  # fmt: skip
    history = json.loads(Path("by-program/trainer_state.json").read_text())["log_history"]
    assert losses(trainer) == [entry["loss"] for entry in history if "loss" in entry]
    assert output.global_step == 6
    assert output.training_loss == pytest.approx(sum(losses(trainer)) / 6, rel=1e-5)
    assert output.metrics["train_loss"] == output.training_loss
    assert Path("out/model.safetensors").read_bytes() == Path("by-program/model.safetensors").read_bytes()


def test_callbacks_are_called_in_the_order_of_transformers(model: str) -> None:
    recorder = Recorder()
    trainer = Trainer(model, arguments(max_steps=2, eval_strategy="steps", eval_steps=2), train_dataset=texts(20),
                      eval_dataset=texts(5), callbacks=[recorder])  # fmt: skip
    trainer.train()
    assert recorder.calls == [("begin", 0), ("step", 1), ("log", 1), ("step", 2), ("log", 2), ("evaluate", 2),
                              ("log", 2), ("log", 2), ("end", 2)]  # fmt: skip


def test_callback_saves_and_stops_at_its_step(model: str) -> None:
    recorder = Recorder(should_save=3, should_training_stop=4)
    trainer = Trainer(model, arguments(), train_dataset=texts(20), callbacks=[recorder])
    assert trainer.train().global_step == 4
    assert ("save", 3) in recorder.calls
    assert Path("out/checkpoint-3").is_dir() and Path("out/model.safetensors").exists()
    # A callback stopped the run early: it resumes from the checkpoint, as in Transformers.
    again = Trainer(model, arguments(), train_dataset=texts(20))
    assert again.train(resume_from_checkpoint=True).global_step == 6
    whole = Trainer(model, arguments(output_dir="whole"), train_dataset=texts(20))
    whole.train()
    assert losses(again) == losses(whole)
    assert Path("out/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


def test_error_of_a_callback_ends_the_run(model: str) -> None:
    class Broken(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise ZeroDivisionError("of the user")

    trainer = Trainer(model, arguments(max_steps=1000), train_dataset=texts(20), callbacks=[Broken()])
    with pytest.raises(ZeroDivisionError, match="of the user"):
        trainer.train()
    with pytest.raises(TesseraError, match="training has not ended"):
        trainer.evaluate(texts(3))


def test_rows_of_token_ids_lose_their_padding(model: str) -> None:
    rows = [{"input_ids": list(range(3, 10 + i)), "labels": [-100, *range(4, 10 + i)]} for i in range(20)]
    padded = [{name: values + [0 if name == "input_ids" else -100] * (40 - len(values)) for name, values in row.items()}
              | {"attention_mask": [1] * len(row["labels"]) + [0] * (40 - len(row["labels"]))}
              for row in rows]  # fmt: skip
    without, with_padding = (Trainer(model, arguments(output_dir=name), train_dataset=data)
                             for name, data in (("a", rows), ("b", padded)))  # fmt: skip
    without.train()
    with_padding.train()
    assert losses(without) == losses(with_padding)
    assert without.state.num_input_tokens_seen == with_padding.state.num_input_tokens_seen


def test_stream_has_the_rows_of_a_list(model: str) -> None:
    class Stream:
        """Rows without a length, like datasets.IterableDataset."""

        num_drawn = 0

        def __iter__(self) -> Iterator[Any]:
            for row in texts(30):
                self.num_drawn += 1
                yield row

    stream = Stream()
    streamed = Trainer(model, arguments(output_dir="streamed"), train_dataset=stream)
    streamed.train()
    listed = Trainer(
        model, arguments(output_dir="listed", train_sampling_strategy="sequential"), train_dataset=texts(30)
    )
    listed.train()
    assert losses(streamed) == losses(listed)


def test_generator_that_ends_is_enough_for_the_steps_it_has_rows_for(model: str) -> None:
    trainer = Trainer(model, arguments(), train_dataset=(row for row in texts(13)))
    assert trainer.train().global_step == 6
    with pytest.raises(TesseraError, match="max_steps"):
        Trainer(model, arguments(max_steps=-1), train_dataset=(row for row in texts(13))).train()


def test_error_of_the_rows_is_raised(model: str) -> None:
    def rows() -> Iterator[Any]:
        yield from texts(5)
        raise ZeroDivisionError("of the rows")

    with pytest.raises(ZeroDivisionError, match="of the rows"):
        Trainer(model, arguments(max_steps=100), train_dataset=rows()).train()


def test_callback_that_is_a_class_is_one_object(model: str) -> None:
    class Counts(TrainerCallback):
        made = 0

        def __init__(self) -> None:
            Counts.made += 1

    Trainer(model, arguments(max_steps=1), train_dataset=texts(9), callbacks=[Counts]).train()
    assert Counts.made == 1


def test_evaluation_sets_have_any_names(model: str) -> None:
    sets = {"../outside": texts(4), "b c": texts(5)}
    trainer = Trainer(model, arguments(), train_dataset=texts(9), eval_dataset=sets)
    assert {"eval_../outside_loss", "eval_b c_loss"} <= set(trainer.evaluate())
    with pytest.raises(TesseraError, match="eval_dataset: expected rows that can be read again"):
        trainer.evaluate(row for row in texts(4))


def test_long_folder_for_temporary_files(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path.cwd() / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert Trainer(model, arguments(max_steps=1), train_dataset=texts(9)).train().global_step == 1
    assert list(folder.iterdir()) == []


def test_several_ranks_on_this_machine(model: str) -> None:
    trainer = Trainer(model, arguments(per_device_train_batch_size=1), train_dataset=texts(20), nproc_per_node=2)
    assert trainer.train().global_step == 6
    one = Trainer(model, arguments(output_dir="one"), train_dataset=texts(20))
    one.train()
    assert losses(trainer) == pytest.approx(losses(one), rel=2e-3)


def test_sft_trains_an_adapter_on_answers(model: str) -> None:
    rows = [{"messages": [{"role": "user", "content": "what?"}, {"role": "assistant", "content": row["text"]}]}
            for row in texts(20)]  # fmt: skip
    args = SFTConfig("out", max_steps=3, logging_steps=1, assistant_only_loss=True, max_length=120,
                     report_to="none", settings={"chat_template": "chatml"})  # fmt: skip
    trainer = SFTTrainer(model, args, train_dataset=rows, eval_dataset=rows,
                         peft_config=tessera.LoraConfig(r=4, target_modules="all-linear"))  # fmt: skip
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert json.loads(Path("out/adapter_config.json").read_text())["r"] == 4
    assert trainer.evaluate()["eval_loss"] < before
    trainer.save_model("adapter")
    assert Path("adapter/adapter_model.safetensors").read_bytes() == Path("out/adapter_model.safetensors").read_bytes()


@pytest.mark.parametrize("peft", [None, tessera.LoraConfig(r=2)])
def test_training_again_goes_on_with_what_was_trained(model: str, peft: tessera.LoraConfig | None) -> None:
    trainer = Trainer(model, arguments(learning_rate=0.01), train_dataset=texts(20), peft_config=peft)
    found = [trainer.evaluate(texts(9))["eval_loss"]]
    for _ in range(2):
        trainer.train()
        found.append(trainer.evaluate(texts(9))["eval_loss"])
    assert found[0] > found[1] > found[2]
    assert losses(trainer)[0] < found[0]  # the losses of the second run


def test_best_of_several_sets_is_checked_before_anything_runs(model: str) -> None:
    args = arguments(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, metric_for_best_model="loss",
                     load_best_model_at_end=True)  # fmt: skip
    with pytest.raises(TesseraError, match="eval_a_loss"):
        Trainer(model, args, train_dataset=texts(9), eval_dataset={"a": texts(3), "b": texts(3)})


def test_steps_are_not_shown_where_no_progress_is_wanted(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    for disable_tqdm in (None, True):
        Trainer(model, arguments(disable_tqdm=disable_tqdm), train_dataset=texts(9)).train()
        shown = capfd.readouterr()
        assert ("info: step " in shown.err) == (disable_tqdm is None)
        assert "'loss': " in shown.out


def test_commands_return_objects(model: str) -> None:
    Trainer(model, arguments(), train_dataset=texts(20)).train()
    answers = tessera.generate("out", ["the model", "rows"], max_new_tokens=3, temperature=0)
    assert len(answers) == 2 and all(isinstance(answer, str) for answer in answers)
    plan = tessera.plan(model, machine="here", max_length=64, measure_peak=False)
    assert plan.memory.fits and plan.memory.node_bytes > plan.num_parameters
    with pytest.raises(TesseraError, match="^unknown setting 'max_tokns'; did you mean max_new_tokens"):
        tessera.generate("out", "the model", max_tokns=3)
    with pytest.raises(TesseraError, match="^max_length: expected a whole number, found 'long'"):
        tessera.plan(model, max_length="long")


@pytest.mark.parametrize(
    "change, exit_code, message",
    [
        ({"train_dataset": [{"words": "no column that rows have"}]}, 65, "train_dataset: line 1: expected the columns"),
        ({"train_dataset": []}, 65, "train_dataset"),
        ({"train_dataset": [{"text": object()}]}, 78, "train_dataset: a row has a value of type object"),
        ({"train_dataset": [{"text": "half a pair: \ud800"}]}, 65, "train_dataset: a row cannot be written as JSON"),
        ({"train_dataset": [{("a", "b"): "a key"}]}, 65, "train_dataset: a row cannot be written as JSON"),
        ({"train_dataset": iter([{"words": "no column that rows have"}])}, 65, "train_dataset: a row: expected the columns"),
        ({"train_dataset": None}, 64, "expected a train_dataset"),
        ({"nproc_per_node": 0}, 64, "nproc_per_node: expected a number from 1"),
        ({"model": "no/such-model-anywhere"}, 66, "no/such-model-anywhere"),
        ({"data_collator": lambda rows: rows}, 78, "data_collator: <lambda> is Python code"),
        ({"compute_metrics": print}, 78, "compute_metrics: print is Python code"),
        ({"args": "a string"}, 78, "args: expected TrainingArguments"),
    ],
)
def test_mistake_is_one_exception_with_one_line(model: str, change: Any, exit_code: int, message: str) -> None:
    given = {"model": model, "args": arguments(), "train_dataset": texts(5), **change}
    environment = {"HF_HUB_OFFLINE": "1"}
    os.environ.update(environment)
    with pytest.raises(TesseraError) as caught:
        Trainer(**given).train()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value) and "--" not in str(caught.value)
    assert caught.value.exit_code == exit_code


def test_prompts_that_are_none_are_refused_by_their_name(model: str) -> None:
    for prompts in (3, [], [None], "half a pair: \ud800"):
        with pytest.raises(TesseraError, match="^prompts: ") as caught:
            tessera.generate(model, prompts)  # type: ignore[arg-type]
        assert "/tmp" not in str(caught.value)


def test_program_that_is_not_there_is_one_error(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_PROGRAM", "/nowhere/tessera")
    with pytest.raises(TesseraError, match="/nowhere/tessera, found none"):
        TrainingArguments("out")


def test_program_that_is_killed_is_one_error(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    class Kills(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            subprocess.run(["pkill", "-KILL", "-P", str(os.getpid()), "tessera"], check=True)

    with pytest.raises(TesseraError, match="the program was killed") as caught:
        Trainer(model, arguments(max_steps=1000), train_dataset=texts(20), callbacks=[Kills()]).train()
    assert caught.value.exit_code == 137
    assert "Traceback" not in capfd.readouterr().err


def test_what_trainer_lacks_says_what_there_is(model: str) -> None:
    trainer = Trainer(model, arguments(), train_dataset=texts(5))
    assert not hasattr(trainer, "accelerator")
    with pytest.raises(TesseraError, match="Trainer.hyperparameter_search does not exist.*start a run for each"):
        trainer.hyperparameter_search()


def test_callback_is_removed_by_class_or_object(model: str) -> None:
    first, second = Recorder(), Recorder()
    trainer = Trainer(model, arguments(), train_dataset=texts(5), callbacks=[first, second])
    trainer.remove_callback(second)
    assert trainer.pop_callback(Recorder) is first
    assert trainer.pop_callback(Recorder) is None


def test_subclass_that_computes_is_refused(model: str) -> None:
    class Own(Trainer):
        def compute_loss(self) -> None: ...

    with pytest.raises(TesseraError, match="Own.compute_loss"):
        Own(model, arguments(), train_dataset=texts(5))


SCRIPT = textwrap.dedent("""
    import sys, time
    sys.path.insert(0, {tests!r})
    from sample_rows import texts
    from tessera import Trainer, TrainerCallback, TrainingArguments

    class Slow(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            print("step", state.global_step, flush=True)
            time.sleep(0.05)

    args = TrainingArguments("out", max_steps=int(sys.argv[2]), per_device_train_batch_size=2, save_steps=5)
    trainer = Trainer(sys.argv[1], args, train_dataset=texts(20), callbacks=[Slow()])
    trainer.train(resume_from_checkpoint=len(sys.argv) > 3 or None)
    print("done", trainer.state.global_step)
""")


def start_script(model: str, *more: str) -> subprocess.Popen[str]:
    Path("script.py").write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    # Where the tests run in the background of a shell, they inherit SIGINT as ignored.
    return subprocess.Popen([sys.executable, "script.py", model, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip


def read_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    raise AssertionError(f"ended without {line}: {process.stderr and process.stderr.read()}")


def test_reader_of_the_output_that_goes_does_not_hold_up_the_run(model: str) -> None:
    lines = ["from tessera import Trainer, TrainingArguments", "import sys",
             "args = TrainingArguments('out', max_steps=1000, logging_steps=1, save_strategy='no', report_to='none')",
             "Trainer(sys.argv[1], args, train_dataset=[{'text': 'the model learns'}] * 9).train()"]  # fmt: skip
    Path("chatty.py").write_text("\n".join(lines))
    process = subprocess.Popen([sys.executable, "chatty.py", model], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=120)
    assert b"Traceback" not in errors, errors
    assert json.loads(Path("out/trainer_state.json").read_text())["global_step"] == 1000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_run_that_is_ended_by_a_signal_resumes(
    model: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(Path("tmp").resolve()))
    process = start_script(model, "10000")
    read_until(process, "step 7")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt")
    else:
        assert process.returncode == -number
    deadline = time.monotonic() + 60
    while not list(Path("out").glob("checkpoint-[6-9]*")):  # written on the signal, or once the script was gone
        assert time.monotonic() < deadline
        time.sleep(0.1)
    again = start_script(model, "12", "resume")
    output, errors = again.communicate(timeout=60)
    assert "done 12" in output, errors
    assert "step 3\n" not in output
    assert list(Path("tmp").glob("*/settings.json")) == []  # also where Python could not remove its folder
