"""The house keeps its order: rooms of tests are rooms of the package, and no test module leans on another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support import REPOSITORY

TESTS = sorted((REPOSITORY / "tests").rglob("*.py"))
PACKAGE = REPOSITORY / "pyspark_ledger"


def imported(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


@pytest.mark.parametrize("file", TESTS, ids=lambda file: str(file.relative_to(REPOSITORY)))
def test_no_test_module_imports_another(file):
    assert [name for name in imported(file) if name.rpartition(".")[2].startswith("test_")] == []


def test_every_test_is_in_the_room_of_what_it_tests():
    rooms = {folder.name for folder in PACKAGE.iterdir() if folder.is_dir()} | {"house"}
    tests = [file for file in TESTS if file.name.startswith("test_")]
    assert [str(file) for file in tests if file.parent.name not in rooms or file.parent.parent.name != "tests"] == []
    assert [file.name for file in (REPOSITORY / "tests").glob("*.py")] == ["conftest.py"]


def test_nothing_but_the_public_face_lies_in_the_root_of_the_package():
    assert sorted(file.stem for file in PACKAGE.glob("*.py")) == ["__init__", "client", "errors", "spark"]


def test_every_room_says_what_it_is_for():
    for folder in PACKAGE.iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder.name
