"""The table of GPUs, and how a driver's names are recognised."""

from __future__ import annotations

import pytest

from pipeline.errors import InvalidRequestError
from pipeline.planning.gpus import GPUS, NAMES, find_gpu, recognise


@pytest.mark.parametrize("name", ["H100-SXM", "h100 sxm", "NVIDIA H100 SXM", "h100sxm"])
def test_names_are_forgiving(name: str) -> None:
    assert find_gpu(name).name == "H100-SXM"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h100", "gpu = 'h100': nearest: H100-SXM, H100-PCIe, H100-NVL; known: A100-40GB"),
        ("H201", "gpu = 'H201': nearest: H200"),
        ("", "gpu = ''"),
    ],
)
def test_an_unknown_name(name: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        find_gpu(name)


@pytest.mark.parametrize(
    ("seen", "gigabytes", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", 85.9, "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", 42.9, "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", 85.5, "H100-SXM"),
        ("NVIDIA H100 PCIe", 85.5, "H100-PCIe"),
        ("NVIDIA H100 NVL", 100.5, "H100-NVL"),
        ("NVIDIA H200", 150.7, "H200"),
        ("NVIDIA L40S", 48.3, "L40S"),
        ("NVIDIA L4", 24.1, "L4"),
        ("NVIDIA GeForce RTX 4090", 25.7, "RTX-4090"),
        ("NVIDIA RTX 6000 Ada Generation", 51.5, "RTX-6000-Ada"),
        ("NVIDIA B200", 192.0, "B200"),
    ],
)
def test_a_drivers_name(seen: str, gigabytes: float, name: str) -> None:
    found = recognise(seen, gigabytes * 1e9)
    assert found is not None and found.name == name


def test_a_gpu_that_is_not_in_the_table() -> None:
    for name in ("NVIDIA Tesla V100", "NVIDIA L40", "NVIDIA RTX A1000", "NVIDIA GH200 480GB"):
        assert recognise(name, 32e9) is None


def test_the_table_is_consistent() -> None:
    """FP8 doubles 16 bits and begins with compute capability 8.9; a name occurs once."""
    assert len(set(NAMES)) == len(GPUS)
    for gpu in GPUS:
        has_fp8 = float(gpu.architecture) >= 8.9
        assert (gpu.flops_fp8 is not None) == has_fp8
        assert gpu.flops("fp8") == pytest.approx(gpu.flops_fp16 * (2 if has_fp8 else 1), rel=0.03)
        assert gpu.flops("int4") == gpu.flops_fp16
        assert gpu.source
