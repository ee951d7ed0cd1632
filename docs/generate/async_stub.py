"""Generate ``lehr/client/async_client.pyi``: the asynchronous types, from the synchronous ones.

A class there has the members that ``async_client.py`` defines, and those of the synchronous
class that it wraps: methods as coroutines, iterators as asynchronous ones.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import subprocess
import sys
from types import ModuleType
from typing import TypeVar

from lehr.client import (
    access,
    async_client,
    client,
    cluster,
    comparisons,
    maintenance,
    quotas,
    rollouts,
    run_checkpoints,
    run_logs,
    run_metrics,
    run_state,
    runs,
    secrets,
    server_object,
    sweeps,
)

_MODULES = (
    *(async_client, access, secrets, quotas, maintenance, cluster, client),
    *(
        comparisons,
        rollouts,
        server_object,
        run_state,
        run_metrics,
        run_logs,
        run_checkpoints,
        runs,
        sweeps,
    ),
)
_FACES = {kind.__name__: face for kind, face in async_client._FACES.items()}  # noqa: SLF001
Function = TypeVar("Function", ast.FunctionDef, ast.AsyncFunctionDef)
_HEADER = '''"""Types of the asynchronous client, made by ``python docs/generate``."""

'''


def stub() -> str:
    classes = [node for node in _tree(async_client).body if _is_face(node)]
    made = [_class(node) for node in classes]
    text = (
        _HEADER
        + "\n".join(
            [*_imports(made), *(ast.unparse(ast.fix_missing_locations(one)) for one in made)]
        )
        + "\n"
    )
    options = ["check", "--quiet", "--fix-only", "--select=I", "--stdin-filename=async_client.pyi"]
    return _ruff(["format", "--stdin-filename=async_client.pyi"], _ruff(options, text))


def _ruff(options: list[str], text: str) -> str:
    command = [sys.executable, "-m", "ruff", *options, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _is_face(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and node.name.startswith("Async")


def _class(node: ast.ClassDef) -> ast.ClassDef:
    given = {one.arg: one.value for one in node.keywords}
    own = [
        _empty(one) for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    names = {one.name for one in own} | {"__init_subclass__"}
    taken = []
    sources = [given["of"].id] if "of" in given and given["of"].id != "object" else []
    only = [one.targets[0].id for one in node.body if isinstance(one, ast.Assign)]
    sources += ["Comparison"] if only else []
    fetched = ast.literal_eval(given["fetched"]) if "fetched" in given else ()
    for source in sources:
        for one in _members(_source(source)):
            if not isinstance(one, ast.FunctionDef) or one.name.startswith("_"):
                continue
            if one.name not in names and (not only or one.name in only):
                names.add(one.name)  # Parts may share a base: its members come once.
                taken.append(_member(one, fetched=one.name in fetched))
    own = [one for one in own if one.name != "__init_subclass__"]
    return ast.ClassDef(
        name=node.name,
        bases=node.bases,
        keywords=[],
        body=[node.body[0], *own, *taken],
        decorator_list=[],
        type_params=[],
    )


def _members(node: ast.ClassDef) -> list[ast.stmt]:
    """Return the members of a class, and before them those of parts of the client."""
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    parts = [base.id for base in bases if isinstance(base, ast.Name)]
    inherited = [_members(_source(name)) for name in parts if name.endswith("Methods")]
    return [*(one for members in inherited for one in members), *node.body]


def _source(name: str) -> ast.ClassDef:
    for module in _MODULES[1:]:
        for node in _tree(module).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
    raise LookupError(name)


def _member(node: ast.FunctionDef, *, fetched: bool) -> ast.FunctionDef | ast.AsyncFunctionDef:
    made = _empty(node)
    answer = ast.unparse(made.returns)
    if made.decorator_list and not fetched:
        return made
    if answer.startswith("Iterator["):
        made.returns = ast.parse(f"Async{answer}", mode="eval").body
        return made
    made.returns = _Faces().visit(made.returns)
    made.decorator_list = []
    return ast.AsyncFunctionDef(**{name: getattr(made, name) for name in made._fields})


class _Faces(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Name:
        face = _FACES.get(node.id)
        return ast.Name(face.__name__) if face else node


def _empty(node: Function) -> Function:
    """Return the function without its body; a cached property becomes a property."""
    node.body = [*node.body[: ast.get_docstring(node) is not None], ast.Expr(ast.Constant(...))]
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Name):
            decorator.id = decorator.id.replace("cached_property", "property")
    return node


def _imports(classes: list[ast.ClassDef]) -> list[str]:
    """Return an import line for each name that the classes use."""
    used = {one.id for tree in classes for one in ast.walk(tree) if isinstance(one, ast.Name)}
    used -= {*dir(builtins), *(one.name for one in classes)}
    known = {"AsyncIterator": "from collections.abc import AsyncIterator"}
    for module in _MODULES:
        for node in ast.walk(_tree(module)):
            if isinstance(node, ast.ImportFrom):
                for one in node.names:
                    known[one.asname or one.name] = f"from {node.module} import {one.name}"
            elif isinstance(node, ast.Import):
                for one in node.names:
                    alias = f" as {one.asname}" if one.asname else ""
                    known[one.asname or one.name] = f"import {one.name}{alias}"
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                known.setdefault(name, f"from {module.__name__} import {name}")
    return sorted(known[name] for name in used)
