"""Nothing heavy is imported that a config does not use."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import lehr_trainer.config_parts as parts

OPTIONAL = "('bitsandbytes', 'torchao', 'liger_kernel', 'cut_cross_entropy', 'transformer_engine')"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_part_of_the_config_is_free_of_torch() -> None:
    names = [f"lehr_trainer.config_parts.{m.name}" for m in pkgutil.iter_modules(parts.__path__)]
    assert len(names) > 5
    modules = [*names, "lehr_trainer.compile_turn", "lehr_trainer.trace_summary"]
    assert run(f"import sys, {', '.join(modules)}; print('torch' in sys.modules)") == "False"


def test_no_technique_imports_an_optional_package_before_it_is_chosen() -> None:
    modules = [
        "losses_variants", "optim.eight_bit", "optim.muon", "models.fp8", "models.attention",
        "diagnostics", "profiling", "compiling", "updates", "export",
    ]  # fmt: skip
    imports = ", ".join(f"lehr_trainer.{m}" for m in modules)
    code = f"import sys, {imports}; print([m for m in {OPTIONAL} if m in sys.modules])"
    assert run(code) == "[]"
