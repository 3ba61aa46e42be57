"""What a mutant may be: the small changes that can be made to a module, in the order in which they stand in it.

Left alone are annotations, decorators, docstrings, ``raise`` messages and what a class is declared with: a change there
is no behaviour, or fails on import.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
BUILTINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
LOOKUPS = frozenset({"get", "pop", "setdefault", "startswith", "endswith"})
Fields = tuple[str, ...]
# What is no behaviour of its own, by the node that has it.
SKIPPED: dict[type[ast.AST], Fields] = {
    ast.FunctionDef: ("returns", "decorator_list", "type_params"),
    ast.AsyncFunctionDef: ("returns", "decorator_list", "type_params"),
    ast.ClassDef: ("bases", "keywords", "decorator_list", "type_params"),
    ast.AnnAssign: ("annotation",),
    ast.arg: ("annotation",),
    ast.Raise: ("exc", "cause"),
}


@dataclass(frozen=True)
class Site:
    """One mutant: where it is, what it does, and how it is done to the tree that it was found in.

    ``first`` and ``last`` are the lines whose tests judge it; ``inside`` says that it changes nothing but the body of
    a function, so that the code of a living function can be exchanged for it.
    """

    line: int
    first: int
    last: int
    label: str
    inside: bool
    apply: Callable[[], None]


def sites(tree: ast.Module) -> Iterator[Site]:
    """All mutants of a module."""
    yield from _Walk().children(tree, tree, inside=False)


class _Walk:
    """Goes through a tree; ``statement`` is the innermost statement or head of one."""

    def __init__(self) -> None:
        self.first = self.last = 1

    def children(self, node: ast.AST, _: ast.AST, *, inside: bool) -> Iterator[Site]:
        skipped = next((names for kind, names in SKIPPED.items() if isinstance(node, kind)), ())
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for field, value in ast.iter_fields(node):
            if field in skipped:
                continue
            within = inside or (function and field == "body")
            for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.AST):
                    yield from self._child(node, field, at, child, inside=within)

    def _child(self, node: ast.AST, field: str, at: int | None, child: ast.AST, *, inside: bool) -> Iterator[Site]:
        before = self.first, self.last
        if isinstance(child, ast.stmt):
            head = child.body[0].lineno - 1 if isinstance(getattr(child, "body", None), list) else child.end_lineno
            self.first, self.last = child.lineno, max(child.lineno, head or child.lineno)
        for label, new in _changes(child, node, field):
            apply = _replace(node, field, at, new)
            line = getattr(child, "lineno", self.first)
            yield Site(line, self.first, self.last, label, inside, apply)
        yield from self.children(child, node, inside=inside)
        self.first, self.last = before


def _replace(node: ast.AST, field: str, at: int | None, new: ast.AST | None) -> Callable[[], None]:
    def apply() -> None:
        if at is None:
            setattr(node, field, new)
        elif new is None:
            del getattr(node, field)[at]
        else:
            getattr(node, field)[at] = new

    return apply


Changes = Iterator[tuple[str, ast.AST | None]]


def _changes(node: ast.AST, parent: ast.AST, field: str) -> Changes:
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            new = copy.copy(node)
            new.ops = [*node.ops]
            new.ops[at] = COMPARISONS[type(op)]()
            yield _told(node, new)
    elif isinstance(node, ast.BoolOp):
        other = copy.copy(node)
        other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield _told(node, other)
        for at in range(len(node.values)):
            left = [value for place, value in enumerate(node.values) if place != at]
            fewer = copy.copy(node)
            fewer.values = left
            yield _told(node, left[0] if len(left) == 1 else fewer)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _told(node, node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_type(node):
        new = copy.copy(node)
        new.op = ARITHMETIC[type(node.op)]()
        yield _told(node, new)
    elif isinstance(node, ast.IfExp):
        new = copy.copy(node)
        new.body, new.orelse = node.orelse, node.body
        yield _told(node, new)
    elif isinstance(node, ast.Constant):
        yield from _of_constant(node, parent, field)
    elif isinstance(node, ast.Slice):
        for name in ("lower", "upper"):
            if getattr(node, name) is not None:
                new = copy.copy(node)
                setattr(new, name, None)
                yield _told(node, new)
    elif isinstance(node, ast.Name) and node.id in BUILTINS and field == "func":
        yield _told(node, ast.Name(BUILTINS[node.id], node.ctx))
    elif isinstance(node, ast.comprehension) and node.ifs:
        new = copy.copy(node)
        new.ifs = node.ifs[:-1]
        yield f"without `if {ast.unparse(node.ifs[-1])}`", new
    if field == "test" and isinstance(parent, (ast.If, ast.While)) and isinstance(node, ast.expr):
        yield f"branches of `if {_short(node)}` swapped", ast.copy_location(ast.UnaryOp(ast.Not(), node), node)


def _of_statement(node: ast.stmt) -> Changes:
    dropped = isinstance(node, (ast.AugAssign, ast.Raise, ast.Delete, ast.Continue, ast.Break))
    dropped |= isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
    dropped |= isinstance(node, ast.Assign) and not isinstance(node.targets[0], (ast.Name, ast.Tuple))
    if dropped:
        yield f"without `{_short(node)}`", ast.Pass()
    if isinstance(node, ast.Continue):
        yield "`break` for `continue`", ast.Break()
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        new = copy.copy(node)
        new.op = ARITHMETIC[type(node.op)]()
        yield _told(node, new)
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield f"`return None` for `{_short(node)}`", ast.Return(ast.Constant(value=None))
        empty = _empty(node.value)
        if empty is not None:
            yield _told(node, ast.Return(empty))


def _of_constant(node: ast.Constant, parent: ast.AST, field: str) -> Changes:
    value = node.value
    if isinstance(value, bool):
        yield _told(node, ast.Constant(value=not value))
    elif isinstance(value, int):
        yield _told(node, ast.Constant(value=value + 1))
        yield _told(node, ast.Constant(value=value - 1))
    elif isinstance(value, (str, bytes)) and value and _is_key(parent, field):
        yield _told(node, ast.Constant(value=type(value)()))


def _is_key(parent: ast.AST, field: str) -> bool:
    """Whether a text there decides something, as a name, a member of a set, or what is compared."""
    if isinstance(parent, ast.Call):
        return field == "args" and isinstance(parent.func, ast.Attribute) and parent.func.attr in LOOKUPS
    if isinstance(parent, ast.Dict):
        return field == "keys"
    return isinstance(parent, (ast.Compare, ast.Set, ast.MatchValue)) or (
        isinstance(parent, ast.Subscript) and field == "slice"
    )


def _is_type(node: ast.expr) -> bool:
    """Whether it joins types: ``X | None``."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr) and _is_type(node.left) and _is_type(node.right)
    name = ast.unparse(node).rpartition("[")[0] or ast.unparse(node).rpartition(".")[2].lstrip("_")
    return name in {"None", "str", "int", "bytes", "bool"} or (name[:1].isupper() and not name.isupper())


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _empty(node: ast.expr) -> ast.expr | None:
    if isinstance(node, (ast.List, ast.ListComp)) and not (isinstance(node, ast.List) and not node.elts):
        return ast.List([], ast.Load())
    if isinstance(node, (ast.Dict, ast.DictComp)) and not (isinstance(node, ast.Dict) and not node.keys):
        return ast.Dict([], [])
    if isinstance(node, ast.JoinedStr):
        return ast.Constant(value="")
    return None


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else text[:87] + "..."


def _told(old: ast.AST, new: ast.AST) -> tuple[str, ast.AST]:
    return f"`{_short(new)}` for `{_short(old)}`", ast.copy_location(new, old)
