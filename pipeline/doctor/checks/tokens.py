"""Whether both models mean the same by a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import Finding
from pipeline.errors import EngineError
from pipeline.text.chat_template import TEMPLATE_NAME
from pipeline.text.compare import compare_tokenizers
from pipeline.text.tokenizer import CONFIG_NAME, TOKENIZER_NAME, Tokenizer, read_json


class Tokenizers(Check):
    """Vocabulary, merges, special tokens, text processing and tricky strings, by content."""

    name = "tokenizers"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        if "draft" not in deployment.models:
            return
        target, draft = deployment.models["target"], deployment.models["draft"]
        for model in (target, draft):
            # A local draft without a tokenizer takes the target's; a download that lacks it is not complete.
            lacks = model.file(TOKENIZER_NAME) is None and not (model is draft and model.file("config.json"))
            if model.folder is None or lacks:
                yield self.not_checked(
                    f"{model.role}: no {TOKENIZER_NAME} of {model.name} on this machine",
                    "a draft that means other tokens proposes garbage, and its law is not a law of these tokens",
                    f"{model.brought_by}, then run doctor again; `make engines` refuses a mismatch too",
                )
                return
        assert target.folder is not None and draft.folder is not None
        try:
            comparison = compare_tokenizers(target.folder, draft.folder)
        except EngineError as error:
            yield self.error(str(error), "it cannot be compared or used", "replace the file")
            return
        if comparison.equal:
            yield self.ok("the draft reads and writes the target's tokens")
        for line in comparison.differences:
            yield self.error(
                line,
                "a draft that means other tokens proposes garbage, and its law is not a law of these tokens",
                "take a draft of the target's family, or make one: `specdec distill`",
            )


class VocabularyWidth(Check):
    """Padded logits: tolerated, and said."""

    name = "vocabulary"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        widths = {role: shape.vocab for role, shape in deployment.shapes()}
        if len(widths) < 2:
            return
        target, draft = widths["target"], widths["draft"]
        if target == draft:
            yield self.ok(f"logits of both models have {target:,} entries")
        else:
            yield self.ok(
                f"logits have {target:,} entries at the target, {draft:,} at the draft: padding, if the tokenizers "
                "are equal; laws are brought to the target's width"
            )


class EndTokens(Check):
    """What begins and ends a text."""

    name = "begin and end tokens"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        target = deployment.models["target"]
        if target.folder is None or target.shape is None or target.file(TOKENIZER_NAME) is None:
            yield self.not_checked(
                f"target: no tokenizer of {target.name} on this machine",
                "an end token that the engine does not know lets answers run to max_tokens",
                f"{target.brought_by}, then run doctor again",
            )
            return
        try:
            tokenizer = Tokenizer.load(target.folder)
            generation = read_json(target.folder / "generation_config.json").get("eos_token_id")
        except EngineError as error:
            yield self.error(str(error), "it cannot be used", "replace the file")
            return
        listed = generation if isinstance(generation, list) else [] if generation is None else [generation]
        ends = {*target.shape.eos_ids, *listed}
        end = tokenizer.eos_id
        if end is None:
            yield self.warning(
                "target: the tokenizer names no end token",
                "answers end at max_tokens or a stop word only",
                f"name eos_token in {CONFIG_NAME}, or send end_id with each request",
            )
        elif ends and end not in ends:
            yield self.warning(
                f"target: the tokenizer ends with {end}, the model's configuration with {sorted(ends)}",
                "the model may write an end that nobody stops at",
                "send end_id, or correct eos_token",
            )
        else:
            others = sorted(ends - {end})
            also = f"; {others} end an answer too where they are sent as stop words" if others else ""
            yield self.ok(f"target: begins with {tokenizer.bos_id}, ends with {end}{also}")
        yield from self._draft(deployment, tokenizer)

    def _draft(self, deployment: Deployment, target: Tokenizer) -> Iterator[Finding]:
        draft = deployment.models.get("draft")
        if draft is None or draft.folder is None or draft.file(TOKENIZER_NAME) is None:
            return
        try:
            theirs = Tokenizer.load(draft.folder)
        except EngineError:
            return  # the comparison of the tokenizers says it
        ours = (target.bos_id, target.eos_id)
        if (theirs.bos_id, theirs.eos_id) == ours:
            yield self.ok("draft: the same begin and end tokens")
        else:
            yield self.warning(
                f"draft: begins with {theirs.bos_id} and ends with {theirs.eos_id}, the target with {ours}",
                "text stays exact (the draft is given the target's ids), but it was trained on other boundaries",
                "prefer a draft of the same kind: base with base, instruct with instruct",
            )


class ChatTemplates(Check):
    """Whether chat prompts can be made, and whether the draft was trained on such prompts."""

    name = "chat template"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        texts = {}
        for role, model in deployment.models.items():
            if model.folder is None or (role == "draft" and model.file(TOKENIZER_NAME) is None):
                continue
            try:
                texts[role] = _template(model.folder)
            except EngineError as error:
                yield self.error(str(error), "it cannot be read", "replace the file")
                return
        if "target" not in texts:
            return
        if texts["target"] is None:
            yield self.warning(
                "target: no chat template", "`--chat` is refused; a base model continues plain text", "none, if meant"
            )
        elif "draft" in texts and texts["draft"] != texts["target"]:
            yield self.warning(
                "the draft's chat template is another one than the target's",
                "text stays exact, but a draft that was trained on other prompts is accepted less often",
                "prefer a draft with the same template; `specdec acceptance` measures what it costs",
            )
        else:
            yield self.ok("target: has a chat template" + (", the draft the same" if "draft" in texts else ""))


def _template(folder: Path) -> object:
    """The template's source, None if there is none."""
    path = folder / TEMPLATE_NAME
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise EngineError(f"{path} cannot be read: {error}") from error
    return read_json(folder / CONFIG_NAME).get("chat_template")
