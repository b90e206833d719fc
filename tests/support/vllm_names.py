"""Which names of vLLM's objects the plugin's source reads, writes or imports: found in its syntax, without vLLM.

The plugin annotates what is vLLM's as `Any`, and what is ours with its class. So an object is vLLM's if it has that
annotation, or was got from such an object: by an attribute, a call, an index, a loop or an assignment.
"""

from __future__ import annotations

import ast
import builtins
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Final, TypeGuard

#: What Python itself gives to objects, whoever's they are.
_PYTHON: Final = frozenset(
    name
    for kind in (object, str, bytes, int, float, list, tuple, dict, set, deque, type, Exception, FunctionType, Enum)
    for name in dir(kind)
) | {"name", "value", "__mro__", "__wrapped__", *dir(TracebackType)}
_HOLDING: Final = frozenset(
    (
        *("list", "dict", "tuple", "set", "frozenset", "type", "deque", "defaultdict", "WeakKeyDictionary"),
        *("Iterable", "Iterator", "Sequence", "Collection", "Mapping", "MutableMapping"),
        *("Callable", "Awaitable", "Final"),
    )
)
_LOOKS: Final = ("getattr", "hasattr", "setattr")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Names:
    """What a file uses of vLLM: names of attributes, and whole names of what it imports, each with its line."""

    attributes: dict[str, int] = field(default_factory=dict)
    imports: dict[str, int] = field(default_factory=dict)
    unclear: list[int] = field(default_factory=list)
    """Lines with a look at an attribute whose name could not be made out."""


def used_names(folder: Path) -> dict[str, Names]:
    """What each file of the plugin uses, by file name."""
    trees = {path.name: ast.parse(path.read_text()) for path in sorted(folder.glob("*.py"))}
    given = {
        name: {node.name for node in ast.walk(tree) if isinstance(node, _Function) and _says_any(node.returns)}
        for name, tree in trees.items()
    }
    elsewhere = {method for methods in given.values() for method in methods - _PYTHON if not method.startswith("_")}
    return {name: _File(tree, frozenset(elsewhere | given[name])).names for name, tree in trees.items()}


def _says_any(annotation: ast.expr | None) -> bool:
    """Whether an annotation is `Any`, or of something of Python's that holds or gives such; `Ours[Any]` is ours."""
    match annotation:
        case ast.Name():
            return annotation.id == "Any"
        case ast.Subscript(value=ast.Name() as kind):
            return kind.id in _HOLDING and _says_any(annotation.slice)
        case ast.BinOp() | ast.Tuple() | ast.List():
            return any(map(_says_any, ast.iter_child_nodes(annotation)))  # type: ignore[arg-type] # operators say nothing
    return False


