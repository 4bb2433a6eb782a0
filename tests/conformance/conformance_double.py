"""A deployment in a few lines of NumPy, right or with one planted bug."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.conformance.deployment import Answer, Deployment, Ids
from pipeline.conformance.reference import edited_scores, law_of, log_softmax
from pipeline.engine.step import FloatArray
from pipeline.errors import StepError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.noise import exponentials, noise_keys
from pipeline.sampling.params import SamplingParams
from pipeline.text.words import bad_word_ids, bias_by_id

LETTERS = 15
END = LETTERS  # the end token, without text
VOCAB = LETTERS + 1
MOST_DRAFTS = 6


class LetterTokenizer:
    """Any character is one of fifteen letters."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) % LETTERS for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(97 + token) for token in ids if token != END)


@dataclass
class Round:
    """One verified block, before it is cut."""

    tokens: list[int]
    drafted: int = 0
    accepted: int = 0


class Double(Deployment):
    """Speculative decoding of a target whose logits depend on the last two tokens.

    Args:
        bug: planted, by name; "" for none.
        refuses: fields of requests that are refused.
        teaches: gives logits; log laws with `log_law`, else raw.
        promises: says that texts are reproducible.
        max_draft_len: the largest K.
        rules: offered, best first.
        noise: of the draft's logits.
    """

    def __init__(
        self,
        bug: str = "",
        refuses: Sequence[str] = (),
        teaches: bool = True,
        log_law: bool = False,
        promises: bool = True,
        max_draft_len: int = MOST_DRAFTS,
        rules: Sequence[str] = ("token", "coupled", "match"),
        noise: float = 0.5,
    ) -> None:
        self.name = f"double, {bug or 'right'}"
        self.tokenizer = LetterTokenizer()
        self.bug = bug
        self._refuses = refuses
        self._teaches = teaches
        self._log_law = log_law
        self._promises = promises
        self._max_draft_len = max_draft_len
        self._rules = rules
        generator = np.random.default_rng(5)
        self._target = generator.normal(size=(VOCAB, VOCAB, VOCAB)) * 1.6
        self._target[:, :, END] -= 1.0
        self._draft = self._target + generator.normal(size=self._target.shape) * noise
        self._fresh = itertools.count(10**6)
        self._calls = itertools.count()

    def next_scores(self, prefix: Ids, sampling: SamplingParams) -> FloatArray:
        if not self._teaches:
            raise StepError("no such model: target")
        scores = self._target[prefix[-2] if len(prefix) > 1 else 0, prefix[-1]]
        if self._log_law:
            scores = log_softmax(edited_scores(scores, sampling, prefix, None))
        return scores.astype(np.float32)

    def ask(self, request: GenerationRequest) -> Answer:
        self._refuse(request)
        run = _Run(self, request, next(self._fresh) if request.seed is None else request.seed, next(self._calls))
        return run.answer()

    def _refuse(self, request: GenerationRequest) -> None:
        sampling = SamplingParams()
        for name in self._refuses:
            holder: Any = request if hasattr(request, name) else request.sampling
            default = getattr(GenerationRequest("x") if holder is request else sampling, name)
            if getattr(holder, name) != default:
                raise StepError(f"[INVALID_ARGUMENT] {name}: not offered")
        if request.num_draft_tokens is not None and request.num_draft_tokens > self._max_draft_len:
            raise StepError(f"[INVALID_ARGUMENT] num_draft_tokens: at most {self._max_draft_len}")
        if request.acceptance_rule not in ("auto", *self._rules):
            raise StepError("[INVALID_ARGUMENT] acceptance_rule")


