"""The target's own text with its laws: made once, kept in shards on disk, read for training.

A shard is a safetensors file; `Corpus` joins them into flat tensors that are cut into sequences by offsets.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.distillation.prompts import ASK, PromptMaker, TrainingPrompt
from pipeline.distillation.writer import Job, Target, Text, Writer
from pipeline.errors import EngineError
from pipeline.text.tokenizer import Tokenizer

TEMPERATURES = (0.0, 0.7, 1.0)
TEMPERATURE_WEIGHTS = (5, 3, 3)  # greedy is what is served unless asked otherwise
LENGTHS = (96, 128, 192)
MAX_PROMPT = 256
POSITIONS = MAX_PROMPT + max(LENGTHS)
SHARD_TEXTS = 64
Report = Callable[[int, float], None]  # (output tokens so far, seconds so far)


@dataclass(frozen=True)
class Sequence:
    """One text of a corpus.

    Attributes:
        tokens: prompt and output, int64 [length].
        prompt_length: tokens of the prompt; the draft is trained on what follows.
        top_ids, top_log_probs: the target's law at each output token, [length - prompt_length, TOP].
    """

    kind: str
    temperature: float
    tokens: Tensor
    prompt_length: int
    top_ids: Tensor
    top_log_probs: Tensor


class Corpus:
    """Sequences in memory: about 450 bytes per output token."""

    def __init__(self, sequences: list[Sequence]) -> None:
        self.sequences = sequences

    @property
    def output_tokens(self) -> int:
        return sum(s.tokens.numel() - s.prompt_length for s in self.sequences)

    @classmethod
    def load(cls, folder: Path) -> Corpus:
        """Read every shard of a folder.

        Raises:
            EngineError: a shard is damaged.
        """
        return cls([sequence for path in sorted(folder.glob("*.safetensors")) for sequence in read_shard(path)])

    def split(self, share: float, most: int) -> tuple[Corpus, Corpus]:
        """(for training, held out): texts at equal distances are held out, so that all kinds and lengths are there."""
        count = min(most, max(1, int(share * len(self.sequences))))
        apart = {i * len(self.sequences) // count for i in range(count)}
        parts: tuple[list[Sequence], list[Sequence]] = ([], [])
        for i, sequence in enumerate(self.sequences):
            parts[i in apart].append(sequence)
        return Corpus(parts[0]), Corpus(parts[1])


class CorpusWriter:
    """Has a target write a corpus.

    Args:
        target: its `positions` must be POSITIONS or more.
        tokenizer: the target's.
        maker: source of prompts.
        slots: sequences at a time.
        seed: of lengths, temperatures and draws.
    """

    def __init__(self, target: Target, tokenizer: Tokenizer, maker: PromptMaker, slots: int, seed: int) -> None:
        self._writer = Writer(target, slots, seed)
        self._tokenizer = tokenizer
        self._maker = maker
        self._random = random.Random(seed)

    def write(self, folder: Path, prefix: str, tokens: int, seconds: float, report: Report) -> int:
        """Write shards `prefix`-N until there are `tokens` output tokens or `seconds` have passed.

        Returns:
            output tokens written.
        """
        started, written, number = time.monotonic(), 0, 0
        pending: list[Text] = []
        for text in self._writer.write(self._jobs()):
            kind = text.job.name
            self._maker.learn(kind, self._tokenizer.decode(text.output))
            if kind == ASK:
                continue
            pending.append(text)
            written += len(text.output)
            passed = time.monotonic() - started
            report(written, passed)
            over = written >= tokens or passed >= seconds
            if len(pending) == SHARD_TEXTS or over:
                write_shard(folder / f"{prefix}-{number:05d}.safetensors", pending)
                pending, number = [], number + 1
            if over:
                break
        return written

    def _jobs(self) -> Iterator[Job]:
        while True:
            prompt = self._maker.next()
            ids = encode(self._tokenizer, prompt)
            if len(ids) > MAX_PROMPT or not ids:
                continue
            temperature = self._random.choices(TEMPERATURES, TEMPERATURE_WEIGHTS)[0]
            if prompt.kind == ASK:
                yield Job(ASK, ids, 1.0, 64)
            else:
                yield Job(prompt.kind, ids, temperature, self._random.choice(LENGTHS))


def encode(tokenizer: Tokenizer, prompt: TrainingPrompt) -> list[int]:
    """Token ids of a prompt as a server would make them."""
    if prompt.kind == ASK:
        return tokenizer.encode(prompt.text, add_special_tokens=False)
    if prompt.chat:
        return tokenizer.encode(tokenizer.apply_chat_template(prompt.text), add_special_tokens=False)
    return tokenizer.encode(prompt.text)


def sequence_of(text: Text) -> Sequence:
    """A text as it stands in a corpus."""
    job = text.job
    tokens = torch.tensor(job.prompt + text.output)
    return Sequence(job.name, job.temperature, tokens, len(job.prompt), text.top_ids, text.top_log_probs)


def write_shard(path: Path, texts: list[Text]) -> None:
    """Appears whole or not at all, so that a reader may look at any time."""
    temporary = path.with_suffix(".part")
    tensors = {
        "tokens": torch.tensor(
            [token for text in texts for token in (*text.job.prompt, *text.output)], dtype=torch.int32
        ),
        "lengths": torch.tensor([[len(text.job.prompt), len(text.output)] for text in texts], dtype=torch.int32),
        "temperatures": torch.tensor([text.job.temperature for text in texts]),
        "top_ids": torch.cat([text.top_ids for text in texts]),
        "top_log_probs": torch.cat([text.top_log_probs for text in texts]),
    }
    save_file(tensors, temporary, {"kinds": "\n".join(text.job.name for text in texts)})
    temporary.rename(path)


def read_shard(path: Path) -> list[Sequence]:
    try:
        with safe_open(path, framework="pt") as stream:
            kinds = stream.metadata()["kinds"].split("\n")
            tokens, lengths = stream.get_tensor("tokens").long(), stream.get_tensor("lengths").tolist()
            temperatures = stream.get_tensor("temperatures").tolist()
            top_ids, top_log_probs = stream.get_tensor("top_ids"), stream.get_tensor("top_log_probs")
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise EngineError(f"corpus shard {path} is damaged ({error}); remove it") from error
    sequences, first, row = [], 0, 0
    for kind, temperature, (prompt, output) in zip(kinds, temperatures, lengths, strict=True):
        # Rounded, because FP32 has no 0.7.
        sequences.append(
            Sequence(
                kind,
                round(temperature, 4),
                tokens[first : first + prompt + output],
                prompt,
                top_ids[row : row + output],
                top_log_probs[row : row + output],
            )
        )
        first, row = first + prompt + output, row + output
    return sequences


def question_start(tokenizer: Tokenizer) -> str | None:
    """The chat template up to the user's message; None where there is no template."""
    mark = "specdec-question"
    try:
        return tokenizer.apply_chat_template(mark).split(mark)[0]
    except EngineError:
        return None
