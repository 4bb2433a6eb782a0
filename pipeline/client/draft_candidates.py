"""The drafts that `specdec choose-draft` compares, each as a deployment spec with engines of its own."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from pipeline.engine.fit import read_engine_manifest
from pipeline.errors import EngineError, SpecError
from pipeline.spec import ROOT, DeploymentSpec, DraftSpec

KINDS = ("hybrid", "model", "ngram")


@dataclass(frozen=True)
class Candidate:
    """One draft.

    Attributes:
        name: as the user wrote it.
        draft: what a spec would say.
    """

    name: str
    draft: DraftSpec


def parse_candidate(text: str, own: DraftSpec) -> Candidate:
    """ "ngram", "hybrid" or "model" (of the spec's own draft model), "hybrid:FOLDER", "model:FOLDER" or FOLDER.

    Raises:
        SpecError: naming what is wrong.
    """
    kind, colon, folder = text.partition(":")
    if kind not in KINDS:
        kind, folder = "hybrid", text
    elif not colon:
        folder = own.model or ""
    if kind == "ngram":
        if colon:
            raise SpecError(f"draft = {text!r}: ngram has no folder")
        return Candidate(text, own.model_copy(update={"kind": kind, "model": None, "head_tokens": None}))
    if not folder:
        raise SpecError(f"draft = {text!r}: the spec names no draft model; write {kind}:FOLDER")
    # Tokens of a reduced head are those of a certain model.
    head = own.head_tokens if folder == own.model else None
    return Candidate(text, own.model_copy(update={"kind": kind, "model": folder, "head_tokens": head}))


def own_candidates(own: DraftSpec) -> list[Candidate]:
    """What a spec offers without building anything: its model with and without look-up, and look-up alone."""
    return [parse_candidate(kind, own) for kind in (KINDS if own.model else ("ngram",))]


def prepare(spec: DeploymentSpec, candidates: Sequence[Candidate]) -> list[DeploymentSpec]:
    """A spec per candidate whose engines are built; the target's engine is the spec's own.

    Raises:
        EngineError: the target has no engine, or a draft cannot be built for it.
    """
    read_engine_manifest(spec, "target")
    prepared = []
    for candidate in candidates:
        wanted = spec.model_copy(update={"draft": candidate.draft, "trace": None})
        built = spec.draft.uses_model and spec.draft.model == candidate.draft.model
        if candidate.draft.uses_model and not built:
            wanted = wanted.model_copy(update={"name": engines_name(spec.name, candidate.draft.model or "")})
            _build(spec, wanted)
        prepared.append(wanted)
    return prepared


def engines_name(deployment: str, folder: str) -> str:
    """Of the engines of another draft model: readable, and apart from those of another folder of that name."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", folder.rstrip("/").rpartition("/")[2])[:24]
    return f"{deployment[:24]}--{readable}-{hashlib.sha256(folder.encode()).hexdigest()[:8]}"


def _build(spec: DeploymentSpec, wanted: DeploymentSpec) -> None:
    target = wanted.engine_dir("target")
    if not target.exists():
        # The builder finds it up to date; links cost no room.
        shutil.copytree(spec.engine_dir("target"), target, copy_function=os.link)
    file = ROOT / "runs" / wanted.name / "spec.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(wanted.model_dump(mode="json")))
    script = ROOT / "build" / "engines.py"
    if subprocess.run([sys.executable, str(script), str(file)]).returncode:
        raise EngineError(f"draft {wanted.draft.model} cannot be built for {spec.name}; its error stands above")
