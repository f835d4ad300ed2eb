"""What the source must not have: forms that pass every review, and that no test but this one finds in time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

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
