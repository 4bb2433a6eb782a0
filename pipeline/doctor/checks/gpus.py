"""Whether GPUs, driver and container are what TensorRT-LLM engines need."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import Finding
from pipeline.engine.tensorrt_config import SUPPORTED
from pipeline.planning.gpu_support import unsupported
from pipeline.tensorrt_spec import RELEASE

OLDEST_DRIVER = 580  # CUDA 13, in NVIDIA's Triton images from 25.11 on
FIRST_TAG, LAST_TAG = (26, 4), (26, 7)  # Triton images that carry TensorRT-LLM 1.2.1
WIDTH = 2  # bytes of a 16-bit weight
_TAG = re.compile(r":(\d\d)\.(\d\d)-trtllm")


class GpusPresent(Check):
    """Number, compute capability and driver of the GPUs."""

    name = "GPUs"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        spec, gpus = deployment.spec, deployment.machine.gpus
        if spec.engine != "tensorrt_llm":
            return
        wanted = {device for role in spec.model_roles for device in spec.step_model(role).device_ids}
        if not gpus:
            yield self.not_checked(
                "no GPU is seen here (nvidia-smi is missing or lists none)",
                f"engine: tensorrt_llm needs {len(wanted)}, of compute capability 8.0 or later",
                "run doctor on the GPU machine (a container needs --gpus all)",
            )
            return
        missing = sorted(wanted - {gpu.index for gpu in gpus})
        if missing:
            yield self.error(
                f"the spec uses GPUs {sorted(wanted)}, GPU {missing[0]} is not here ({len(gpus)} seen)",
                "its ranks cannot start",
                "`gpus:` of GPUs that are here, or a smaller split",
            )
        for role in spec.model_roles:
            part = spec.step_model(role)
            for gpu in gpus:
                if gpu.index in part.device_ids and (why := unsupported(part.weights, gpu.architecture)) is not None:
                    yield self.error(
                        f"{role} on GPU {gpu.index} ({gpu.name}): {why}",
                        "`make engines` refuses it",
                        "another GPU, or other weights",
                    )
        driver = gpus[0].driver
        major = driver.partition(".")[0]
        if major.isdigit() and int(major) < OLDEST_DRIVER:
            # No error: the images carry the forward-compatibility libraries, and the driver does not say what they do.
            yield self.warning(
                f"driver {driver} is older than {OLDEST_DRIVER}",
                f"the images with TensorRT-LLM {RELEASE} use CUDA 13, which only data-centre GPUs can run on it",
                f"driver {OLDEST_DRIVER} or later, or see that the container starts without a line on compatibility",
            )
        else:
            yield self.ok(f"{len(gpus)} x {gpus[0].name}, driver {driver}")


class Calibration(Check):
    """FP8 weights are made from the 16-bit model on the GPUs that are here."""

    name = "FP8 calibration"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        memory = sum(gpu.memory for gpu in deployment.machine.gpus)
        for role, shape in deployment.shapes():
            part = deployment.spec.step_model(role)
            if part.weights != "fp8" or part.engine_dir is not None:
                continue
            needed = WIDTH * shape.parameters
            numbers = f"{role}: quantize.py loads {needed / 1e9:,.0f} GB of 16-bit weights"
            if memory and needed < memory:
                yield self.ok(f"{numbers}, the GPUs here have {memory / 1e9:,.0f} GB")
                continue
            here = f"the GPUs here have {memory / 1e9:,.0f} GB" if memory else "no GPU is seen here"
            found = self.warning if memory else self.not_checked
            yield found(
                f"{numbers}, {here}",
                "what does not fit is calibrated from host memory: slow, and the host must have it",
                "more GPUs for this step: it uses all that the container sees, and keeps the checkpoint",
            )


class Container(Check):
    """The image that the spec names, and what is installed here."""

    name = "container"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        if deployment.spec.engine != "tensorrt_llm":
            return
        image = deployment.spec.tensorrt_llm.container
        why = f"engines are compiled and served by TensorRT-LLM {RELEASE}; 1.3.0rc21 and later have no engines"
        first, last = ("{}.{:02}".format(*tag) for tag in (FIRST_TAG, LAST_TAG))
        match = _TAG.search(image)
        if match is None:
            yield self.not_checked(
                f"tensorrt_llm.container = {image}: its tag says no release", why, f"see that it has {RELEASE}"
            )
        elif not FIRST_TAG <= (int(match[1]), int(match[2])) <= LAST_TAG:
            yield self.error(
                f"tensorrt_llm.container = {image}: {RELEASE} is in {first} to {last}",
                why,
                f"a tag of {first} to {last}",
            )
        else:
            yield self.ok(f"{image} has TensorRT-LLM {RELEASE}")
        found = deployment.machine.tensorrt_llm
        if found is None:
            yield self.not_checked("TensorRT-LLM is not installed here", why, f"run doctor inside {image}")
        elif not found.startswith(SUPPORTED) or "rc" in found:
            yield self.error(f"TensorRT-LLM {found} is installed here, needed is {RELEASE}", why, f"run inside {image}")
        else:
            triton = deployment.machine.triton
            yield self.ok(f"TensorRT-LLM {found} is installed" + (f", Triton {triton}" if triton else ""))
