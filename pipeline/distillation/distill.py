"""`specdec distill`: a target writes text, a draft learns from it, the result is measured and written as a folder."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pipeline.client.prompts import Prompt, load_prompts
from pipeline.client.terminal import print_table
from pipeline.distillation.acceptance import DRAFTED, Table, by_kind, by_temperature, measure
from pipeline.distillation.card import UNKNOWN_LICENCE, Facts, cells, summary, write_card
from pipeline.distillation.corpus import POSITIONS, Corpus, encode, question_start, sequence_of
from pipeline.distillation.options import DistillOptions
from pipeline.distillation.prompts import TrainingPrompt, read_prompts
from pipeline.distillation.scribes import Scribes
from pipeline.distillation.student import FREQUENT_TOKENS, Student, layers_of_draft, layers_of_target, rank_tokens
from pipeline.distillation.training import Step, Trainer, TrainingOptions
from pipeline.distillation.writer import Job, Target, Writer
from pipeline.engine.model_config import ModelConfig
from pipeline.errors import InvalidRequestError
from pipeline.text.tokenizer import Tokenizer

WRITING_SHARE = 0.4  # of the time: text is worth more than passes over it, but weights need passes too
HELD_OUT_SHARE, HELD_OUT_MOST = 0.05, 300  # texts
QUICK_TEXTS = 60  # measured at every checkpoint
CHECKPOINT_S = 240.0
FEW_TOKENS = 100_000
EXCLUDED_TOKENS = 64
STATUS_COLUMNS = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())


def distill(options: DistillOptions, console: Console) -> int:
    """Make a draft. Returns the exit status.

    Raises:
        SpecDecodeError: an option or a model folder that cannot be used.
    """
    options.check()
    device = find_device(options.device)
    excluded = load_prompts(options.exclude)
    given = read_prompts(options.prompts) if options.prompts else []
    config = ModelConfig.read(options.target)
    if options.init is None:
        layers = layers_of_target(options.target, options.layers, POSITIONS)
    else:
        layers = layers_of_draft(options.init, config, POSITIONS)
    tokenizer = Tokenizer.load(options.target)
    asked = [Job(prompt.kind, ids, 0.0, EXCLUDED_TOKENS) for prompt, ids in _encoded(excluded, tokenizer)]
    console.print(
        f"target {options.target}, {config.num_layers} layers; draft {len(layers.layers)} layers; on {device}",
        soft_wrap=True,
    )

    corpus = _corpus(options, device, given, [prompt.text for prompt in excluded], console)
    training, held_out = corpus.split(HELD_OUT_SHARE, HELD_OUT_MOST)
    if not training.sequences:
        raise InvalidRequestError(
            "minutes", options.minutes, "was too short for the target to write two texts; give more"
        )
    console.print(
        f"{training.output_tokens:,} tokens to learn from, {held_out.output_tokens:,} held out", highlight=False
    )

    if training.output_tokens < FEW_TOKENS:
        console.print(f"that is little: below {FEW_TOKENS:,} tokens a draft learns them by heart; give more --minutes")

    target = Target(options.target, device, POSITIONS)
    layers.compute_in(target.dtype)
    student = Student(target, layers, _ranking(options, training, config), options.head_tokens)
    before = measure(target, student, held_out.sequences[:QUICK_TEXTS])
    console.print(f"before training: {summary(before)}", highlight=False)
    spent = 60 * options.minutes * (WRITING_SHARE if options.corpus is None else 0.0)
    training_options = TrainingOptions(
        60 * options.minutes - spent, options.steps, options.rate, options.batch_tokens, options.seed
    )
    trainer = Trainer(student, training, training_options)
    _train(trainer, training_options, target, held_out, options, console)

    console.print("measuring")
    exact = Target(options.target, device, POSITIONS, torch.float32)
    measured = {"held-out texts": measure(exact, student, held_out.sequences)}
    texts = Writer(exact, min(len(asked), options.slots), 0).write(iter(asked))
    name = f"{options.exclude.name}, greedy, {EXCLUDED_TOKENS} tokens"
    measured[name] = measure(exact, student, [sequence_of(text) for text in texts])
    student.save(options.out, options.target)
    write_card(options.out, _facts(options, student, trainer, training, device, measured))
    for name, table in measured.items():
        print_acceptance(console, f"Acceptance on {name}", table)
    console.print(
        f"written to {options.out}; name it as draft.model in a deployment spec", highlight=False, soft_wrap=True
    )
    return 0


def find_device(name: str) -> torch.device:
    """`auto` takes a GPU where there is one.

    Raises:
        InvalidRequestError: no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidRequestError("device", name, f"cannot be used here ({str(error).splitlines()[0]})") from error
    return device


def print_acceptance(console: Console, title: str, table: Table) -> None:
    """A table by temperature, then by kind at the lowest one."""
    coldest = min(t for _, t in table)
    rows = [[f"T {t:g}", *cells(a)] for t, a in by_temperature(table).items()]
    rows += [[f"T {coldest:g}, {kind}", *cells(a)] for kind, a in by_kind(table, coldest).items()]
    print_table(console, title, ("", "tokens", "per token", *(f"at {i + 1}" for i in range(DRAFTED)), "length"), rows)


