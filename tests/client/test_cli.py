"""The `specdec` command from outside: exit status, one-line errors, help; and serving as a user does it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.client.cli import app
from pipeline.client.options import GenerationOptions
from pipeline.serving.shared_memory import group_members, regions
from pipeline.spec import DEFAULT_SPEC, ROOT

SPEC_TEXT = "name: {name}\ntarget: {{model: nowhere}}\ndraft: {{kind: none}}\n"


def specdec(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-m", "pipeline.client.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, cwd=ROOT)


def one_line_error(done: subprocess.CompletedProcess[str]) -> str:
    """The error a failed command printed; anything like a traceback fails the test."""
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.mark.parametrize(
    "command",
    [
        *("engines", "repo", "serve", "stop", "request", "generate", "load", "demo"),
        *("bench", "acceptance", "speculation", "replay", "choose-draft", "soak"),
    ],
)
def test_every_command_explains_itself(command: str) -> None:
    done = specdec(command, "--help")
    assert done.returncode == 0
    assert "--spec" in done.stdout


@pytest.mark.parametrize("command", ["engines", "repo", "serve", "generate"])
def test_a_malformed_spec_is_one_line(command: str, tmp_path: Path) -> None:
    spec = tmp_path / "bad.yaml"
    spec.write_text(SPEC_TEXT.format(name="bad") + "limits: {max_sequence: 7}\n")
    words = ["hello"] if command == "generate" else []
    error = one_line_error(specdec(command, *words, "--spec", str(spec)))
    assert "limits.max_sequence: unknown key; nearest known key: max_seq_len" in error


@pytest.mark.parametrize("command", ["serve", "generate"])
def test_a_missing_engine_names_the_command_that_builds_it(command: str, tmp_path: Path) -> None:
    spec = tmp_path / "unbuilt.yaml"
    spec.write_text(SPEC_TEXT.format(name="never-built"))
    words = ["hello"] if command == "generate" else []
    assert "make engines" in one_line_error(specdec(command, *words, "--spec", str(spec)))


def test_a_missing_model_folder(tmp_path: Path) -> None:
    spec = tmp_path / "nowhere.yaml"
    spec.write_text(SPEC_TEXT.format(name="never-built"))
    assert "nowhere does not exist" in one_line_error(specdec("engines", "--spec", str(spec)))


def test_tensorrt_says_what_it_needs(tmp_path: Path) -> None:
    """Without a GPU: each command says what is missing, and the dry run works."""
    spec = tmp_path / "gpu.yaml"
    spec.write_text("name: gpu\nengine: tensorrt_llm\ntarget: {model: Qwen/Qwen3-0.6B}\ndraft: {kind: ngram}\n")
    needs = "needs a GPU and TensorRT-LLM 1.2.1"
    if shutil.which("trtllm-build") is None:
        error = one_line_error(specdec("engines", "--spec", str(spec)))
        assert "trtllm-build is not on PATH" in error and needs in error
    assert needs in one_line_error(specdec("generate", "hello", "--spec", str(spec)))
    assert "make engines" in one_line_error(specdec("serve", "--spec", str(spec)))
    done = specdec("engines", "--spec", str(spec), "--dry-run")
    assert done.returncode == 0 and "--speculative_decoding_mode draft_tokens_external" in done.stdout


def test_a_bad_option_is_refused_before_anything_is_asked() -> None:
    assert "temperature = -1.0" in one_line_error(specdec("request", "hello", "--temperature", "-1"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--min-p", "2"), "min_p = 2.0: must be a number in [0, 1]"),
        (("--repetition-penalty", "0"), "repetition_penalty = 0.0"),
        (("--bias", "word"), "bias = 'word': must be WORD=WEIGHT"),
        (("--bias", "=1"), "bias = '=1': must be WORD=WEIGHT"),
        (("--bias", "a=nan"), "bias = 'a=nan': must be WORD=WEIGHT"),
        (("--bad", ""), "bad_words = ''"),
        (("--min-tokens", "9", "--max-tokens", "8"), "min_tokens = 9: must be between 0 and max_tokens = 8"),
        (("-n", "0"), "num_return_sequences = 0"),
        (("--stream-tokens", "all"), "stream_tokens = 'all': must be one of round, each"),
    ],
)
def test_every_option_is_checked_before_anything_is_loaded(options: tuple[str, ...], message: str) -> None:
    for command in ("request", "generate"):
        done = CliRunner().invoke(app, [command, "hello", *options])
        assert done.exit_code == 1 and done.output == f"error: {done.output[7:]}" and message in done.output


def test_request_and_generate_have_the_same_options() -> None:
    """One definition: every field of GenerationOptions is an option of both, with help."""
    found = {}
    for command in ("request", "generate"):
        done = specdec(command, "--help")
        found[command] = set(re.findall(r"--[a-z-]+", done.stdout))
        for spec in fields(GenerationOptions):
            assert f"--{spec.name.replace('_', '-')}" in found[command]
    assert found["request"] - found["generate"] == {"--url"}


def test_options_become_a_request() -> None:
    options = GenerationOptions(
        max_tokens=9, min_tokens=2, top_k=3, min_p=0.5, bias=["a=b=2", " c=-1"], bad=["x"], stop=["y"], log_probs=True,
        num_return_sequences=2, num_draft_tokens=0,
    )  # fmt: skip
    request = options.request("hi")
    assert request.embedding_bias == (("a=b", 2.0), (" c", -1.0))
    assert (request.bad_words, request.stop_words, request.num_draft_tokens) == (("x",), ("y",), 0)
    assert request.return_log_probs and request.stream and request.num_return_sequences == 2
    assert (request.sampling.top_k, request.sampling.min_p, request.min_tokens) == (3, 0.5, 2)


def test_no_server_is_said_plainly() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    assert f"no server at {address}" in one_line_error(specdec("request", "hello", "--url", address))


@pytest.mark.demo
def test_a_truncated_engine_is_refused(demo_copy: Path) -> None:
    """A copy of the demo with the beginning of its weights: the hash check says which file."""
    weights = next((ROOT / "engines").glob(f"copy-{os.getpid()}/target/weights.safetensors"))
    with weights.open("rb") as stream:
        beginning = stream.read(1 << 20)
    weights.unlink()  # a hard link: the demo's own file must not be written
    weights.write_bytes(beginning)
    for command in (("generate", "hello"), ("serve", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")):
        error = one_line_error(specdec(*command, "--spec", str(demo_copy)))
        assert "weights.safetensors is damaged (1048576 bytes" in error


@pytest.mark.demo
def test_generate_decodes_in_process() -> None:
    """Plain text in a pipe: no colour codes; the same text whatever K."""
    texts = []
    for k in ("0", "3"):
        done = specdec("generate", "The capital of France is", "--max-tokens", "12", "-k", k, "--no-stats")
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        texts.append(done.stdout)
    assert texts[0] == texts[1]
    assert "Paris" in texts[0]


@pytest.mark.demo
def test_generate_with_options() -> None:
    """Two answers with their log-probabilities, one response per token; the same command gives the same texts."""
    command = ("generate", "The sea is", "--max-tokens", "5", "--temperature", "1", "--seed", "3", "-n", "2")
    first, second = (specdec(*command, "--log-probs", "--stream-tokens", "each") for _ in range(2))
    assert first.returncode == 0, first.stderr
    lines = [line for line in first.stdout.splitlines() if line.startswith("log-probs: ")]
    assert len(lines) == 2 and all(len(line.split(";")[0].split()) == 6 for line in lines)
    assert first.stdout.splitlines()[0] == second.stdout.splitlines()[0]


@pytest.mark.demo
@pytest.mark.served
def test_the_demo_runs_and_leaves_nothing(demo_copy: Path) -> None:
    """`specdec demo` on a copy of the engines: a streamed answer, the table, texts equal, status 0."""
    done = specdec("demo", "--spec", str(demo_copy), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Amazon" in done.stdout and "speedup" in done.stdout and "NO (" not in done.stdout
    assert "stopped;" in done.stdout


@pytest.fixture
def demo_copy(tmp_path: Path) -> Iterator[Path]:
    """A spec with a name of its own on the demo's engine files: another test's server holds the demo's lock."""
    name = f"copy-{os.getpid()}"
    engines = ROOT / "engines" / name
    spec = tmp_path / "copy.yaml"
    spec.write_text(re.sub(r"^name: demo", f"name: {name}", DEFAULT_SPEC.read_text(), flags=re.M))
    shutil.copytree(ROOT / "engines" / "demo", engines, ignore=shutil.ignore_patterns(".*"), copy_function=os.link)
    yield spec
    shutil.rmtree(engines, ignore_errors=True)
    shutil.rmtree(ROOT / "runs" / name, ignore_errors=True)


