"""The prepared script: is a round right on this GPU, and what does it cost? At most 10 minutes, one JSON file.

A target and a draft of real shapes (Llama-3.1-8B and Llama-3.2-1B) with random weights, nothing downloaded. What is
asked: does greedy text with drafts equal plain greedy text; do graphs and the library's kernel give what the same pass
gives without them; how long do a draft step and a verify of K tokens take, with graphs and without; what do two
streams gain.

Usage: python build/gpu_round.py --json FILE [--target SHAPE] [--draft SHAPE] [--seconds N]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_measure import Pair, agreement, greedy_equality, make_pair, overlap, pass_times, read_shape

from pipeline.engine.device import describe, require_cuda
from pipeline.errors import SpecDecodeError
from pipeline.planning.model_shape import SHAPES

TARGET, DRAFT = "meta-llama--Llama-3.1-8B", "meta-llama--Llama-3.2-1B"
SECONDS = 540.0  # 600 with what is under way when they are over
DRAFTS = range(1, 9)


def main() -> int:
    console = Console()
    arguments = argparse.ArgumentParser(description="Check and measure a round on this machine's GPU.")
    arguments.add_argument("--json", type=Path, required=True)
    arguments.add_argument("--target", default=TARGET, help="a shape of build/profiles/shapes")
    arguments.add_argument("--draft", default=DRAFT)
    arguments.add_argument("--seconds", type=float, default=SECONDS, help="nothing is begun after that")
    given = arguments.parse_args()
    try:
        device = require_cuda()
        shapes = [read_shape(SHAPES / f"{name}.json") for name in (given.target, given.draft)]
        started = time.monotonic()
        console.print(f"making {given.target} and {given.draft} of random numbers", highlight=False)
        pair = make_pair(shapes[0], shapes[1], "float16", device)
    except SpecDecodeError as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        console.print("gpu_round has run nothing", highlight=False)
        return 1
    found: dict[str, Any] = {
        "device": describe(device),
        "torch": torch.__version__,
        "target": given.target,
        "draft": given.draft,
        "attention": pair.target.attention.name,
        "tokens_per_block": pair.limits.tokens_per_block,
        "made_s": round(time.monotonic() - started, 1),
    }
    given.json.parent.mkdir(parents=True, exist_ok=True)

    def keep() -> None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")

    passed = examine(pair, found, console, started + given.seconds, keep)
    console.print(f"written to {given.json}", highlight=False, soft_wrap=True)
    return 0 if passed else 1


def examine(
    pair: Pair, found: dict[str, Any], console: Console, until: float, keep: Callable[[], None] = lambda: None
) -> bool:
    """Every question in turn, its answer into `found`; what fails, or time is too short for, is named there.

    Args:
        until: time.monotonic() after which nothing is begun.
        keep: called after every answer.

    Returns:
        True where everything was asked and nothing was wrong.
    """
    parts: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("agreement", lambda: agreement(pair)),
        ("greedy", lambda: greedy_equality(pair)),
        ("graphs", lambda: pass_times(pair, DRAFTS, graphs=True)),
        ("no_graphs", lambda: pass_times(pair, DRAFTS, graphs=False)),
        ("overlap", lambda: overlap(pair)),
    ]
    passed = True
    for name, ask in parts:
        if time.monotonic() >= until:
            found[name] = {"passed": False, "said": "not begun: the time was over"}
        else:
            console.print(f"{name} ...", highlight=False)
            try:
                found[name] = ask()
            except Exception:  # a borrowed GPU is not given back for one question
                found[name] = {"passed": False, "said": traceback.format_exc()}
        keep()
        passed = passed and bool(found[name].get("passed", True))
        console.print(json.dumps(found[name]), highlight=False, soft_wrap=True)
    return passed


if __name__ == "__main__":
    sys.exit(main())
