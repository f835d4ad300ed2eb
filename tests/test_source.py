"""What the source must not have: forms that pass every review, and that no test but this one finds in time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import ROOT


def across_a_wait(tree: ast.Module) -> Iterator[str]:
    """Find attributes that are read, then set to what comes of it after a wait: what was set meanwhile is lost."""
    for node in ast.walk(tree):
        targets: list[ast.expr]
        match node:
            case ast.AugAssign():
                targets, read = [node.target], [ast.unparse(node.target)]
            case ast.Assign():
                awaited = {part for one in ast.walk(node.value) if isinstance(one, ast.Await) for part in ast.walk(one)}
                outside = (one for one in ast.walk(node.value) if one not in awaited)
                targets, read = node.targets, [ast.unparse(one) for one in outside if isinstance(one, ast.Attribute)]
            case _:
                continue
        waits = any(isinstance(one, ast.Await) for one in ast.walk(node.value))
        if waits and any(isinstance(one, ast.Attribute) and ast.unparse(one) in read for one in targets):
            yield ast.unparse(node)


@pytest.mark.parametrize("text", ["self.ever = self.ever or await has()", "self.x += await count()"])
def test_what_is_lost_across_a_wait_is_found(text: str) -> None:
    assert list(across_a_wait(ast.parse(text))) == [text]


@pytest.mark.parametrize("text", ["self.x = await self.x.next()", "x += await count()", "self.x = self.y + await z()"])
def test_what_is_not_lost_is_not_found(text: str) -> None:
    assert list(across_a_wait(ast.parse(text))) == []


def test_no_attribute_is_set_across_a_wait() -> None:
    files = sorted((ROOT / "proxy").rglob("*.py"))
    assert files
    assert [(file.name, found) for file in files for found in across_a_wait(ast.parse(file.read_text("utf-8")))] == []


# Sizes of classes.

MOST_ATTRIBUTES = 15
MOST_METHODS = 35


def size_of(one: ast.ClassDef) -> tuple[int, int]:
    """Count the attributes of a class, fields and all that its methods set; and its methods, properties included."""
    attributes = {node.target.id for node in one.body
                  if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}  # fmt: skip
    attributes.update(
        node.attr
        for node in ast.walk(one)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    )
    return len(attributes), sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in one.body)


def test_sizes_are_counted() -> None:
    text = "class A:\n x: int\n def f(self): self.y, self.z = self.w = 1, 2; self.x += v.u\n async def g(self): pass"
    assert size_of(next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))) == (4, 2)


def test_no_class_is_large() -> None:
    """A class above the limits does too many things: give it a part that has a name and a purpose of its own."""
    sizes = {
        f"{file.relative_to(ROOT)}: {node.name}": size_of(node)
        for folder in ("session", "relay")
        for file in sorted((ROOT / "proxy" / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    assert {name: size for name, size in sizes.items() if size[0] > MOST_ATTRIBUTES or size[1] > MOST_METHODS} == {}


# Tests of modules.


def modules() -> list[Path]:
    return [path for path in sorted((ROOT / "proxy").rglob("*.py")) if path.name not in ("__init__.py", "__main__.py")]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_names_its_tests(path: Path) -> None:
    """In the second paragraph of its docstring: a file that there is."""
    paragraphs = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n\n")
    assert len(paragraphs) > 1
    named = re.fullmatch(r"Its tests: (tests/test_\w+\.py)\.", paragraphs[1])
    assert named
    assert (ROOT / named[1]).is_file()