@pytest.mark.demo
def test_a_changed_spec_is_told_from_its_engine(demo_copy: Path) -> None:
    """Engines of an older spec are not served as if they were of the new one."""
    demo_copy.write_text(demo_copy.read_text().replace("max_draft_len: 11", "max_draft_len: 5"))
    error = one_line_error(specdec("serve", "--spec", str(demo_copy)))
    assert "limits.max_draft_len is 5, was 11" in error and "make engines" in error


def test_a_port_out_of_range() -> None:
    done = specdec("serve", "--http-port", "99999")
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.demo
@pytest.mark.served
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_serve_says_when_an_inference_has_passed_and_stops_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    """As a user: serve, ask, a second server and a port in use are refused, a signal ends it with status 0."""
    # Its own engine name: another test's server holds the lock of the demo engines.
    name = f"cli-{os.getpid()}"
    engines = ROOT / "engines" / name
    spec = tmp_path / "cli.yaml"
    spec.write_text(re.sub(r"^name: demo", f"name: {name}", DEFAULT_SPEC.read_text(), flags=re.M))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-m", "pipeline.client.cli", "serve", "--spec", str(spec)]
    ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    shutil.copytree(ROOT / "engines" / "demo", engines, ignore=shutil.ignore_patterns(".*"), copy_function=os.link)
    server = subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert "an inference has passed" in line, line + server.stdout.read()
        found = re.search(r"http 127\.0\.0\.1:(\d+), grpc (\S+), .* pid (\d+)", line)
        assert found is not None
        asked = specdec("request", "Hello", "--spec", str(spec), "--max-tokens", "4")
        assert asked.returncode == 0
        assert "4 tokens" in asked.stdout
        loaded = specdec("load", "--spec", str(spec), "--requests", "2", "--concurrency", "1", "--max-tokens", "4")
        assert loaded.returncode == 0, loaded.stderr
        assert "perf_analyzer, plain|speculative: medians of 2 requests" in loaded.stdout
        assert "are served already" in one_line_error(specdec("serve", "--spec", str(spec)))
        other = tmp_path / "other.yaml"
        other.write_text(DEFAULT_SPEC.read_text().replace("name: demo", f"name: {name}-b"))
        shutil.copytree(
            engines, engines.with_name(f"{name}-b"), ignore=shutil.ignore_patterns(".*"), copy_function=os.link
        )
        refused = one_line_error(specdec("serve", "--spec", str(other), "--http-port", found[1]))
        assert f"ports.http = {found[1]}" in refused
        started = time.monotonic()
        server.send_signal(number)
        assert server.wait(30) == 0
        assert time.monotonic() - started < 30
        assert "stopped" in server.stdout.read()
        assert group_members(int(found[3])) == []
        assert regions(int(found[3])) == []
    finally:
        if server.poll() is None:
            server.terminate()  # killed, it would leave Triton behind
            server.wait(60)
        shutil.rmtree(engines, ignore_errors=True)
        shutil.rmtree(engines.with_name(f"{name}-b"), ignore_errors=True)
        shutil.rmtree(ROOT / "runs" / name, ignore_errors=True)
        shutil.rmtree(ROOT / "runs" / f"{name}-b", ignore_errors=True)


@pytest.mark.parametrize("command", ["serve", "generate"])
def test_a_trace_that_cannot_be_written_is_refused_before_anything_is_loaded(command: str, tmp_path: Path) -> None:
    words = ["hello"] if command == "generate" else []
    done = CliRunner().invoke(app, [command, *words, "--trace", str(tmp_path / "missing" / "t.jsonl")])
    assert done.exit_code == 1
    assert "t.jsonl': must be a file that can be written: No such file or directory" in done.output.replace("\n", "")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("sometimes", "speculation = 'sometimes': must be auto, off or a number up to max_draft_len = 8"),
        ("9", "speculation = '9': must be auto, off or a number up to max_draft_len = 8"),
        ("off", "no server of never-started is running; one starts with `speculation: auto`"),
    ],
)
def test_speculation_is_switched_on_running_servers_only(setting: str, message: str, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC_TEXT.format(name="never-started"))
    done = CliRunner().invoke(app, ["speculation", setting, "--spec", str(spec)])
    assert (done.exit_code, done.output) == (1, f"error: {message}\n")
