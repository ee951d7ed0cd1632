"""Usual calls of scripts that log to W&B, on Lehr's module and, as a witness, on the real wandb."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

IDIOMS: dict[str, tuple[str, object]] = {
    # What a script does after init; ``out`` is what it finds.
    "config of argparse": (
        ("run = wandb.init(config=argparse.Namespace(lr=0.5, bs=8))\n"
        "out = [wandb.config.lr, run.config['bs']]"),
        [0.5, 8],
    ),
    "config of an object": (
        "class C:\n def __init__(self): self.lr = 2\nrun = wandb.init(config=C())\nout = wandb.config.lr",
        2,
    ),
    "config updated from argparse": (
        ("run = wandb.init()\nwandb.config.update(argparse.Namespace(wd=0.1))\n"
        "run.config.update(dict(wd=0.2), allow_val_change=True)\nout = wandb.config.wd"),
        0.2,
    ),
    "config as a dictionary": (
        "wandb.init(config={'a': 1})\nout = [wandb.config.as_dict(), dict(wandb.config), 'a' in wandb.config]",
        [{"a": 1}, {"a": 1}, True],
    ),
    "config with defaults": (
        ("wandb.init(config={'a': 1})\nwandb.config.setdefaults({'a': 2, 'b': 3})\n"
        "out = [wandb.config.a, wandb.config.b, wandb.config.get('c', 4)]"),
        [1, 3, 4],
    ),
    "config by attribute": (
        ("wandb.init()\nwandb.config.depth = 3\nwandb.config['width'] = 4\n"
        "out = [wandb.config['depth'], wandb.config.width, hasattr(wandb.config, 'none')]"),
        [3, 4, False],
    ),
    "version": ("out = wandb.__version__.split('.')[0].isdecimal()", True),
    "file in the run's folder": (
        ("run = wandb.init()\npath = os.path.join(wandb.run.dir, 'm.pt')\nopen(path, 'w').write('x')\n"
        "wandb.save(path)\nout = os.path.exists(os.path.join(run.dir, 'm.pt'))"),
        True,
    ),
    "type of a picture": (
        ("image = wandb.Image.__new__(wandb.Image)\n"
        "out = [isinstance(image, wandb.Image), isinstance(image, wandb.Table), isinstance(1.0, wandb.Image)]"),
        [True, False, False],
    ),
    "table": (
        ("run = wandb.init()\ntable = wandb.Table(columns=['a'])\ntable.add_data(1)\nrun.log({'t': table})\n"
        "out = isinstance(table, wandb.Table)"),
        True,
    ),
    "summary by attribute": ("run = wandb.init()\nrun.summary.best = 1\nout = run.summary['best']", 1),
    "summary by key": ("wandb.init()\nwandb.summary['a'] = 1\nout = wandb.run.summary['a']", 1),
    "summary updated": (
        ("run = wandb.init()\nrun.summary.update({'a': 1, 'b': 2})\n"
        "out = [dict(wandb.summary)['b'], run.summary.get('c', 5)]"),
        [2, 5],
    ),
    "fresh run is not resumed": (
        "run = wandb.init()\nout = [bool(wandb.run.resumed), bool(run.disabled), bool(run), run.sweep_id]",
        [False, False, True, None],
    ),
    "run before and after": (
        ("first = wandb.run\nwandb.init()\nduring = wandb.run is not None\nwandb.finish()\n"
        "out = [first, during, wandb.run]"),
        [None, True, None],
    ),
    "name and id": (
        ("run = wandb.init(id='abc', name='my-run', project='p', group='g', tags=['t'])\n"
        "run.tags += ('u',)\nout = [run.id, run.name, run.project, run.group, list(run.tags)]"),
        ["abc", "my-run", "p", "g", ["t", "u"]],
    ),
    "errors": (
        ("from wandb.errors import CommError\n"
        "try:\n raise KeyError('x')\nexcept (wandb.Error, CommError):\n out = 'of wandb'\n"
        "except KeyError:\n out = 'other'"),
        "other",
    ),
    "level of an alert": (
        "run = wandb.init()\nrun.alert(title='t', text='x', level=wandb.AlertLevel.WARN)\nout = 1",
        1,
    ),
    "artifact that is written": (
        ("run = wandb.init()\nart = wandb.Artifact('model', type='model', metadata={'a': 1})\n"
        "with art.new_file('x.txt') as f:\n f.write('x')\nrun.log_artifact(art, aliases=['best'])\nout = 1"),
        1,
    ),
    "steps": (
        ("run = wandb.init()\nwandb.log({'a': 1}, commit=False)\nfirst = run.step\nwandb.log({'b': 1})\n"
        "out = run.step - first"),
        1,
    ),
    "with": ("with wandb.init(mode='offline') as run:\n run.log({'a': 1})\nout = wandb.run", None),
    "settings": (
        ("run = wandb.init(settings=wandb.Settings(quiet=True))\nrun.log_code('.')\n"
        "run.define_metric('val/*', step_metric='epoch', summary='min')\nwandb.watch(None) if 0 else 0\nout = 1"),
        1,
    ),
}  # fmt: skip
WITHOUT_WITNESS = {
    # The real package would ask its server.
    "artifact that is read": (
        ("run = wandb.init()\nfolder = run.use_artifact('a/b/m:latest').download()\n"
        "out = [os.path.join(folder, 'm.pt').endswith('m.pt'), os.path.exists(os.path.join(folder, 'm.pt'))]"),
        [True, False],
    ),
    # Of wandb before 0.20.
    "own id": (
        ("name = wandb.util.generate_id()\nwandb.init(id=name, resume='allow')\n"
        "out = [isinstance(name, str), wandb.run.id == name, len(json.dumps(name)) > 4]"),
        [True, True, True],
    ),
    "api": ("out = [row for row in wandb.Api().runs('a/b')]", []),
    "log that cannot be read": (
        "x = {}\nx['x'] = x\nwandb.init()\nwandb.log(x)\nwandb.log(None)\nout = 1",
        1,
    ),
    "config that the program replaces": (
        "wandb.config = {'a': 1}\nwandb.init(config={'a': 2, 'b': 3})\nout = [wandb.config.a, wandb.run.config.b]",
        [1, 3],
    ),
    "values of what was logged": (
        "run = wandb.init()\nrun.log({'a': 1.5, 'b': {'c': 2}})\nout = [run.summary['a'], wandb.summary['b.c']]",
        [1.5, 2.0],
    ),
    "object as the name of a module": (
        ("import wandb.sdk.lib.config_util as u\n"
        "try:\n raise u.ConfigError('x')\nexcept u.ConfigError as error:\n out = str(error)"),
        "x",
    ),
}  # fmt: skip
ALL = {**IDIOMS, **WITHOUT_WITNESS}
PROGRAM = """
import argparse, json, os, sys
found = {}
for name, text in json.load(sys.stdin).items():
    import wandb
    names = {"wandb": wandb, "argparse": argparse, "os": os, "json": json}
    try:
        exec(text, names)
        found[name] = names["out"]
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
    wandb.finish()
print("FOUND", json.dumps(found))
"""


def found(texts: dict[str, str], folder: Path, *flags: str, **environment: str) -> dict:
    done = subprocess.run(
        [sys.executable, *flags, "-c", dedent(PROGRAM)],
        input=json.dumps(texts),
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("FOUND ")[-1])


@pytest.mark.parametrize("idiom", ALL)
def test_usual_call_of_wandb_works(idiom, tmp_path):
    import lehr_log

    root = Path(lehr_log.__file__).parent
    path = os.pathsep.join([str(root / "as_wandb"), str(root.parent)])
    text, expected = ALL[idiom]
    environment = {"PYTHONPATH": path, "LEHR_LOG": str(tmp_path / "log")}
    assert found({idiom: text}, tmp_path, "-S", **environment) == {idiom: expected}


@pytest.mark.nightly  # The test above has the same answers; the real wandb takes seconds to give them.
def test_real_wandb_answers_the_same(tmp_path):
    pytest.importorskip("wandb")
    texts = {name: text for name, (text, _) in IDIOMS.items()}
    real = {
        **os.environ,
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "HOME": str(tmp_path),
    }
    assert found(texts, tmp_path, **real) == {name: out for name, (_, out) in IDIOMS.items()}
