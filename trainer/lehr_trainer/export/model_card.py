"""The model card of an export (README.md): where the weights come from, and how to load them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from lehr_trainer.configs.corpus import ChatCorpus, HubCorpus, MixCorpus, PathsCorpus, weighed
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract.manifest import Manifest
from lehr_trainer.planning.counts import parameter_counts

_LOAD = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = AutoModelForCausalLM.from_pretrained(FOLDER)
inputs = tokenizer("The meaning of life is", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
```
"""
_LOAD_WEIGHTS = """\
```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(FOLDER)
```
"""
_LICENCE = """\
Not stated. Before you publish this model, choose a licence, check the terms of the corpus, and add
`license:` to the block at the top of this file.
"""


@dataclass(frozen=True)
class Mean:
    """A mean of weights, which are not those of a single step."""

    text: str
    """What it is the mean of, in sentences."""
    val_loss: float | None = None
    """None if it was not evaluated."""
    ingredients: Sequence[tuple[str, str]] = ()
    """Name and description of each checkpoint; none if they are steps of one run."""


def model_card(
    config: TrainConfig,
    manifest: Manifest,
    state: Mapping[str, Any],
    *,
    digest: str,
    has_tokenizer: bool,
    facts: Mapping[str, Any],
    mean: Mean | None = None,
) -> str:
    """Write the card of a checkpoint, from its manifest, ``state.json`` and the manifest's digest.

    ``facts`` are what the platform knows: ``run``, ``lehr_version``, ``provenance``. With ``mean``
    the weights are that; the rest is of the first checkpoint that is part of it.
    """
    run = facts.get("run") or {}
    whole = TrainConfig.model_validate(state["course"]) if "course" in state else config
    parts = [
        _front_matter(config),
        f"# {run.get('name') or config.model.kind}",
        _about(whole, manifest),
        "" if mean is None else mean.text,
        "" if mean is None or not mean.ingredients else _table(mean.ingredients),
        "## Use",
        _LOAD if has_tokenizer else _LOAD_WEIGHTS,
        _tokens_note(config, has_tokenizer=has_tokenizer),
        "## Training",
        _table([*_training(config, manifest, state), *_stages(whole)]),
        "## Validation loss",
        _validation(whole.course[0].config, manifest, state, mean),
        "## Provenance",
        _table(_provenance(manifest, state, digest, facts)),
        "The complete config; with the same corpus and version it repeats the run:",
        f"```yaml\n{_yaml(whole.model_dump(mode='json'))}```",
        "## Licence",
        _LICENCE,
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _about(config: TrainConfig, manifest: Manifest) -> str:
    begun = [stage.config.data for stage in config.course if stage.span.first < manifest.step]
    single = [corpus for data in begun for corpus, _ in weighed(data.corpus).values()]
    templates = dict.fromkeys(one.template for one in single if isinstance(one, ChatCorpus))
    tuned = (
        f"It was trained on chats, written by the template {' or '.join(templates)}."
        if templates
        else "It is pretrained only, and not tuned to follow instructions."
    )
    return (
        f"A language model of {parameter_counts(config.model).total:,} parameters, trained with "
        f"Lehr for {manifest.step:,} of {config.steps:,} steps. {tuned}"
    )


def _front_matter(config: TrainConfig) -> str:
    corpus = config.data.corpus
    described: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["lehr"],
    }
    if isinstance(corpus, HubCorpus):
        described["datasets"] = [corpus.id]
    return f"---\n{_yaml(described)}---"


def _tokens_note(config: TrainConfig, *, has_tokenizer: bool) -> str:
    if not has_tokenizer:
        return (
            f"The tokenizer of the run, `{config.data.tokenizer}`, is not part of this export. "
            "Set the ids of its special tokens in `generation_config.json`."
        )
    return (
        "The tokenizer puts no token before or after a text, as in training. Documents were "
        "separated by the end-of-document token, so it is also the first token (bos)."
    )


