"""What is wrong with a request, in one line: the field, what it takes, what was got, what next."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

SHOWN_CHARS = 60
PLACES = ("body", "path", "query", "header", "cookie")
# pydantic's kinds of error, by what the field takes
FORMS = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
}
LENGTHS = {
    "string_too_short": "{min_length} or more characters",
    "string_too_long": "at most {max_length} characters",
    "too_short": "{min_length} or more entries",
    "too_long": "at most {max_length} entries",
}
GIVEN = {"query": "add ?{name}=... to the address", "body": 'give "{name}" in the JSON object'}


def wanted(form: str, step: str = "") -> WrapValidator:
    """Let a field say in words of its own what it takes. step: what to do then."""

    def check(value: Any, inner: Callable[[Any], Any]) -> Any:
        try:
            return inner(value)
        except ValidationError as error:
            raise PydanticCustomError("wanted", "{form}", {"form": form, "step": step}) from error

    return WrapValidator(check)


def first_fault(errors: Sequence[Mapping[str, Any]], media_type: str | None = None) -> str:
    """Name the first mistake of a body or of arguments, without repeating the whole of it.

    media_type: what the request says its body is.
    """
    first = errors[0] if errors else {}
    kind, given, told = first.get("type"), first.get("input"), first.get("ctx") or {}
    place, *path = first.get("loc", ()) or ("body",)
    # a tool's arguments stand in no place, and one of them is called `query`
    if place not in PLACES or (place != "body" and not path):
        place, path = "", [place, *path]
    if kind == "json_invalid":
        at = f" at character {path[0] + 1}" if path else ""
        return f"the body is no JSON{at} ({told.get('error', 'broken')}): send a JSON object"
    if not path:
        return of_body(first, media_type)
    name = field_name(path)
    if kind == "missing":
        step = GIVEN.get(place, "give it").format(name=name) if len(path) == 1 else "give it"
        return f"{name} is missing: {step}"
    if kind == "wanted":
        step = f": {told['step']}" if told["step"] else ""
        return f"{name} must be {told['form']}, got {shown(given)}{step}"
    if kind in FORMS:
        return f"{name} must be {FORMS[kind].format(**told)}, got {shown(given)}"
    if kind in LENGTHS:
        n = f", got {len(given)}" if isinstance(given, str | list) else ""
        return f"{name} must have {LENGTHS[kind].format(**told)}{n}"
    return f"{name}: {first.get('msg', 'invalid')}"


def of_body(fault: Mapping[str, Any], media_type: str | None) -> str:
    """Say what is wrong with a body as a whole."""
    if fault.get("type") == "missing":
        return "the body is empty: send a JSON object"
    if is_other_than_json(fault):
        got = f"{media_type[:SHOWN_CHARS]!r}" if media_type else "no such header"
        return (
            "the body must be JSON: send it with the header 'Content-Type: application/json', "
            f"got {got}"
        )
    if fault.get("type") in FORMS:
        return f"the body must be a JSON object, got {shown(fault.get('input'))}"
    return str(fault.get("msg", "the request cannot be read"))


def is_other_than_json(fault: Mapping[str, Any]) -> bool:
    """Tell whether a body was not even read, since its header does not call it JSON."""
    return fault.get("loc") == ("body",) and isinstance(fault.get("input"), bytes)


def field_name(path: Sequence[str | int]) -> str:
    """Return the name of a field: `messages[0].role`; of a list's entry `each of paths`."""
    *inner, last = path
    name = ""
    for part in path if isinstance(last, str) or not inner else inner:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name if isinstance(last, str) or not inner else f"each of {name}"


def shown(value: Any) -> str:
    """Return a value as it was sent, cut where it is long."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."
