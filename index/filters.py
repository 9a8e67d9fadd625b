"""The filter language: parse it to a typed tree, and the tree to SQL with bound parameters.

    type = 'pdf' and (year >= 2020 or tags contains 'wing') and not path contains 'draft'

A comparison is true of a source when the field is there and compares; a missing field is true of
none, also not of `!=`. Texts compare with texts, numbers with numbers. `not` turns what it is
applied to into its opposite, so `not (year = 2020)` holds where there is no year. A list matches
when any element does (`!=`: when it has elements and none is equal). `contains` ignores case: in
a text it looks for a part, in a list for an element. A date literal stands for its whole day or
month.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

from foveate.pipeline.errors import QueryError
from foveate.pipeline.types import MODALITIES

Value: TypeAlias = str | float | bool
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "in", "contains"]
Sql: TypeAlias = tuple[str, list[object]]

MAX_CHARS = 10_000
MAX_DEPTH = 60
MAX_LIST = 500
BUILT_IN = (
    "modality", "type", "path", "name", "page", "size", "modified", "language", "title", "year",
)  # fmt: skip
PASSAGE_FIELDS = frozenset({"modality", "page"})
_TEXT = frozenset({"modality", "type", "path", "name", "language", "title"})
_DATE = re.compile(r"^(\d{4})-(\d{2})(?:-(\d{2}))?$")
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
    |(?P<operator><=|>=|!=|<>|==|=|<|>)
    |(?P<mark>[(),])
    |(?P<word>[^\W\d][\w\-]*(?:\.[\w\-]+)*\.?)
    )""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """field: a built-in's name or a metadata field's. is_meta: it was written `meta.field`."""

    field: str
    operator: Operator
    values: tuple[Value, ...]
    is_meta: bool = False

    @property
    def is_built_in(self) -> bool:
        return not self.is_meta and self.field in BUILT_IN


@dataclass(frozen=True, slots=True)
class Both:
    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Filter


Filter: TypeAlias = Comparison | Both | Either | Not


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


def parse(text: str) -> Filter:
    """Parse a filter.

    Raises:
        QueryError: it can't be read; the message names the position and what was expected.
    """
    if len(text) > MAX_CHARS:
        raise QueryError(f"the filter has {len(text)} characters, more than {MAX_CHARS}")
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._split())
        self.at = 0
        self.depth = 0

    def _split(self) -> list[_Token]:
        tokens, position = [], 0
        end = len(self.text.rstrip())
        while position < end:
            match = _TOKEN.match(self.text, position)
            if match is None or match.lastgroup is None:
                start = position + len(self.text[position:]) - len(self.text[position:].lstrip())
                char = self.text[start]
                why = "a quote that is not closed" if char in "'\"" else f"got {char!r}"
                raise self._error(start, why)
            kind = match.lastgroup
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            position = match.end()
        return tokens

    def _error(self, position: int, why: str) -> QueryError:
        return QueryError(
            f"cannot read the filter at character {position + 1}: {why}; "
            f"write for example type = 'pdf' and year >= 2020"
        )

    def _peek(self, *words: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at].text.lower() in words

    def _next(self, wanted: str) -> _Token:
        if self.at >= len(self.tokens):
            raise self._error(len(self.text), f"expected {wanted}, got the end")
        self.at += 1
        return self.tokens[self.at - 1]

    def _take(self, *words: str) -> bool:
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if token is None or token.kind == "string" or token.text.lower() not in words:
            return False
        self.at += 1
        return True

    def parse(self) -> Filter:
        found = self._either()
        if self.at < len(self.tokens):
            token = self.tokens[self.at]
            raise self._error(token.position, f"expected and, or, or the end, got {token.text!r}")
        return found

    def _either(self) -> Filter:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise QueryError(f"the filter is nested more than {MAX_DEPTH} deep")
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _both(self) -> Filter:
        parts = [self._not()]
        while self._take("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _not(self) -> Filter:
        if self._take("not"):
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise QueryError(f"the filter is nested more than {MAX_DEPTH} deep")
            part = self._not()
            self.depth -= 1
            return Not(part)
        if self._take("("):
            found = self._either()
            if not self._take(")"):
                raise self._error(self._position(), "expected ) to close a parenthesis")
            return found
        return self._comparison()

    def _position(self) -> int:
        return self.tokens[self.at].position if self.at < len(self.tokens) else len(self.text)

    def _comparison(self) -> Filter:
        token = self._next("a field's name")
        if token.kind != "word" or token.text.lower() in ("and", "or", "in", "contains"):
            raise self._error(token.position, f"expected a field's name, got {token.text!r}")
        field, is_meta = token.text, False
        if field == "meta." and self.at < len(self.tokens):
            field, is_meta = _unquote(self._next("a field's name").text), True
        elif field.startswith("meta."):
            field, is_meta = field[5:], True
        operator = self._operator(field)
        values: tuple[Value, ...]
        values = self._list() if operator == "in" else (self._value(),)
        found = Comparison(field, operator, values, is_meta)
        _check(found, lambda why: self._error(token.position, why))
        return found

    def _operator(self, field: str) -> Operator:
        token = self._next(f"an operator after {field!r}")
        text = {"==": "=", "<>": "!="}.get(token.text, token.text.lower())
        if token.kind == "operator" or (token.kind == "word" and text in ("in", "contains")):
            return text  # type: ignore[return-value]
        known = "=, !=, <, <=, >, >=, in, contains"
        raise self._error(token.position, f"expected one of {known}, got {token.text!r}")

    def _list(self) -> tuple[Value, ...]:
        if not self._take("("):
            raise self._error(self._position(), "expected ( after in")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        if not self._take(")"):
            raise self._error(self._position(), "expected , or ) in a list")
        if len(values) > MAX_LIST:
            raise QueryError(f"a list of {len(values)} values is longer than {MAX_LIST}")
        return tuple(values)

    def _value(self) -> Value:
        token = self._next("a value")
        if token.kind == "string":
            return _unquote(token.text)
        if token.kind == "number":
            return float(token.text)
        if token.kind == "word" and token.text.lower() in ("true", "false"):
            return token.text.lower() == "true"
        raise self._error(token.position, f"expected a number or a quoted text, got {token.text!r}")


def _unquote(text: str) -> str:
    if text[:1] not in ("'", '"'):
        return text
    quote, inner = text[0], text[1:-1]
    inner = re.sub(rf"\\(.)|{quote}{quote}", lambda m: m[1] or quote, inner, flags=re.DOTALL)
    return inner.encode("utf-8", "replace").decode("utf-8")


def _check(found: Comparison, error: Callable[[str], QueryError]) -> None:
    """Refuse what can't be true of a built-in field, rather than finding nothing."""
    if not found.is_built_in:
        if found.operator in ("<", "<=", ">", ">=") and isinstance(found.values[0], bool):
            raise error("true and false have no order")
        return
    name = found.field
    for value in found.values:
        if name in _TEXT and not isinstance(value, str):
            raise error(f"{name} is a text: put the value in quotes")
        if name in ("page", "size", "year") and (isinstance(value, str | bool)):
            raise error(f"{name} is a number: write it without quotes")
        if name == "modality" and found.operator in ("=", "!=", "in") and value not in MODALITIES:
            raise error(f"modality is one of {', '.join(MODALITIES)}, got {value!r}")
        if name == "modified":
            if isinstance(value, bool):
                raise error("modified is a date such as '2024-05-31'")
            if isinstance(value, str):
                try:
                    _moment(value)
                except ValueError:
                    raise error(f"modified is a date such as '2024-05-31', got {value!r}") from None
    if found.operator == "contains" and name not in _TEXT:
        raise error(f"contains looks into texts and lists, and {name} is neither")