def _training(
    config: TrainConfig, manifest: Manifest, state: Mapping[str, Any]
) -> Iterable[tuple[str, str]]:
    corpus = config.data.corpus
    data = state.get("data", {})
    yield "Corpus", _corpus(corpus)
    if "tokens" in data:
        yield "Tokens of the corpus", f"{data['tokens']:,}"
    yield "Tokens trained on", f"{manifest.tokens:,}"
    yield "Tokenizer", f"`{config.data.tokenizer}`"
    batch = config.batch
    shape = f"{batch.sequences} sequences of {batch.sequence_length}"
    yield "Tokens a step", f"{config.tokens_per_step:,} ({shape})"
    yield "Seed", f"{config.seed} (first weights and order of the data)"
    if data.get("digest"):
        yield "Digest of the tokens", f"`{data['digest']}`"


def _stages(config: TrainConfig) -> Iterable[tuple[str, str]]:
    for span, own in config.course if config.stages else ():
        batch = f"{span.batch.sequences} sequences of {span.batch.sequence_length} a step"
        steps = f"steps {span.first + 1:,} to {span.last:,}: {span.trained:,} tokens"
        yield f"Stage {span.name}", f"{steps}, {batch}, of {_corpus(own.data.corpus)}"


def _corpus(corpus: Any) -> str:
    if isinstance(corpus, HubCorpus):
        parts = [corpus.id, corpus.name, corpus.split]
        revision = corpus.revision or "no revision given"
        return f"`{'/'.join(part for part in parts if part)}` of the Hugging Face hub, {revision}"
    if isinstance(corpus, PathsCorpus):
        return f"{corpus.kind} files: {', '.join(f'`{path}`' for path in corpus.paths)}"
    if isinstance(corpus, MixCorpus):
        return "; ".join(f"{share:.1%} {_corpus(one)}" for one, share in weighed(corpus).values())
    return "sources of the Python standard library"


def _validation(
    config: TrainConfig, manifest: Manifest, state: Mapping[str, Any], mean: Mean | None
) -> str:
    data = state.get("data", {})
    tokens = min(config.validation.tokens, data.get("validation_tokens", config.validation.tokens))
    length = config.batch.sequence_length
    how = (
        f"It is the mean cross entropy in nats over {tokens // length * length:,} tokens of "
        f"documents that were held out ({config.validation.share:.2%} of all, chosen by the hash "
        f"of their text, copies removed from the training set), in sequences of {length} tokens, "
        "each token scored once, with an fp32 softmax."
    )
    if data.get("validation_digest"):
        how += f" Digest of these tokens: `{data['validation_digest']}`."
    if mean is not None:
        if mean.val_loss is None:
            return "This mean of weights was not evaluated."
        return f"**{mean.val_loss:.4f}**, of this mean of weights. {how}"
    if manifest.val_loss is not None:
        return f"**{manifest.val_loss:.4f}**, of these weights, at step {manifest.step:,}. {how}"
    best = state.get("best_val_loss")
    if best is None:
        return "These weights were not evaluated."
    return (
        f"These weights were not evaluated. The lowest loss of the run until this step is "
        f"{best:.4f}. {how}"
    )


def _provenance(
    manifest: Manifest, state: Mapping[str, Any], digest: str, facts: Mapping[str, Any]
) -> Iterable[tuple[str, str]]:
    run = facts.get("run") or {}
    if run:
        yield "Run", f"{run.get('name')} (`{run.get('id')}`), project {run.get('project')}"
    if run.get("forked_from"):
        yield "Forked from", f"run `{run['forked_from']}`, whose training comes before this one's"
    yield "Checkpoint", f"step {manifest.step:,}, SHA-256 of its manifest `{digest}`"
    git = (facts.get("provenance") or {}).get("git") or {}
    if git.get("commit"):
        dirty = ", with uncommitted changes" if git.get("dirty") else ""
        yield "Submitted from commit", f"`{git['commit']}`{dirty}"
    versions = state.get("versions", {})
    if versions:
        yield "Trained with", ", ".join(f"{name} {version}" for name, version in versions.items())
    if facts.get("lehr_version"):
        yield "Exported by", f"lehr {facts['lehr_version']}"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {name} | {value.replace('|', '&#124;')} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *lines])


def _yaml(content: Any) -> str:
    # By way of JSON, so that only plain values are written.
    text: str = yaml.safe_dump(
        json.loads(json.dumps(content)), sort_keys=False, allow_unicode=True, width=100
    )
    return text