def _corpus(
    options: DistillOptions, device: torch.device, given: list[TrainingPrompt], excluded: list[str], console: Console
) -> Corpus:
    if options.corpus is not None:
        corpus = Corpus.load(options.corpus)
        if not corpus.sequences:
            raise InvalidRequestError("corpus", str(options.corpus), "must hold shards that an earlier run wrote")
        return corpus
    folder = options.out.with_name(options.out.name + ".corpus")
    if folder.exists() and any(folder.iterdir()):
        raise InvalidRequestError("out", str(options.out), f"{folder} holds an earlier run's text; give it as --corpus")
    seconds = 60 * options.minutes * WRITING_SHARE
    scribes = Scribes(options.target, folder, device, options.workers, options.slots, options.seed, excluded, given)
    with Progress(*STATUS_COLUMNS, console=console) as progress:
        task = progress.add_task("target writes", total=1.0)

        def report(tokens: int, passed: float) -> None:
            progress.update(
                task,
                completed=min(1.0, max(tokens / options.tokens, passed / seconds)),
                description=f"target writes: {tokens:,} tokens, {tokens / max(passed, 1e-9):,.0f}/s",
            )

        scribes.run(options.tokens, seconds, report)
        progress.update(task, completed=1.0)
    return Corpus.load(folder)


def _ranking(options: DistillOptions, training: Corpus, config: ModelConfig) -> list[int]:
    earlier: list[int] = []
    if options.init is not None and (options.init / FREQUENT_TOKENS).is_file():
        earlier = [i for i in json.loads((options.init / FREQUENT_TOKENS).read_text()) if 0 <= i < config.vocab_size]
    return rank_tokens(training.sequences, config.vocab_size, earlier)


def _train(
    trainer: Trainer,
    training: TrainingOptions,
    target: Target,
    held_out: Corpus,
    options: DistillOptions,
    console: Console,
) -> None:
    saved = time.monotonic()
    recent: list[Step] = []
    with Progress(*STATUS_COLUMNS, console=console) as progress:
        task = progress.add_task("draft learns", total=training.seconds)

        def report(step: Step) -> None:
            nonlocal saved
            recent.append(step)
            del recent[:-20]
            divergence = sum(s.divergence for s in recent) / len(recent)
            overlap = sum(s.overlap for s in recent) / len(recent)
            progress.update(
                task,
                completed=step.seconds,
                description=f"draft learns: step {step.number}, KL {divergence:.3f}, sum of min(p, q) {overlap:.3f}",
            )
            if time.monotonic() - saved > CHECKPOINT_S:
                saved = time.monotonic()
                with contextmanager(trainer.averaged)():
                    table = measure(target, trainer.student, held_out.sequences[:QUICK_TEXTS])
                    trainer.student.save(_checkpoint(options), options.target)
                progress.console.print(f"step {step.number}, {step.seconds:.0f} s: {summary(table)}", highlight=False)

        try:
            trainer.run(report)
        except KeyboardInterrupt:
            trainer.take_average()
            console.print("stopped; going on with the weights so far")
        progress.update(task, completed=training.seconds)


def _checkpoint(options: DistillOptions) -> Path:
    return options.out.with_name(options.out.name + ".checkpoint")


def _encoded(prompts: list[Prompt], tokenizer: Tokenizer) -> list[tuple[Prompt, list[int]]]:
    """Prompts to measure on with their token ids, as a server would make them; too long ones are refused at once."""
    chat = question_start(tokenizer) is not None
    encoded = [(prompt, encode(tokenizer, TrainingPrompt(prompt.kind, prompt.text, chat))) for prompt in prompts]
    for prompt, ids in encoded:
        if len(ids) + EXCLUDED_TOKENS > POSITIONS:
            limit = f"has {len(ids)} tokens, at most {POSITIONS - EXCLUDED_TOKENS} can be measured on"
            raise InvalidRequestError("exclude", prompt.text[:40], limit)
    return encoded


def _facts(
    options: DistillOptions,
    student: Student,
    trainer: Trainer,
    training: Corpus,
    device: torch.device,
    measured: dict[str, Table],
) -> Facts:
    layers = student.layers
    start = "initialised from the target's first layers and its last"
    if options.init is not None:
        start = f"trained on from {options.init.name}"
    flags = f"--init {options.init.name}" if options.init is not None else f"--layers {options.layers}"
    return Facts(
        name=options.out.name,
        target=options.target.resolve().name,
        start=start,
        licence=_licence(options.target),
        layers=len(layers.layers),
        parameters=sum(p.numel() for p in layers.parameters()),
        corpus_texts=len(training.sequences),
        corpus_tokens=training.output_tokens,
        steps=trainer.steps,
        token_visits=trainer.tokens,
        minutes=trainer.seconds / 60,
        device=f"a CPU ({torch.get_num_threads()} threads)"
        if device.type == "cpu"
        else torch.cuda.get_device_name(device),
        command=f"specdec distill {options.target.name} {flags} --minutes {options.minutes:g} --seed {options.seed}",
        measured=measured,
    )


def _licence(target: Path) -> str:
    """From the model card's header or config.json."""
    try:
        for line in (target / "README.md").read_text().split("---")[1].splitlines():
            if line.startswith("license:"):
                return f"{line.partition(':')[2].strip()}, as the target's"
    except (OSError, IndexError):
        pass
    named = json.loads((target / "config.json").read_text()).get("license")
    return f"{named}, as the target's" if named else UNKNOWN_LICENCE
