"""``lehr demo``: all of Lehr once, on real text or from a recording, to a ranked table."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.errors import LehrError, SpecError, UserError
from lehr.faces.cli.launch import launch, nothing_recorded
from lehr.faces.cli.output import JsonOption, console, notes, print_json
from lehr.faces.cli.plan import OverridesArgument, read_spec
from lehr.faces.cli.show import print_sweep
from lehr.faces.cli.watch import watch_until_end
from lehr_trainer import extras

if TYPE_CHECKING:
    from lehr.faces.cli.daemon import RunningServer
    from lehr.faces.client import Client, Sweep
    from lehr.schemas.cluster import ClusterView
    from lehr.specs import SweepSpec

app = typer.Typer(rich_markup_mode=None)

_CLUSTER_TIMEOUT_S = 120.0


@app.command("demo")
def demo(
    overrides: OverridesArgument = None,
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded", help="Train nothing: show the same sweep as it was recorded elsewhere."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start the server, prepare a corpus, train eight learning rates, rank them.

    Uses a running server, and a prepared corpus. Takes the same overrides as `lehr sweep`. A short
    demo: lehr demo run.train.steps=50. Exit code 1 if a trial failed. Where torch is not installed,
    it shows the recorded sweep.

    JSON: {sweep: SweepDetail}.
    """
    from lehr.specs import SweepSpec
    from lehr.specs.examples import LR_GRID_SMALL

    if recorded and overrides:
        raise UserError(f"{overrides[0]}: a recorded sweep cannot change. Leave out --recorded.")
    if recorded or (find_spec("torch") is None and not overrides):
        _show_recorded(as_json=as_json)
        return
    if overrides:
        extras.need("torch")
    try:
        spec = read_spec(str(LR_GRID_SMALL), overrides)
    except SpecError as error:
        raise nothing_recorded(error) from None
    if not isinstance(spec, SweepSpec):
        raise UserError("kind cannot be overridden: the demo is a sweep.")
    running = _bring_up()
    client = running.client()
    cluster = _wait_for_cluster(client)
    _say("cluster", _what(cluster))

    _say("corpus", _prepare(spec))

    sweep = launch(client, client.sweep, spec)
    _say("sweep", f"{spec.name}: {spec.trial_count} learning rates, one trial a GPU")
    notes().print()

    healthy = watch_until_end(client, sweep, quiet=as_json)
    if as_json:
        print_json({"sweep": sweep.detail})
    else:
        _next(client, sweep, running.token_hint)
    if not healthy:
        raise typer.Exit(1)


def _bring_up() -> RunningServer:
    from lehr.faces.cli.last_start import ServerOptions
    from lehr.faces.cli.server import bring_up

    running, fresh = bring_up(ServerOptions(), as_it_stands=True)
    _say("server", f"{running.url}{'' if fresh else ' (already running)'}")
    return running


def _show_recorded(*, as_json: bool) -> None:
    from lehr.specs.examples import RECORDED

    running = _bring_up()
    client = running.client()
    sweep = client.find_sweep(client.open(RECORDED).id)
    _say("sweep", f"{sweep.name}: recorded elsewhere; nothing is trained here")
    if as_json:
        print_json({"sweep": sweep.detail})
        return
    notes().print()
    print_sweep(sweep)
    _next(client, sweep, running.token_hint)
    if find_spec("torch") is None:
        command = extras.install("lehr[server,trainer]")
        console().print(f"  train it here: {command}, then lehr demo", markup=False, soft_wrap=True)


def _wait_for_cluster(client: Client) -> ClusterView:
    """Wait until the cluster has a GPU; Ray takes about ten seconds.

    Raises:
        LehrError: it did not start; with the reason.
    """
    deadline = time.monotonic() + _CLUSTER_TIMEOUT_S
    with notes().status("Starting the cluster"):
        while True:
            cluster = client.cluster()
            if cluster.state == "up" and cluster.gpus_total:
                return cluster
            if cluster.state == "up" and cluster.message:
                raise LehrError(f"the cluster has no GPUs: {cluster.message}.")
            if time.monotonic() > deadline:
                raise LehrError(
                    f"the cluster is {cluster.state} after {_CLUSTER_TIMEOUT_S:.0f} s"
                    f"{f': {cluster.message}' if cluster.message else ''}.",
                    hint="Check this machine: lehr doctor        Status: lehr status",
                )
            time.sleep(0.3)


def _what(cluster: ClusterView) -> str:
    names = [gpu.name for node in cluster.nodes for gpu in node.gpus]
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    logical = all(node.logical for node in cluster.nodes)
    return f"{kinds}{' (training runs on the CPU)' if logical else ''}"


def _prepare(spec: SweepSpec) -> str:
    from lehr.faces.cli.data import corpora, prepare_corpus

    texts = [prepare_corpus(config) for config in corpora(spec)]
    first = "".join(texts[-1:]).partition("\n")[0]
    own = spec.run.own.data.corpus.kind == "stdlib"
    return f"Python's standard library: {first}" if own else first


def _next(client: Client, sweep: Sweep, token_hint: str) -> None:
    from lehr.faces.cli.server import one_time_login

    best = next((trial.run.name for trial in sweep.trials if trial.best), sweep.name)
    out = console()
    out.print(f"\n  dashboard  {client.server}   ({token_hint})")
    out.print(f"  log in     {one_time_login(client)}", soft_wrap=True)
    out.print(f"  next       lehr show {best}     lehr logs {best}     lehr down", style="dim")


def _say(what: str, text: str) -> None:
    notes().print(f"  {what:<9}  {text}", markup=False)
