"""``import wandb`` in a program that Lehr runs: the shape of wandb over ``lehr_log``.

This folder's parent is on the import path of such programs only. ``trainer.wandb: records`` in the
spec keeps the real package.
"""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import lehr_log.wandb


class _Submodule(ModuleType):
    """A module of wandb, such as ``wandb.sdk.lib``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(lehr_log.wandb, name)


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find every module of wandb: frameworks import classes from several of them."""

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Submodule(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


lehr_log.wandb.__path__ = __path__
sys.meta_path.insert(0, _Submodules())
sys.modules[__name__] = lehr_log.wandb