def _moment(text: str) -> tuple[float, float]:
    """Return [start, end) in POSIX seconds of a year, month, day or instant; UTC if unstated."""
    text = text.strip()
    if re.fullmatch(r"\d{4}", text):
        start = datetime(int(text), 1, 1, tzinfo=UTC)
        return start.timestamp(), start.replace(year=start.year + 1).timestamp()
    if match := _DATE.match(text):
        start = datetime(int(match[1]), int(match[2]), int(match[3] or 1), tzinfo=UTC)
        end = start + timedelta(days=1)
        if match[3] is None:
            end = (start + timedelta(days=32)).replace(day=1)
        return start.timestamp(), end.timestamp()
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return found.timestamp(), found.timestamp()


def uses_passages(tree: Filter) -> bool:
    """Tell whether the filter looks at a passage's own fields: modality or page."""
    if isinstance(tree, Comparison):
        return tree.is_built_in and tree.field in PASSAGE_FIELDS
    if isinstance(tree, Not):
        return uses_passages(tree.part)
    return any(map(uses_passages, tree.parts))


def metadata_fields(tree: Filter) -> list[str]:
    """Return the names of the metadata fields that a filter compares, each once, as they stand."""
    if isinstance(tree, Comparison):
        return [] if tree.is_built_in else [tree.field]
    parts = (tree.part,) if isinstance(tree, Not) else tree.parts
    return list(dict.fromkeys(name for part in parts for name in metadata_fields(part)))


def to_sql(tree: Filter) -> Sql:
    """Return a condition over `sources s` (and `passages p` where `uses_passages`), never NULL."""
    if isinstance(tree, Not):
        sql, bound = to_sql(tree.part)
        return f"NOT ({sql})", bound
    if isinstance(tree, Both | Either):
        return _joined(list(map(to_sql, tree.parts)), "AND" if isinstance(tree, Both) else "OR")
    return _built_in(tree) if tree.is_built_in else _metadata(tree)


def _joined(parts: list[Sql], word: str) -> Sql:
    # halves of halves: SQLite limits the depth of an expression, which a chain would reach
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    (left, bound), (right, more) = _joined(parts[:half], word), _joined(parts[half:], word)
    return f"({left} {word} {right})", [*bound, *more]