class _File:
    """One file. `giving`: our functions and properties that return what is vLLM's."""

    def __init__(self, tree: ast.Module, giving: frozenset[str]) -> None:
        self._giving = giving
        self._constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        self._fields: set[str] = set()
        self.names = Names()
        # What an attribute of `self` holds may be known from a method further down.
        for _ in range(3):
            self.names = Names()
            self._read(tree, {})

    def _read(self, scope: ast.AST, outer: dict[str, bool]) -> None:
        """Read one function, class or module, and what is in it."""
        known = dict(outer)
        if isinstance(scope, _Function | ast.Lambda):
            every = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
            known.update((argument.arg, _says_any(argument.annotation)) for argument in every)
        body = list(_own(scope))
        for _ in range(3):
            for node in body:
                self._bind(node, known)
        for node in body:
            self._look(node, known, body)
        for node in body:
            if isinstance(node, _Function | ast.ClassDef | ast.Lambda):
                self._read(node, known)

    def _bind(self, node: ast.AST, known: dict[str, bool]) -> None:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            known.update((alias.asname or alias.name, True) for alias in node.names)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value, known)
        elif isinstance(node, ast.AnnAssign):
            self._name(node.target, _says_any(node.annotation), known)
        elif isinstance(node, ast.NamedExpr):
            self._name(node.target, self._is_theirs(node.value, known), known)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            self._name(node.target, self._is_theirs(node.iter, known), known)

    def _assign(self, target: ast.expr, value: ast.expr, known: dict[str, bool]) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for each, its in zip(target.elts, value.elts, strict=True):
                self._assign(each, its, known)
        else:
            self._name(target, self._is_theirs(value, known), known)

    def _name(self, target: ast.expr, theirs: bool, known: dict[str, bool]) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._name(element, theirs, known)
        elif isinstance(target, ast.Name) and theirs:
            known[target.id] = True
        elif isinstance(target, ast.Attribute) and _is_self(target.value) and theirs:
            self._fields.add(target.attr)

    def _is_theirs(self, node: ast.expr, known: dict[str, bool]) -> bool:
        """Whether what an expression comes to is vLLM's."""
        if isinstance(node, ast.Name):
            return known.get(node.id, False)
        if isinstance(node, ast.Attribute):
            return self._is_their_attribute(node, known)
        if isinstance(node, ast.Call):
            return self._is_from_their_call(node, known)
        return any(self._is_theirs(part, known) for part in _sources(node))

    def _is_their_attribute(self, node: ast.Attribute, known: dict[str, bool]) -> bool:
        if _is_ours(node.attr):
            return False
        if _is_self(node.value) and not known.get("self", False):
            return node.attr in self._fields or node.attr in self._giving
        return node.attr in self._giving or self._is_theirs(node.value, known)

    def _is_from_their_call(self, node: ast.Call, known: dict[str, bool]) -> bool:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        gives_theirs = any(self._is_theirs(each, known) for each in given)
        if _is_look(node):
            return gives_theirs and not all(map(_is_ours, self._said(node.args[1], [])))
        if isinstance(node.func, ast.Name):
            # Python's own functions give back what they are given, or what is in it.
            return node.func.id in self._giving or (gives_theirs and hasattr(builtins, node.func.id))
        return self._is_theirs(node.func, known) or (gives_theirs and _is_of_a_module(node.func))

    def _look(self, node: ast.AST, known: dict[str, bool], body: list[ast.AST]) -> None:
        """Note what one expression or statement uses."""
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            for alias in node.names:
                self.names.imports.setdefault(f"{node.module}.{alias.name}", node.lineno)
        elif isinstance(node, ast.Attribute) and self._is_theirs(node.value, known):
            self._note(node.attr, node.lineno)
        elif _is_look(node) and self._is_theirs(node.args[0], known):
            names = list(self._said(node.args[1], body))
            for name in names:
                self._note(name, node.lineno)
            if not names:
                self.names.unclear.append(node.lineno)

    def _note(self, name: str, line: int) -> None:
        if name not in _PYTHON and not _is_ours(name):
            self.names.attributes.setdefault(name, line)

    def _said(self, node: ast.expr, body: list[ast.AST]) -> Iterator[str]:
        """The names that an expression may come to: a text, a constant, or what is looped over."""
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.Name() if node.id in self._constants:
                yield from self._said(self._constants[node.id], body)
            case ast.Name():
                for value in _values(node.id, body):
                    yield from self._said(value, body)
            case _:
                for part in _parts(node):
                    yield from self._said(part, body)


def _values(name: str, body: list[ast.AST]) -> Iterator[ast.expr]:
    """What a name is given in a scope, or what it runs through."""
    for node in body:
        if isinstance(node, ast.For | ast.comprehension) and name in _first(node.target):
            yield node.iter
        elif isinstance(node, ast.Assign) and name in map(_of_name, node.targets):
            yield node.value


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Where the names in an expression are: of rows and of mappings, what is first."""
    match node:
        case ast.Tuple() | ast.List():
            yield from (each.elts[0] if isinstance(each, ast.Tuple) else each for each in node.elts)
        case ast.Dict():
            yield from filter(None, node.keys)
        case ast.Call(func=ast.Attribute(value=ast.Name() as mapping)):
            yield mapping
        case ast.IfExp():
            yield from (node.body, node.orelse)


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Everything in a scope, but not in functions and classes within it; these come as themselves."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, _Function | ast.ClassDef | ast.Lambda):
            yield from _own(node)


def _sources(node: ast.expr) -> Iterator[ast.expr]:
    """The parts of an expression that its value is, or is made of."""
    match node:
        case ast.Subscript() | ast.Starred() | ast.Await() | ast.NamedExpr() | ast.DictComp():
            yield node.value
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            yield node.elt
        case ast.IfExp():
            yield from (node.body, node.orelse)
        case ast.BoolOp():
            yield from node.values
        case ast.Tuple() | ast.List() | ast.Set():
            yield from node.elts


def _is_ours(name: str) -> bool:
    """Whether we put it there."""
    return name.strip("_").startswith("flyball")


def _is_look(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether it asks for an attribute by its name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LOOKS


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_of_a_module(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"copy", "itertools"}
    )


def _first(target: ast.expr) -> list[str | None]:
    return [_of_name(target.elts[0] if isinstance(target, ast.Tuple) else target)]


def _of_name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None
