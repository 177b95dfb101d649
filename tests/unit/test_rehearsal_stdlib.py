"""The package stands alone: standard library and itself, on every Python a GPU host may have."""

import ast
import sys
from pathlib import Path

import specd.rehearsal

PACKAGE = Path(specd.rehearsal.__file__).parent


def test_imports_nothing_but_the_standard_library() -> None:
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 9))):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= sys.stdlib_module_names, path
            elif isinstance(node, ast.ImportFrom):
                is_own = node.level == 1
                assert is_own or str(node.module).split(".")[0] in sys.stdlib_module_names, path


def test_annotations_are_never_evaluated() -> None:
    for path in PACKAGE.glob("*.py"):
        if path.name != "__init__.py":
            assert "from __future__ import annotations" in path.read_text(), path
