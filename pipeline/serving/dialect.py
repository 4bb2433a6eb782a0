"""What an engine means by its tensors, where engines differ: from its manifest, never from its name."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.engine.manifest import Manifest
from pipeline.sampling.params import OPTIONS


@dataclass(frozen=True)
class Dialect:
    """How to speak with one engine; the defaults are those of an engine of this project.

    Attributes:
        own_tensors: it knows `specdec_step_stats`, the parameters of a step request, and a short `embedding_bias`.
        options: sampling options that it can apply.
        temperature_first: its processors are bias, temperature, penalties; ours are penalties, bias, temperature.
        max_top_k: the largest top_k that it does not cut.
        one_hot_logits: without draft_logits it draws again after a mismatch, so that a drawn choice always needs them.
        drops_drafts: it may verify fewer drafts than it was sent, and says how many.
        raw_logits: `generation_logits` are the model's own, padding columns included.
        vocab_size: columns of its logits that it can draw, or None: all.
        width: of its logits, [.., width], or None: any.
        max_seq_len: beyond it, it answers with fewer tokens than were asked for; None: it does not.
    """

    own_tensors: bool = True
    options: tuple[str, ...] = OPTIONS
    temperature_first: bool = False
    max_top_k: int | None = None
    one_hot_logits: bool = False
    drops_drafts: bool = False
    raw_logits: bool = False
    vocab_size: int | None = None
    width: int | None = None
    max_seq_len: int | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> Dialect:
        """The dialect of an engine."""
        able = manifest.capabilities
        drawn = manifest.engine_vocab_size or manifest.padded_vocab_size
        return cls(
            own_tensors=able.own_tensors,
            options=able.options if manifest.role == "target" else able.draft_options,
            temperature_first=able.processors == "temperature_first",
            max_top_k=able.max_top_k,
            one_hot_logits=able.one_hot_logits,
            drops_drafts=able.drops_drafts,
            raw_logits=able.generation_logits == "raw",
            vocab_size=None if able.own_tensors else drawn,
            width=None if able.own_tensors else manifest.padded_vocab_size,
            max_seq_len=None if able.own_tensors else manifest.limits.max_seq_len,
        )


OWN = Dialect()
