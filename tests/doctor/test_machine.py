"""Checks that look at the machine: GPUs, container, memory, shared memory, ports; and how it is seen."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doctor.support import CONFIG, GPU_MACHINE, H100, findings_of, make_spec, severities
from pipeline.doctor.checks.drafting import DraftSize, DraftUse
from pipeline.doctor.checks.gpus import Calibration, Container, GpusPresent
from pipeline.doctor.checks.memory import Memory
from pipeline.doctor.checks.ports import Ports
from pipeline.doctor.checks.shared_memory import MIB, SharedMemory
from pipeline.doctor.checks.split import Split
from pipeline.doctor.machine import Machine, parse_gpus
from pipeline.planning.gpus import find_gpu
from pipeline.spec import DeploymentSpec

BIG, SMALL = "meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"
FOUR = tuple(replace(H100, index=number) for number in range(4))


def on_gpus(target: str | Path = BIG, draft: str | Path | None = SMALL, **changes: Any) -> DeploymentSpec:
    return make_spec(target, draft, engine="tensorrt_llm", **changes)


def test_gpus_that_are_there() -> None:
    spec = on_gpus(**{"target.tensor_parallel": 4})
    assert severities(findings_of(GpusPresent, spec, replace(GPU_MACHINE, gpus=FOUR))) == ["ok"]
    (finding,) = findings_of(GpusPresent, spec, Machine())
    assert finding.severity == "not checked" and "needs 4" in finding.why
    found = findings_of(GpusPresent, spec, replace(GPU_MACHINE, gpus=FOUR[:2]))
    assert "error" in severities(found) and "GPU 2 is not here (2 seen)" in found[0].what


@pytest.mark.parametrize(
    ("architecture", "weights", "severity"),
    [
        ("7.0", "float16", "error"),
        ("8.0", "float16", "ok"),
        ("8.6", "fp8", "error"),
        ("8.9", "fp8", "ok"),
        ("10.0", "int4", "error"),
        ("12.0", "int8", "ok"),
    ],
)
def test_compute_capabilities(architecture: str, weights: str, severity: str) -> None:
    machine = replace(GPU_MACHINE, gpus=(replace(H100, architecture=architecture),))
    assert findings_of(GpusPresent, on_gpus(**{"target.weights": weights}), machine)[0].severity == severity


@pytest.mark.parametrize(("driver", "severity"), [("575.51.03", "warning"), ("580.95.05", "ok"), ("590.1", "ok")])
def test_drivers(driver: str, severity: str) -> None:
    machine = replace(GPU_MACHINE, gpus=(replace(H100, driver=driver),))
    assert severities(findings_of(GpusPresent, on_gpus(), machine)) == [severity]


@pytest.mark.parametrize(
    ("image", "severity"),
    [
        ("nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3", "ok"),
        ("nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3@sha256:0", "ok"),
        ("nvcr.io/nvidia/tritonserver:26.03-trtllm-python-py3", "error"),
        ("nvcr.io/nvidia/tritonserver:26.08-trtllm-python-py3", "error"),
        ("registry.example/mine:latest", "not checked"),
    ],
)
def test_containers(image: str, severity: str) -> None:
    spec = on_gpus(**{"tensorrt_llm.container": image})
    assert severities(findings_of(Container, spec)) == [severity, "ok"]


@pytest.mark.parametrize(
    ("version", "severity"),
    [(None, "not checked"), ("1.2.0rc8", "error"), ("1.3.0rc22", "error"), ("1.2.0", "ok"), ("1.2.1", "ok")],
)
def test_the_installed_version(version: str | None, severity: str) -> None:
    found = findings_of(Container, on_gpus(), replace(GPU_MACHINE, tensorrt_llm=version))
    assert found[1].severity == severity


def test_fp8_is_calibrated_from_the_16_bit_model() -> None:
    """70B: 141 GB, which one H100 does not hold and two do; the 1B draft in 16 bits needs none."""
    spec = on_gpus(**{"target.weights": "fp8"})
    (finding,) = findings_of(Calibration, spec, GPU_MACHINE)
    assert finding.severity == "warning" and "loads 141 GB" in finding.what and "have 86 GB" in finding.what
    assert severities(findings_of(Calibration, spec, replace(GPU_MACHINE, gpus=FOUR[:2]))) == ["ok"]
    assert severities(findings_of(Calibration, spec, Machine())) == ["not checked"]
    assert findings_of(Calibration, on_gpus(), Machine()) == []


def test_gpu_checks_do_not_concern_the_embedded_engine(target: Path) -> None:
    spec = make_spec(target, None)
    assert all(findings_of(check, spec, Machine()) == [] for check in (GpusPresent, Container, Split))


def test_memory_of_the_gpus_here() -> None:
    spec = on_gpus(**{"target.tensor_parallel": 4})
    assert severities(findings_of(Memory, spec, replace(GPU_MACHINE, gpus=FOUR))) == ["ok"]
    (finding,) = findings_of(Memory, on_gpus(), GPU_MACHINE)
    assert finding.severity == "error" and "GPU 0 needs" in finding.what and "has 86" in finding.what


def test_memory_of_a_gpu_that_is_in_no_table() -> None:
    """Its memory is what the driver says; that it may have FP8 is not doubted."""
    odd = replace(H100, name="NVIDIA Something New", memory=300e9)
    spec = on_gpus(**{"target.weights": "fp8", "draft.weights": "fp8"})
    (finding,) = findings_of(Memory, spec, replace(GPU_MACHINE, gpus=(odd,)))
    assert finding.severity == "ok" and "NVIDIA Something New" in finding.what


def test_memory_without_a_gpu_is_not_passed() -> None:
    (finding,) = findings_of(Memory, on_gpus(**{"target.tensor_parallel": 4}), Machine())
    assert finding.severity == "not checked" and "H100-SXM" in finding.what and "L4," not in finding.what
    (finding,) = findings_of(Memory, on_gpus("meta-llama/Llama-3.1-405B"), Machine())
    assert finding.severity == "error"


def test_memory_of_a_named_gpu() -> None:
    spec = on_gpus(**{"target.tensor_parallel": 4})
    assert findings_of(Memory, spec, Machine(), find_gpu("L4"))[0].severity == "error"
    assert findings_of(Memory, spec, Machine(), find_gpu("B200"))[0].severity == "ok"


def test_more_requests_than_the_pools_hold() -> None:
    spec = on_gpus(**{"target.tensor_parallel": 4, "limits.max_requests": 100})
    (finding,) = findings_of(Memory, spec, Machine(), find_gpu("H100-SXM"))
    assert finding.severity == "warning" and "limits.max_requests = 100" in finding.what


def test_memory_of_this_machine(target: Path, draft: Path) -> None:
    assert severities(findings_of(Memory, make_spec(target, draft))) == ["ok"]
    spec = make_spec(target, draft, **{"target.kv_blocks": 1_000_000})
    (finding,) = findings_of(Memory, spec)
    assert finding.severity == "error" and "GB needed" in finding.what


def test_memory_follows_the_other_checks(target: Path, draft: Path) -> None:
    """What they refuse is not guessed at."""
    (target / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 0}))
    assert severities(findings_of(Memory, make_spec(target, draft))) == ["not checked"]
    spec = on_gpus(**{"target.tensor_parallel": 3})
    assert severities(findings_of(Memory, spec)) == ["not checked"]
    found = findings_of(Split, spec)
    assert found[0].severity == "error" and "tensor_parallel = 3: does not divide num_attention_heads" in found[0].what


def test_splits_that_are_odd() -> None:
    spec = on_gpus(**{"target.pipeline_parallel": 2, "tensorrt_llm.reduce_fusion": True})
    found = findings_of(Split, spec)
    assert severities(found) == ["warning", "ok", "ok", "warning"]
    assert "reduce_fusion" in found[-1].what


def test_shared_memory(target: Path, draft: Path) -> None:
    """Three models begin with 16 MiB each; 4 requests x 4 laws x 512 entries x 4 bytes go both ways."""
    spec = make_spec(target, draft)
    start, laws = 48 * MIB, 2 * 4 * 4 * 512 * 4
    for free, severity in (
        (None, "error"),
        (start - 1, "error"),
        (start + laws - 1, "error"),
        (start + laws, "ok"),
    ):
        (finding,) = findings_of(SharedMemory, spec, Machine(shm_free=free))
        assert finding.severity == severity


def test_look_up_sends_laws_to_tensorrt_only(target: Path) -> None:
    """One-hot rows, one way: 4 requests x 4 rows x 512 entries x 4 bytes beside two models."""
    machine = Machine(shm_free=32 * MIB + 4 * 4 * 512 * 4 - 1)
    ngram = {"draft.kind": "ngram"}
    assert severities(findings_of(SharedMemory, make_spec(target, None, **ngram), machine)) == ["ok"]
    on_gpu = make_spec(target, None, engine="tensorrt_llm", **ngram)
    assert severities(findings_of(SharedMemory, on_gpu, machine)) == ["error"]


def test_ports(target: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        spec = make_spec(target, None, ports={"http": taken.getsockname()[1], "grpc": 0, "metrics": 0})
        seen = Machine.look(spec)
        (finding,) = findings_of(Ports, spec, seen)
        assert finding.severity == "error" and f"ports.http = {taken.getsockname()[1]}" in finding.what
        (finding,) = findings_of(Ports, spec, replace(seen, served_by=7))
        assert finding.severity == "warning" and "process 7" in finding.what
    assert severities(findings_of(Ports, spec, Machine())) == ["ok"]


@pytest.mark.parametrize(
    ("changes", "severity", "message"),
    [
        ({}, "ok", "draft.kind = model"),
        ({"draft.kind": "none"}, "warning", "named, but draft.kind = none uses no model"),
        ({"draft.kind": "ngram"}, "warning", "named, but draft.kind = ngram uses no model"),
        ({"controller": {"kind": "fixed", "k": 0}}, "warning", "controller.k = 0"),
        ({"limits.max_draft_len": 0}, "warning", "limits.max_draft_len = 0"),
        ({"controller": {"kind": "fixed", "k": 5}}, "warning", "controller.k = 5 is above limits.max_draft_len = 4"),
        ({"controller": {"kind": "goodput", "k": 5}}, "ok", "K by goodput"),
    ],
)
def test_a_draft_that_is_not_used(
    changes: dict[str, Any], severity: str, message: str, target: Path, draft: Path
) -> None:
    found = findings_of(DraftUse, make_spec(target, draft, **changes))
    assert found[0].severity == severity and message in found[0].what


def test_draft_size(target: Path, draft: Path) -> None:
    assert severities(findings_of(DraftSize, make_spec(target, draft))) == ["ok"]
    (finding,) = findings_of(DraftSize, make_spec(target, target))
    assert finding.severity == "warning" and finding.todo
    assert findings_of(DraftSize, make_spec(target, None)) == []


def test_nvidia_smi() -> None:
    listing = "0, NVIDIA H100 80GB HBM3, 81559, 9.0, 580.95.05\n1, NVIDIA L4, 23034, 8.9, 580.95.05\nNo devices\n"
    first, second = parse_gpus(listing)
    assert (first.index, first.name, first.architecture, first.driver) == (0, H100.name, "9.0", "580.95.05")
    assert first.memory == 81559 * MIB and second.architecture == "8.9"
    assert parse_gpus("NVIDIA-SMI has failed because it couldn't communicate with the driver\n") == ()