def _built_in(c: Comparison) -> Sql:
    if c.field in ("path", "name"):
        test, bound = _texts(f"f.{c.field}", c, None)
        inside = "SELECT h.source FROM holdings h JOIN files f ON f.row = h.file WHERE " + (
            test if c.operator != "!=" else f"f.{c.field} = ?"
        )
        return f"s.row {'NOT ' if c.operator == '!=' else ''}IN ({inside})", bound
    if c.field == "modality":
        return _modality(c)
    column = f"p.{c.field}" if c.field in PASSAGE_FIELDS else f"s.{c.field}"
    if c.field == "modified":
        tests = [_moments(column, c.operator, v) for v in c.values]
        sql = " OR ".join(t for t, _ in tests)
        return f"({sql})", [v for _, bound in tests for v in bound]
    if c.field in _TEXT:
        test, bound = _texts(column, c, None)
    else:
        test, bound = _plain(column, c.operator, list(c.values))
    return f"({column} IS NOT NULL AND {test})", bound


def _modality(c: Comparison) -> Sql:
    value = c.values[0]
    tests: dict[str, Callable[[Any], bool]] = {
        "=": lambda m: m == value,
        "!=": lambda m: m != value,
        "<": lambda m: m < value,
        "<=": lambda m: m <= value,
        ">": lambda m: m > value,
        ">=": lambda m: m >= value,
        "in": lambda m: m in c.values,
        "contains": lambda m: str(value).casefold() in m,
    }
    codes = [i for i, m in enumerate(MODALITIES) if tests[c.operator](m)]
    return f"p.modality IN ({','.join(map(str, codes))})", []


def _plain(column: str, operator: Operator, values: list[object]) -> Sql:
    if operator == "in":
        return f"{column} IN ({','.join('?' * len(values))})", values
    return f"{column} {operator} ?", values


def _texts(column: str, c: Comparison, folded: str | None) -> Sql:
    if c.operator == "contains":
        needle = str(c.values[0]).casefold()
        return f"instr({folded or f'fold({column})'}, ?) > 0", [needle]
    return _plain(column, c.operator, list(c.values))


def _moments(column: str, operator: Operator, value: Value) -> Sql:
    start, end = _moment(value) if isinstance(value, str) else (float(value), float(value))
    if operator in ("=", "in", "!="):
        exact = f"{column} = ?" if start == end else f"({column} >= ? AND {column} < ?)"
        bound: list[object] = [start] if start == end else [start, end]
        return (f"NOT ({exact})" if operator == "!=" else exact), bound
    if start == end:
        return f"{column} {operator} ?", [start]
    edge = {"<": ("<", start), "<=": ("<", end), ">": (">=", end), ">=": (">=", start)}[operator]
    return f"{column} {edge[0]} ?", [edge[1]]


def _metadata(c: Comparison) -> Sql:
    if c.operator == "contains":
        return _contains(c)
    if c.operator == "!=":
        sql, bound = _metadata(Comparison(c.field, "=", c.values, True))
        # one half for each of the two indexes
        there = (
            "s.row IN (SELECT source FROM fields WHERE name = ? AND text IS NOT NULL UNION ALL "
            "SELECT source FROM fields WHERE name = ? AND number IS NOT NULL)"
        )
        return f"({there} AND NOT ({sql}))", [c.field, c.field, *bound]
    tests, bound = [], []
    for value in c.values:
        test, values = _field_test(c.operator, value)
        tests.append(f"s.row IN (SELECT source FROM fields WHERE name = ? AND {test})")
        bound += [c.field, *values]
    return "(" + " OR ".join(tests) + ")", bound


def _field_test(operator: Operator, value: Value) -> Sql:
    sign = "=" if operator == "in" else operator
    if isinstance(value, bool):
        return f"kind = 'b' AND number {sign} ?", [float(value)]
    if isinstance(value, int | float):
        return f"kind = 'n' AND number {sign} ?", [float(value)]
    if not _DATE.match(value):
        return f"kind = 's' AND text {sign} ?", [value]
    # any instant of that day or month begins with it
    after = value + "\U0010ffff"
    if sign == "=":
        return "kind = 's' AND text >= ? AND text < ?", [value, after]
    edge = {"<": ("<", value), "<=": ("<", after), ">": (">=", after), ">=": (">=", value)}[sign]
    return f"kind = 's' AND text {edge[0]} ?", [edge[1]]


def _contains(c: Comparison) -> Sql:
    value = c.values[0]
    select = "s.row IN (SELECT source FROM fields WHERE name = ? AND"
    if isinstance(value, str):
        needle = value.casefold()
        return (
            f"({select} text IS NOT NULL AND CASE element WHEN 1 THEN coalesce(folded, text) = ? "
            "ELSE instr(coalesce(folded, text), ?) > 0 END))",
            [c.field, needle, needle],
        )
    kind = "b" if isinstance(value, bool) else "n"
    return (
        f"({select} kind = '{kind}' AND element = 1 AND number = ?))",
        [c.field, float(value)],
    )
