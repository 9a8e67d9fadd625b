"""The filter language against an evaluator in plain Python, and what it says of mistakes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foveate.index import filters, reading
from foveate.index.filters import Both, Comparison, Either, Not
from foveate.pipeline.errors import QueryError

ROWS = [
    {"n": 1, "s": "alpha", "tags": ["red", "blue"], "flag": True},
    {"n": 2.5, "s": "Beta", "tags": [], "d": "2024-01-05"},
    {"n": -3, "s": 'it\'s "q"', "tags": ["infrared", 5], "d": "2024-01-31T10:00"},
    {"n": "1", "s": "ÄÖ groß", "deep": {"x": 7, "y": ["k"]}},
    {"s": "", "flag": False, "d": "2023-12-31"},
    {},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory, maker):
    from foveate.index.disk import DiskIndex

    path = tmp_path_factory.mktemp("filters") / "x.fov"
    with DiskIndex.create(path, towers=maker.towers, settings={}) as made:
        with made.writer() as w:
            for i, row in enumerate(ROWS):
                maker.put(w, f"/d{i % 2}/f{i}.txt", f"text {i}", metadata=row,
                          mtime_ns=(1_700_000_000 + i * 86_400) * 10**9)  # fmt: skip
        yield made


def found(index, where: str) -> list[int]:
    """Rows that a filter lets through, by SQL, and the same through both searches."""
    _, ids = index.search_words("text", 50, where=where)
    rows = sorted(int(p.text.split()[1]) for p in index.passages(ids))
    assert index.count(where) == len(rows)
    import numpy as np

    query = np.zeros((1, 16), np.float32)
    query[0, 0] = 1
    near = index.search_vectors("text", query, 50, where=where)[1][0]
    assert sorted(near[near >= 0].tolist()) == sorted(ids.tolist())
    return rows


def flat(row: dict, name: str) -> list[tuple[object, bool]]:
    value = row
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return []
        value = value[part]
    return [(v, True) for v in value] if isinstance(value, list) else [(value, False)]


def same_type(a, b) -> bool:
    kinds = [bool if isinstance(x, bool) else str if isinstance(x, str) else float for x in (a, b)]
    return kinds[0] is kinds[1]


def holds(tree, row: dict) -> bool:
    if isinstance(tree, Not):
        return not holds(tree.part, row)
    if isinstance(tree, Both):
        return all(holds(p, row) for p in tree.parts)
    if isinstance(tree, Either):
        return any(holds(p, row) for p in tree.parts)
    values = flat(row, tree.field)
    want = tree.values[0]
    tests = {
        "<": lambda v: v < want, "<=": lambda v: v <= want, ">": lambda v: v > want,
        ">=": lambda v: v >= want,
    }  # fmt: skip
    if tree.operator == "!=":
        return bool(values) and not any(same_type(v, want) and v == want for v, _ in values)
    if tree.operator in ("=", "in"):
        return any(same_type(v, w) and v == w for v, _ in values for w in tree.values)
    if tree.operator == "contains":
        if isinstance(want, str):
            needle = want.casefold()
            return any(
                isinstance(v, str)
                and (v.casefold() == needle if element else needle in v.casefold())
                for v, element in values
            )
        return any(e and same_type(v, want) and v == want for v, e in values)
    return any(same_type(v, want) and tests[tree.operator](v) for v, _ in values)


FIELD = st.sampled_from(["n", "s", "tags", "flag", "deep.x", "deep.y", "none"])
VALUE = st.one_of(
    st.sampled_from(["alpha", "beta", "red", "infrared", 'it\'s "q"', "1", "", "GROSS", "k", "ä"]),
    st.sampled_from([1.0, 2.5, -3.0, 5.0, 7.0, 0.0]),
    st.booleans(),
)


@st.composite
def comparisons(draw):
    operator = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "in", "contains"]))
    values = (
        st.lists(VALUE, min_size=1, max_size=3) if operator == "in" else VALUE.map(lambda v: [v])
    )
    values = draw(values)
    if operator in ("<", "<=", ">", ">="):
        values = [0.0 if isinstance(v, bool) else v for v in values]
    return Comparison(draw(FIELD), operator, tuple(values))


TREES = st.recursive(
    comparisons(),
    lambda t: st.one_of(
        t.map(Not),
        st.lists(t, min_size=2, max_size=3).map(lambda p: Both(tuple(p))),
        st.lists(t, min_size=2, max_size=3).map(lambda p: Either(tuple(p))),
    ),
    max_leaves=5,
)


def write(tree) -> str:
    if isinstance(tree, Not):
        return f"not ({write(tree.part)})"
    if isinstance(tree, Both | Either):
        return (
            "(" + (" AND " if isinstance(tree, Both) else " or ").join(map(write, tree.parts)) + ")"
        )
    values = [
        "'" + v.replace("\\", "\\\\").replace("'", "''") + "'" if isinstance(v, str)
        else str(v).lower() if isinstance(v, bool) else repr(v)
        for v in tree.values
    ]  # fmt: skip
    value = f"({', '.join(values)})" if tree.operator == "in" else values[0]
    return f"{tree.field} {tree.operator} {value}"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=TREES)
def test_sql_agrees_with_python(index, tree):
    text = write(tree)
    assert found(index, text) == [i for i, row in enumerate(ROWS) if holds(tree, row)], text


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40) | st.lists(st.sampled_from(
    ["a", "=", "(", ")", "'x'", "and", "not", "in", ",", "1", '"', "--", ";", "contains"]
), max_size=10).map(" ".join))  # fmt: skip
def test_any_text_is_a_filter_or_a_clear_error(text):
    try:
        sql, bound = filters.to_sql(filters.parse(text))
    except QueryError:
        return
    assert sql.count("?") == len(bound)


BUILT_IN = [
    ("type = 'text'", [0, 1, 2, 3, 4, 5]), ("type != 'text'", []), ("name = 'f3.txt'", [3]),
    ("path contains '/D1/'", [1, 3, 5]), ("path = '/d0/f2.txt'", [2]),
    ("path != '/d0/f2.txt'", [0, 1, 3, 4, 5]),
    ("modality in ('text', 'table')", [0, 1, 2, 3, 4, 5]),
    ("modality != 'text'", []), ("modality = 'text' and n = 1", [0]), ("page = 1", []),
    ("not page = 1", [0, 1, 2, 3, 4, 5]), ("size < 7 and n > 0", [0, 1]), ("language = 'en'", []),
    ("modified = '2023-11-14'", [0]), ("modified >= '2023-11-16'", [2, 3, 4, 5]),
    ("modified <= '2023-11-15'", [0, 1]), ("modified < '2023-11'", []),
    ("modified = '2023'", [0, 1, 2, 3, 4, 5]), ("modified > '2023-11-18T00:00:00'", [4, 5]),
    ("year = 2023", [0, 1, 2, 3, 4, 5]), ("d = '2024-01-05'", [1]), ("d <= '2024-01'", [1, 2, 4]),
    ("d > '2024-01'", []), ("d >= '2024-01-31'", [2]), ("d = '2024-01'", [1, 2]),
    ("d in ('2023-12', '2024-01-05')", [1, 4]), ("meta.n = '1'", [3]), ("meta.'s' = 'Beta'", [1]),
    ("tags contains 'RED'", [0]), ("s contains 'GROSS'", [3]), ("s contains 'q\"'", [2]),
    ("n = 1 or n = -3 and not flag = true", [0, 2]), ("NOT n = 1 AND n > 0", [1]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rows"), BUILT_IN, ids=[t for t, _ in BUILT_IN])
def test_built_in_fields_and_dates(index, text, rows):
    assert found(index, text) == rows


MISTAKES = [
    ("type =", "expected a value, got the end"), ("= 3", "expected a field's name"),
    ("type 'pdf'", "expected one of =, !="), ("type = pdf", "a number or a quoted text"),
    ("type = 'pdf", "character 8: a quote that is not closed"), ("(n = 1", "expected \\)"),
    ("n = 1)", "expected and, or"), ("n in 1", "expected \\( after in"),
    ("n in (1", "expected , or"),
    ("year = '2020'", "year is a number"), ("type = 3", "type is a text"),
    ("modality = 'pdf'", "modality is one of"), ("modified > 'soon'", "a date such as"),
    ("size contains 3", "contains looks into"), ("n < true", "no order"),
    ("n = 1 & m = 2", "got '&'"),
    ("(" * 70 + "n = 1" + ")" * 70, "nested more than"), ("n = 1 " * 5000, "characters, more than"),
    ("n in (" + "1," * 600 + "1)", "longer than"), ("not " * 200 + "n=1", "nested"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[t[:20] for t, _ in MISTAKES])
def test_mistakes_are_named_with_their_place(text, message):
    with pytest.raises(QueryError, match=message):
        filters.parse(text)


def test_fields_that_no_source_has_are_named(index):
    assert index.unknown_fields(None) == []
    assert index.unknown_fields("type = 'x' and year = 3") == []
    assert index.unknown_fields("n = 1 or (flag = true and not s = 'x')") == []
    assert index.unknown_fields("m = 1 or not (nn > 2 or n = 1) or m = 2") == ["m", "nn"]
    # a built-in's name that is written as metadata's is metadata's
    assert index.unknown_fields("meta.type = 'x'") == ["type"]
    assert index.field_names() == ["d", "deep.x", "deep.y", "flag", "n", "s", "tags"]
    assert index.field_names(2) == ["d", "deep.x"]


def test_fields_are_looked_up_in_their_indexes(index):
    with index._catalog.snapshot() as db:
        for column in ("text", "number"):
            sql = reading.NEXT_FIELD.format(sign=">=", column=column)
            (plan,) = db.execute(f"EXPLAIN QUERY PLAN {sql}", ("a",)).fetchall()
            assert f"USING COVERING INDEX fields_{column} (name>?)" in plan[3]


def test_a_very_long_filter_runs(index):
    assert found(index, " or ".join(f"n={i}" for i in range(900))) == [0]


def test_no_sql_gets_in(index):
    for text in ("s = ''') or 1=1 --'", "meta.'x'' or 1=1 --' = 1", "s contains '%'", "s in ('_')"):
        assert found(index, text) == []


def test_the_only_match_behind_a_hundred_near_ties_is_found(new_index, maker):
    index = new_index()
    with index.writer() as w:
        for i in range(101):
            maker.put(w, f"/{i}", f"same words {i}", metadata={"last": i == 100})
    query = maker.vector("same words 0")[None]
    worst = index.search_vectors("text", query, 101)[1][0, -1]
    number = index.passages([worst])[0].text.split()[-1]
    with index.writer() as w:
        maker.put(w, f"/{number}", f"same words {number}", metadata={"last": "yes"})
    _, ids = index.search_vectors("text", query, 1, where="last = 'yes'")
    assert index.passages(ids[0])[0].text == f"same words {number}"
    _, ids = index.search_words("same words", 1, where="last = 'yes'")
    assert index.passages(ids)[0].text == f"same words {number}"
