"""``lehr presets``: list the named model configurations."""

from __future__ import annotations

from typing import Any

import typer

from lehr import formats
from lehr.cli.narrow import print_fitting
from lehr.cli.output import JsonOption, print_json, table

app = typer.Typer(rich_markup_mode=None)


@app.command("presets")
def presets(as_json: JsonOption = False) -> None:
    """List model presets and their sizes. Use one as `model: NAME` in a spec.

    JSON: {presets: [{name, summary, parameters, embedding_parameters, flops_per_token, values}]}.
    """
    from pydantic import TypeAdapter

    from lehr_trainer.configs.presets import MODEL_PRESETS
    from lehr_trainer.configs.train import ModelConfig
    from lehr_trainer.planning.counts import flops_per_token, parameter_counts

    adapter: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)
    found: list[dict[str, Any]] = []
    for name, preset in MODEL_PRESETS.items():
        model = adapter.validate_python(preset.values)
        counts = parameter_counts(model)
        length = min(2048, model.max_sequence_length)
        found.append(
            {
                "name": name,
                "summary": preset.summary,
                "parameters": counts.total,
                "embedding_parameters": counts.embedding,
                "sequence_length": length,
                "flops_per_token": flops_per_token(model, length),
                "values": model.model_dump(mode="json"),
            }
        )
    if as_json:
        print_json({"presets": found})
        return
    rows = table(
        "preset",
        "parameters",
        "embedding",
        "layers",
        "hidden",
        "FLOPs/token",
        "what it is",
        right=("parameters", "embedding", "layers", "hidden", "FLOPs/token"),
    )
    for preset_ in found:
        rows.add_row(
            preset_["name"],
            formats.count(preset_["parameters"]),
            formats.millions(preset_["embedding_parameters"]),
            str(preset_["values"]["num_hidden_layers"]),
            str(preset_["values"]["hidden_size"]),
            f"{formats.si(preset_['flops_per_token'])} at {preset_['sequence_length']:,}",
            preset_["summary"],
        )
    print_fitting(rows, fold="what it is", spare=["embedding", "hidden", "layers"])
