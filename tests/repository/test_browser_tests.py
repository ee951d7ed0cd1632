"""What tests in the browser ask of a page is something that its content security policy allows."""

from __future__ import annotations

import ast

from lehr_testing.paths import ROOT


def test_expressions_to_wait_for_are_functions() -> None:
    """A page may not `eval`: another expression works if it is true at once, and fails if not."""
    wrong = [
        f"{path.name}:{call.lineno}"
        for path in (ROOT / "tests/browser").glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "wait_for_function"
        and not isinstance(call.args[0], ast.Name)
        and "=>" not in ast.unparse(call.args[0])
    ]
    assert wrong == []
