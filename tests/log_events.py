"""Which events the proxy can log, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LEVELS: Final = frozenset(("debug", "info", "warning", "error", "exception", "critical"))


def log_events(package: Path) -> dict[str, set[str]]:
    """Return event → levels at which it is logged, in all modules of a package.

    An event is logged in one of three forms: `log.warning("event")`; `Seldom(log.warning, "event")`; and `say("event")`
    after `say = log.debug if … else log.warning`.

    Raises:
        AssertionError: a module logs in another form.
    """
    events: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        for event, level in _of_module(ast.parse(path.read_text("utf-8")), path):
            events.setdefault(event, set()).add(level)
    return events


def _of_module(tree: ast.Module, path: Path) -> Iterator[tuple[str, str]]:
    constants: dict[str, ast.expr | None] = {}
    chosen: dict[str, set[str]] = {}
    seen: set[ast.Attribute] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            constants[node.target.id] = node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
            constants[name] = value
            if isinstance(value, ast.IfExp):
                branches = [branch for branch in (value.body, value.orelse) if isinstance(branch, ast.Attribute)]
                if levels := {branch.attr for branch in branches if _is_of_log(branch)}:
                    seen.update(branches)
                    chosen.setdefault(name, set()).update(levels)

    def event_of(expression: ast.expr) -> str:
        if isinstance(expression, ast.Name):
            expression = constants.get(expression.id) or expression
        assert isinstance(expression, ast.Constant), f"{path}: an event is not fixed: {ast.unparse(expression)}"
        assert isinstance(expression.value, str)
        return expression.value

    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Attribute) and _is_of_log(called):
            seen.add(called)
            yield event_of(node.args[0]), called.attr
        elif isinstance(called, ast.Name) and called.id in chosen:
            for level in chosen[called.id]:
                yield event_of(node.args[0]), level
        elif isinstance(called, ast.Name) and called.id == "Seldom":
            assert isinstance(node.args[0], ast.Attribute)
            seen.add(node.args[0])
            yield event_of(node.args[1]), node.args[0].attr
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_of_log(node):
            assert node in seen, f"{path}:{node.lineno}: logs in a form that this module does not read"


def _is_of_log(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "log" and node.attr in LEVELS
