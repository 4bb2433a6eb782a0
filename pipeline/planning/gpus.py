"""GPUs as a planner sees them: memory, bandwidth, arithmetic, links. Figures of NVIDIA's datasheets.

Memory is read as 10^9 bytes per GB; the driver reports up to 7 % more, which stays a reserve. Arithmetic is dense
(datasheets star the doubled figure with sparsity) with 32-bit accumulation. Links are per GPU and one direction.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from pipeline.errors import InvalidRequestError

T, G = 1e12, 1e9


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        memory: bytes.
        bandwidth: bytes per second of its memory.
        flops: products per second by the type of the weights, a multiply-add being two; int8 and int4 weights are
            widened to 16 bits, so they have the figure of float16.
        link: bytes per second between two GPUs, one direction.
        nvlink: whether that link is NVLink rather than PCIe.
        architecture: compute capability, e.g. "9.0"; engines are compiled for one.
    """

    name: str
    memory: float
    bandwidth: float
    flops_fp16: float
    flops_fp8: float | None
    link: float
    nvlink: bool
    architecture: str
    source: str

    def flops(self, weights: str) -> float:
        """Products per second with weights of this type; FP8 falls back to 16 bits where there is no FP8 unit."""
        return self.flops_fp8 if weights == "fp8" and self.flops_fp8 is not None else self.flops_fp16


GPUS = (
    Gpu("A100-40GB", 40 * G, 1.555 * T, 312 * T, None, 300 * G, True, "8.0", "A100 datasheet, SXM4 40 GB"),
    Gpu("A100-80GB", 80 * G, 2.039 * T, 312 * T, None, 300 * G, True, "8.0", "A100 datasheet, SXM4 80 GB"),
    Gpu("H100-SXM", 80 * G, 3.35 * T, 989 * T, 1979 * T, 450 * G, True, "9.0", "H100 datasheet, SXM5"),
    Gpu("H100-PCIe", 80 * G, 2.0 * T, 756 * T, 1513 * T, 64 * G, False, "9.0", "H100 datasheet, PCIe"),
    Gpu("H100-NVL", 94 * G, 3.9 * T, 835 * T, 1671 * T, 300 * G, True, "9.0", "H100 datasheet, NVL, per GPU"),
    Gpu("H200", 141 * G, 4.8 * T, 989 * T, 1979 * T, 450 * G, True, "9.0", "H200 datasheet, SXM"),
    Gpu("B200", 180 * G, 8.0 * T, 2250 * T, 4500 * T, 900 * G, True, "10.0", "HGX B200 datasheet, an eighth"),
    Gpu("L40S", 48 * G, 0.864 * T, 362 * T, 733 * T, 32 * G, False, "8.9", "L40S datasheet"),
    Gpu("L4", 24 * G, 0.3 * T, 121 * T, 242 * T, 32 * G, False, "8.9", "L4 datasheet"),
    Gpu("A10", 24 * G, 0.6 * T, 125 * T, None, 32 * G, False, "8.6", "A10 datasheet"),
    Gpu("RTX-4090", 24 * G, 1.008 * T, 165 * T, 330 * T, 32 * G, False, "8.9", "Ada architecture white paper"),
    Gpu("RTX-6000-Ada", 48 * G, 0.96 * T, 364 * T, 728 * T, 32 * G, False, "8.9", "RTX 6000 Ada datasheet"),
)
NAMES = tuple(gpu.name for gpu in GPUS)


def find_gpu(name: str) -> Gpu:
    """A GPU by name; case, spaces and hyphens do not matter.

    Raises:
        InvalidRequestError: it is not in the table; names the nearest and all.
    """
    wanted = _plain(name)
    for gpu in GPUS:
        if _plain(gpu.name) == wanted:
            return gpu
    by_plain = {_plain(gpu.name): gpu.name for gpu in GPUS}
    near = [plain for plain in by_plain if wanted and plain.startswith(wanted)]
    near = near or difflib.get_close_matches(wanted, by_plain, n=1, cutoff=0.0)
    shown = ", ".join(by_plain[plain] for plain in near)
    raise InvalidRequestError("gpu", name, f"nearest: {shown}; known: {', '.join(NAMES)}")


def recognise(driver_name: str, memory: float) -> Gpu | None:
    """The entry that a driver's product name and memory (bytes) mean, e.g. "NVIDIA A100-SXM4-80GB"; None if none."""
    words = _words(driver_name)
    if " h100 " in words:
        kind = "NVL" if " nvl " in words else "PCIe" if " pcie " in words else "SXM"
        return find_gpu(f"H100-{kind}")
    if " a100 " in words:
        return find_gpu("A100-80GB" if memory > 60 * G else "A100-40GB")
    return next((gpu for gpu in GPUS if _words(gpu.name) in words), None)


def _words(name: str) -> str:
    """Words between blanks, so that no L40 is taken for an L4."""
    return f" {name.lower().replace('-', ' ')} "


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum()).removeprefix("nvidia")
