"""The card of a draft: README.md of its folder, with all that is needed to judge it or to make it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.distillation.acceptance import DRAFTED, Acceptance, Table, by_kind, by_temperature, total
from pipeline.engine.manifest import sha256_file

UNKNOWN_LICENCE = "not named in the target's folder: a draft made from a model's layers is under that model's licence"


@dataclass(frozen=True)
class Facts:
    """How a draft was made.

    Attributes:
        name: of the draft's folder.
        target: what it is a draft for.
        start: where its weights began.
        licence: the target's.
        measured: {"held-out texts": table, ...}; the first table is the main one.
    """

    name: str
    target: str
    start: str
    licence: str
    layers: int
    parameters: int
    corpus_texts: int
    corpus_tokens: int
    steps: int
    token_visits: int
    minutes: float
    device: str
    command: str
    measured: Mapping[str, Table]


def write_card(folder: Path, facts: Facts) -> None:
    """Write README.md beside the weights."""
    weights = folder / "model.safetensors"
    lines = [
        f"# {facts.name}",
        "",
        f"A draft for {facts.target}, made by `{facts.command}`.",
        "",
        f"* {facts.layers} layers, {facts.start}; {facts.parameters / 1e6:.1f} M parameters.",
        "  FP16. **The token embedding is the target's own and is not in the file** (nor is a tied LM head):",
        "  `make engines` takes it from the target. Tokenizer: the target's.",
        f"* Distilled on {facts.corpus_tokens:,} tokens that the target itself wrote ({facts.corpus_texts:,} texts at",
        f"  temperatures 0, 0.7 and 1.0): {facts.steps:,} steps, {facts.token_visits:,} token visits,",
        f"  {facts.minutes:.0f} minutes of training on {facts.device}. KL(p || q), towards the end mostly 1 - sum of",
        "  min(p, q); AdamW, cosine, averaged weights.",
        "* `frequent_token_ids.json`: token ids, most frequent in the target's text first, for a reduced LM head",
        "  (`draft.head_tokens`).",
        f"* Licence: {facts.licence}.",
        f"* `model.safetensors`: {weights.stat().st_size:,} bytes, sha256 `{sha256_file(weights)}`.",
    ]
    for name, table in facts.measured.items():
        lines += ["", f"## Acceptance on {name}", "", *acceptance_lines(table)]
    (folder / "README.md").write_text("\n".join(lines) + "\n")


def acceptance_lines(table: Table) -> list[str]:
    """A Markdown table: by temperature, then by kind at the lowest temperature."""
    coldest = min(t for _, t in table)
    rows = [(f"T {t:g}", a) for t, a in by_temperature(table).items()]
    rows += [(f"T {coldest:g}, {kind}", a) for kind, a in by_kind(table, coldest).items()]
    places = [str(i + 1) for i in range(DRAFTED)]
    return [
        "Per token: sum of min(p, q), at temperature 0 the share of equal argmax. 1 to "
        f"{DRAFTED}: accepted at that draft",
        "position among rounds that reached it. Length: committed tokens per round, the target's own included.",
        "",
        "| | tokens | per token | " + " | ".join(places) + " | length |",
        "|---|---|---|" + "---|" * (DRAFTED + 1),
        *(_row(name, a) for name, a in rows),
    ]


def cells(acceptance: Acceptance) -> list[str]:
    """tokens, per token, conditional 1 to DRAFTED, length: as text."""
    rates: Iterable[float] = (acceptance.rate, *acceptance.conditional)
    return [f"{acceptance.tokens:,}", *(f"{r:.2f}" for r in rates), f"{acceptance.acceptance_length:.2f}"]


def _row(name: str, acceptance: Acceptance) -> str:
    return "| " + " | ".join((name, *cells(acceptance))) + " |"


def summary(table: Table) -> str:
    """One line: acceptance per temperature and over all."""
    parts = [f"T {t:g}: {a.rate:.3f}" for t, a in by_temperature(table).items()]
    return f"acceptance per token {', '.join(parts)}; length {total(table.values()).acceptance_length:.2f}"
