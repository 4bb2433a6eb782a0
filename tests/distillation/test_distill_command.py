"""From a target to a draft folder: acceptance rises, the engine builder takes the folder, errors are clear."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tiny_target import VOCAB, write_target
from typer.testing import CliRunner

import pipeline.spec
from pipeline.client.cli import app
from pipeline.distillation.acceptance import by_temperature, measure
from pipeline.distillation.corpus import POSITIONS, Corpus, CorpusWriter, read_shard
from pipeline.distillation.distill import distill
from pipeline.distillation.options import DistillOptions
from pipeline.distillation.prompts import PromptMaker
from pipeline.distillation.student import Student, draft_config, layers_of_draft, layers_of_target, rank_tokens
from pipeline.distillation.training import Trainer, TrainingOptions
from pipeline.distillation.writer import Target
from pipeline.errors import EngineError, InvalidRequestError, SpecDecodeError
from pipeline.spec import DeploymentSpec
from pipeline.text.tokenizer import Tokenizer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus_folder(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    target = Target(target_folder, CPU, POSITIONS, torch.float32)
    writer = CorpusWriter(target, Tokenizer.load(target_folder), PromptMaker(0), slots=32, seed=0)
    counts: list[int] = []
    written = writer.write(folder, "0", 6000, 120.0, lambda tokens, _: counts.append(tokens))
    assert written == counts[-1] and counts == sorted(counts)
    return folder


def test_training_raises_acceptance(target_folder: Path, corpus_folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    training, held_out = Corpus.load(corpus_folder).split(0.2, 10)
    target = Target(target_folder, CPU, POSITIONS, torch.float32)
    layers = layers_of_target(target_folder, 2, POSITIONS)
    student = Student(target, layers, rank_tokens(training.sequences, VOCAB), VOCAB)
    before = by_temperature(measure(target, student, held_out.sequences))
    trainer = Trainer(student, training, TrainingOptions(120.0, steps=60, rate=3e-3, batch_tokens=1024))
    trainer.run(lambda step: None)
    after = by_temperature(measure(target, student, held_out.sequences))
    assert set(after) == {0.0, 0.7, 1.0}
    assert trainer.steps == 60
    for temperature in (0.7, 1.0):  # greedy texts of a random model repeat one token
        assert after[temperature].rate > before[temperature].rate + 0.05, temperature

    student.save(tmp_path / "draft", target_folder)
    again = Student(target, layers_of_draft(tmp_path / "draft", target.config, POSITIONS), student.frequent, VOCAB)
    for old, new in zip(student.layers.parameters(), again.layers.parameters(), strict=True):
        torch.testing.assert_close(new.data, old.data, atol=2e-3, rtol=2e-3)  # FP16


def test_the_command_writes_a_draft_that_the_builder_takes(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exclude = tmp_path / "bench.jsonl"
    exclude.write_text('{"kind": "chat", "text": "w1 w2 w3"}\n{"kind": "code", "text": "w4 w5"}\n')
    out = tmp_path / "my-draft"
    options = DistillOptions(
        target_folder,
        out,
        layers=1,
        minutes=5.0,
        tokens=1500,
        steps=20,
        exclude=exclude,
        slots=12,
        workers=1,
        head_tokens=64,
        device="cpu",
        batch_tokens=1024,
    )
    console = Console(record=True, width=120)
    assert distill(options, console) == 0
    assert {path.name for path in out.iterdir()} == {
        "README.md",
        "config.json",
        "frequent_token_ids.json",
        "model.safetensors",
    }
    tensors = load_file(out / "model.safetensors")
    assert "model.embed_tokens.weight" not in tensors and all(t.dtype == torch.float16 for t in tensors.values())
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 1
    ids = json.loads((out / "frequent_token_ids.json").read_text())
    assert len(set(ids)) == len(ids) <= VOCAB
    card = (out / "README.md").read_text()
    assert "sha256" in card and "bench.jsonl" in card and "| T 0 |" in card and "Licence" in card
    assert "Acceptance on held-out texts" in console.export_text()

    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "build"))
    sys.modules.pop("embedded", None)
    import embedded

    monkeypatch.setattr(pipeline.spec, "ROOT", tmp_path)
    spec = DeploymentSpec.model_validate(
        {
            "name": "tiny",
            "dtype": "float32",
            "target": {"model": "t", "kv_blocks": 16},
            "draft": {"kind": "model", "model": "d", "head_tokens": 64, "kv_blocks": 16},
            "tokens_per_block": 8,
            "limits": {"max_seq_len": 64, "max_draft_len": 4, "max_requests": 2},
        }
    )
    embedded.build_engines(spec, target_folder, out, lambda line: None)
    assert (spec.engine_dir("draft") / "manifest.json").is_file()


def test_a_corpus_is_read_as_it_was_written(corpus_folder: Path) -> None:
    for path in sorted(corpus_folder.glob("*.safetensors")):
        for sequence in read_shard(path):
            count = sequence.tokens.numel() - sequence.prompt_length
            assert sequence.top_ids.shape == sequence.top_log_probs.shape == (count, 64)
            assert sequence.temperature in (0.0, 0.7, 1.0)
            if sequence.temperature == 0:
                assert sequence.tokens[sequence.prompt_length :].tolist() == sequence.top_ids[:, 0].tolist()


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "0-00000.safetensors").write_bytes(b"nothing")
    with pytest.raises(EngineError, match="0-00000"):
        Corpus.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers = 0"),
        ({"layers": 3}, "layers = 3: must be between 1 and 2"),
        ({"minutes": 0.0}, "minutes = 0.0: must be between"),
        ({"tokens": 1}, "tokens = 1"),
        ({"head_tokens": 1}, "head-tokens = 1"),
        ({"batch_tokens": 10}, "batch-tokens = 10"),
        ({"rate": 5.0}, "rate = 5.0"),
        ({"device": "abacus"}, "device = 'abacus'"),
        ({"target": Path("nowhere")}, "target = 'nowhere'"),
        ({"init": Path("nowhere")}, "init = 'nowhere'"),
        ({"corpus": Path("nowhere")}, "corpus = 'nowhere'"),
        ({"prompts": Path("nowhere")}, "prompts = 'nowhere'"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(
    changes: dict[str, Any], message: str, target_folder: Path, tmp_path: Path
) -> None:
    valid = {"target": target_folder, "out": tmp_path / "d", "layers": 1, "device": "cpu"}
    options = DistillOptions(**{**valid, **changes})
    with pytest.raises(SpecDecodeError, match=message.replace("(", r"\(")):
        distill(options, Console(quiet=True))
    assert not (tmp_path / "d").exists()


def test_the_command_line_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["distill", "nowhere", "--out", str(tmp_path / "d")])
    assert done.exit_code == 1
    assert done.output.startswith("error: target = 'nowhere': must be")
    assert done.output.count("\n") == 1


def test_an_output_folder_in_use_is_left_alone(target_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InvalidRequestError, match="is not empty"):
        distill(DistillOptions(target_folder, tmp_path), Console(quiet=True))


def test_a_draft_of_another_target_is_refused(target_folder: Path, tmp_path: Path) -> None:
    other = write_target(tmp_path / "other", vocab_size=VOCAB)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": VOCAB + 1}))
    with pytest.raises(InvalidRequestError, match=f"vocab_size = {VOCAB + 1}"):
        distill(DistillOptions(target_folder, tmp_path / "d", init=other, device="cpu"), Console(quiet=True))


def test_the_configuration_says_nothing_of_how_the_target_was_stored() -> None:
    data = draft_config({"torch_dtype": "bfloat16", "_name_or_path": "x", "hidden_size": 4, "layer_types": ["a"]}, 2)
    assert data == {"hidden_size": 4, "num_hidden_layers": 2, "dtype": "float16"}
