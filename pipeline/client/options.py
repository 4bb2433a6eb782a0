"""The options of `specdec request` and `specdec generate`: one definition for both, and their help."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from pipeline.errors import InvalidRequestError
from pipeline.orchestrator.request import DEFAULT_MAX_TOKENS, EACH_ROUND, GenerationRequest
from pipeline.sampling.params import SamplingParams

ChatOption = Annotated[bool, typer.Option("--chat", help="apply the model's chat template to the prompt")]
MaxTokensOption = Annotated[int, typer.Option("--max-tokens", help="tokens to generate at most")]


@dataclass(frozen=True)
class GenerationOptions:
    """Everything a request may ask for; every field is an option of the command."""

    chat: ChatOption = False
    max_tokens: MaxTokensOption = DEFAULT_MAX_TOKENS
    min_tokens: Annotated[int, typer.Option(help="the end token is impossible before so many tokens")] = 0
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0
    top_k: Annotated[int, typer.Option(help="keep the k most probable tokens; 0 is off")] = 0
    top_p: Annotated[float, typer.Option(help="keep the most probable tokens up to this mass; 1.0 is off")] = 1.0
    min_p: Annotated[float, typer.Option(help="drop tokens below min_p times the best one's; 0 is off")] = 0.0
    repetition_penalty: Annotated[float, typer.Option(help="on tokens of prompt and answer; 1.0 is off")] = 1.0
    presence_penalty: Annotated[float, typer.Option(help="once per token of prompt and answer; 0 is off")] = 0.0
    frequency_penalty: Annotated[float, typer.Option(help="per occurrence in prompt and answer; 0 is off")] = 0.0
    bias: Annotated[
        list[str] | None, typer.Option(help="WORD=WEIGHT, added to the logit of each token of WORD; may be repeated")
    ] = None
    bad: Annotated[list[str] | None, typer.Option(help="text that must not occur; may be repeated")] = None
    stop: Annotated[list[str] | None, typer.Option(help="text that ends the answer; may be repeated")] = None
    end_id: Annotated[int | None, typer.Option(help="token that ends the answer; -1: none, absent: the model's")] = None
    seed: Annotated[int | None, typer.Option(help="absent: drawn from the operating system")] = None
    num_draft_tokens: Annotated[
        int | None, typer.Option("-k", "--num-draft-tokens", help="0: plain decoding, n: fixed K, absent: controller")
    ] = None
    rule: Annotated[str, typer.Option(help="acceptance rule: auto, block, token, coupled or match")] = "auto"
    num_return_sequences: Annotated[int, typer.Option("-n", "--num-return-sequences", help="answers to give")] = 1
    log_probs: Annotated[bool, typer.Option("--log-probs", help="the log-probability of every token")] = False
    stream_tokens: Annotated[str, typer.Option(help="round: a response per round, each: one per token")] = EACH_ROUND

    def request(self, prompt: str) -> GenerationRequest:
        """The request that these options make of a prompt.

        Raises:
            InvalidRequestError: naming the field, its value and its limit.
        """
        return GenerationRequest(
            text_input=prompt,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            sampling=SamplingParams(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                repetition_penalty=self.repetition_penalty,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
            ),
            embedding_bias=tuple(_bias(text) for text in self.bias or ()),
            bad_words=tuple(self.bad or ()),
            stop_words=tuple(self.stop or ()),
            end_id=self.end_id,
            seed=self.seed,
            num_draft_tokens=self.num_draft_tokens,
            acceptance_rule=self.rule,
            num_return_sequences=self.num_return_sequences,
            return_log_probs=self.log_probs,
            stream_tokens=self.stream_tokens,
            chat=self.chat,
            stream=True,
            exclude_input_in_output=True,
            return_perf_metrics=True,
        )


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """A typer command whose parameter `options` stands for every field of GenerationOptions."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "options"]
    hints = get_type_hints(GenerationOptions, include_extras=True)
    shared = {
        spec.name: inspect.Parameter(
            spec.name, inspect.Parameter.KEYWORD_ONLY, default=spec.default, annotation=hints[spec.name]
        )
        for spec in fields(GenerationOptions)
    }

    def run(**values: Any) -> None:
        options = GenerationOptions(**{name: values.pop(name) for name in shared})
        command(**values, options=options)

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    signature = inspect.Signature([*keyword_only, *shared.values()])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _bias(text: str) -> tuple[str, float]:
    word, _, weight = text.rpartition("=")
    try:
        number = float(weight)
    except ValueError:
        number = math.nan
    if not word or not math.isfinite(number):
        raise InvalidRequestError("bias", text, "must be WORD=WEIGHT with a number for WEIGHT")
    return word, number