class _Run:
    """One request."""

    def __init__(self, double: Double, request: GenerationRequest, seed: int, call: int) -> None:
        self.double = double
        self.bug = double.bug
        self.request = request
        self.seed = 0 if self.bug == "one seed for all" and request.seed is None else seed
        tokenizer = double.tokenizer
        assert tokenizer is not None
        self.prompt = tuple(tokenizer.encode(request.text_input))
        self.options = replace(
            request.sampling,
            logit_bias=bias_by_id(request.embedding_bias, tokenizer),  # type: ignore[arg-type]
            bad_words=bad_word_ids(request.bad_words, tokenizer),  # type: ignore[arg-type]
        )
        self.rule = request.acceptance_rule
        if self.rule == "auto":
            self.rule = "coupled" if request.seed is not None and "coupled" in double._rules else double._rules[0]
        self.said: list[int] = []
        ignores = self.bug in ("seed ignored", "false promise")
        self.entropy = [self.seed, call] if ignores else [self.seed]
        self.round = 0

    def answer(self) -> Answer:
        rounds: list[dict[str, Any]] = []
        reason, drafted, accepted = "", 0, 0
        while not reason:
            k = self.double._max_draft_len if self.request.num_draft_tokens is None else self.request.num_draft_tokens
            k = 0 if self.round == 0 else min(k, self.request.max_tokens - len(self.said) - 1)
            block = self._block(max(k, 0))
            before = len(self.said)
            reason = self._commit(block.tokens)
            committed = len(self.said) - before
            drafted += block.drafted
            accepted += min(block.accepted, committed)
            rounds.append({"drafted": block.drafted, "committed": committed})
            self.round += 1
        text = self.double.tokenizer.decode(self.said)  # type: ignore[union-attr]
        if reason == "stop":
            text = text[: min(text.find(word) for word in self.request.stop_words if word in text)]
        log_probs = tuple(self._log_prob(i) for i in range(len(self.said))) if self.request.return_log_probs else ()
        sampled = not self.options.greedy
        fixed = self.request.num_draft_tokens is not None or self.rule == "coupled"
        return Answer(
            text=text,
            token_ids=tuple(self.said),
            finish_reason=reason,
            statistics={
                "prompt_tokens": len(self.prompt),
                "committed_tokens": len(self.said) + (self.bug == "counts the rest"),
                "num_draft_tokens": drafted,
                "num_accepted_draft_tokens": accepted,
                "seed": self.seed,
                "rule": self.rule,
                "reproducible": self.double._promises and (not sampled or fixed) and self.bug != "seed ignored",
            },
            rounds=tuple(rounds) if self.request.return_perf_metrics else (),
            log_probs=log_probs,
            cum_log_prob=sum(log_probs) if self.request.return_log_probs else None,
        )

    def _commit(self, tokens: list[int]) -> str:
        request, end = self.request, END if self.request.end_id is None else self.request.end_id
        reason = ""
        for i, token in enumerate(tokens):
            last = i == len(tokens) - 1
            if token == end:
                if self.bug != "end not cut" or last:
                    return "eos"
                continue
            self.said.append(token)
            text = self.double.tokenizer.decode(self.said)  # type: ignore[union-attr]
            if any(word in text for word in request.stop_words) and (self.bug != "stops at the block" or last):
                return "stop"
            if len(self.said) >= request.max_tokens + (self.bug == "one too many"):
                reason = "length"
                break
        return reason

    def _block(self, k: int) -> Round:
        """Draft k tokens and verify them."""
        drafts: list[int] = []
        q: list[Any] = []
        for i in range(k):
            # EOS is an ordinary draft token; "end withheld" forgets that its law q said so.
            law = self._law((*self.said, *drafts), self.double._draft, i)
            shown = law.copy()
            if self.bug == "end withheld":
                shown[END if self.request.end_id is None else self.request.end_id] = 0
            if self.bug == "raw q":
                law = np.exp(log_softmax(self._scores((*self.said, *drafts), self.double._draft)))
            q.append(law)
            drafts.append(self._choose(shown / shown.sum(), len(self.said) + i, "draft", i))
        block = Round([], drafted=k)
        for i, token in enumerate(drafts):
            p = self._law((*self.said, *drafts[:i]), self.double._target, i)
            if self.rule == "token" and not self.options.greedy:
                role = "draft" if self.bug == "same uniform" else "accept"
                if self._uniform(role, i) * q[i][token] < p[token]:
                    block.tokens.append(token)
                    continue
                rest = np.maximum(p - q[i], 0)
                block.tokens.append(self._draw(rest / rest.sum() if rest.sum() else p, "target", i))
            else:
                own = self._choose(p, len(self.said) + i, "target", i)
                if own == token or (self.bug == "greedy drift" and i == 1):
                    block.tokens.append(token)
                    continue
                block.tokens.append(self._choose(p, len(self.said) + i, "again", i) if self.bug == "redraw" else own)
            break
        block.accepted = len(block.tokens) - (len(block.tokens) > 0 and block.tokens != drafts[: len(block.tokens)])
        if block.tokens == drafts:
            p = self._law((*self.said, *drafts), self.double._target, k)
            block.tokens.append(self._choose(p, len(self.said) + k, "target", k))
        return block

    def _law(self, said: Ids, table: Any, index: int) -> Any:
        """[vocab] the law behind `said`; index: inside the block."""
        history = (*self.prompt, *said)
        if self.bug == "stale penalties":
            history = history[: len(history) - index]
        held = None
        generated = self.round if self.bug == "min_tokens counts rounds" else len(said)
        if generated < self.request.min_tokens:
            held = END if self.request.end_id is None else self.request.end_id
        if self.bug == "min_tokens ignored":
            held = None
        options = self.options
        edited = edited_scores(self._scores(said, table), options, history, held)
        if options.greedy:
            return np.eye(VOCAB)[edited.argmax()]
        if self.bug == "temperature":
            options = replace(options, temperature=options.temperature * 0.7)
        if self.bug == "top-k off by one":
            options = replace(options, top_k=options.top_k and options.top_k + 1)
        return law_of(edited, options).p

    def _scores(self, said: Ids, table: Any) -> Any:
        history = (*self.prompt, *said)
        return table[history[-2], history[-1]]

    def _choose(self, law: Any, position: int, role: str, index: int) -> int:
        if self.rule != "coupled" or self.options.greedy:
            return self._draw(law, role, index)
        place = self.round * 100 + index if self.bug == "noise by round" else len(self.prompt) + position
        key = int(noise_keys([self.entropy[-1] if len(self.entropy) > 1 else self.seed], np.array([[place]]))[0, 0])
        with np.errstate(divide="ignore"):
            return int((exponentials(key, np.arange(VOCAB)) / law).argmin())

    def _draw(self, law: Any, role: str, index: int) -> int:
        return int(min(np.searchsorted(np.cumsum(law), self._uniform(role, index), side="right"), VOCAB - 1))

    def _uniform(self, role: str, index: int) -> float:
        number = ("draft", "accept", "target", "again").index(role)
        return float(np.random.default_rng([*self.entropy, self.round, number, index]).random())

    def _log_prob(self, i: int) -> float:
        history = (*self.prompt, *self.said[:i])
        scores = self.double._target[history[-2], history[-1]]
        if self.bug == "log-probs behind the temperature" and not self.options.greedy:
            scores = scores / self.options.temperature
        if self.bug == "log-probs one step late" and i:
            return self._log_prob(i - 1)
        if self.bug == "draft's log-probs":
            scores = self.double._draft[history[-2], history[-1]]
        return float(log_softmax(scores)[self.said[i]])
