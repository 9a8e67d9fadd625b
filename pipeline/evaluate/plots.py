"""Plots as inline SVG: they scale with the page and take its colours, light or dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 680
LINE = 42  # a row: its name, and what is drawn of it below
LEFT = 14
SERIES = 6  # colours that the page's style defines


def dots(
    rows: Sequence[tuple[str, float, tuple[float, float]]], *, label: str, top: float = 1.0
) -> str:
    """Draw one dot a row with its interval. rows: (name, value, (low, high)); the scale is 0..top.

    Each name has its colour by its place among the names.
    """
    names = list(dict.fromkeys(name for name, _, _ in rows))
    height = LINE * len(rows) + 34
    body = [_axis(height, top)]
    for number, (name, value, (low, high)) in enumerate(rows):
        y, colour = 30 + LINE * number, f"s{names.index(name) % SERIES}"
        left, right = _x(max(low, 0), top), _x(min(high, top), top)
        body.append(
            f"{_name(name, y - 14)}"
            f'<line class="{colour}" x1="{left:.1f}" x2="{right:.1f}" y1="{y}" y2="{y}"/>'
            f'<circle class="{colour}" cx="{_x(value, top):.1f}" cy="{y}" r="5"/>'
            f'<text class="value" x="{WIDTH - 4}" y="{y + 5}" text-anchor="end">{value:.3f}</text>'
        )
    return _svg(height, body, label)


def bars(rows: Sequence[tuple[str, Mapping[str, float]]], *, label: str, unit: str) -> str:
    """Draw one stacked bar a row. rows: (name, {part: amount})."""
    parts = list(dict.fromkeys(part for _, amounts in rows for part in amounts))
    top = max((sum(a.values()) for _, a in rows), default=0.0) or 1.0
    body = []
    for number, (name, amounts) in enumerate(rows):
        y, x = 22 + LINE * number, float(LEFT)
        body.append(_name(name, y - 6))
        for part in parts:
            width = (_x(amounts.get(part, 0.0), top) - LEFT) if part in amounts else 0.0
            colour = f"s{parts.index(part) % SERIES}"
            body.append(
                f'<rect class="{colour}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="14">'
                f"<title>{escape(part)}: {amounts.get(part, 0.0):.4g} {unit}</title></rect>"
            )
            x += width
        total = sum(amounts.values())
        body.append(
            f'<text class="value" x="{WIDTH - 4}" y="{y + 13}" text-anchor="end">'
            f"{plain(total)} {unit}</text>"
        )
    return _svg(LINE * len(rows) + 4, body, label) + legend(parts)


def differences(values: Sequence[float], *, label: str) -> str:
    """Draw per-query differences as a row of bars, the largest loss first."""
    height, middle, left = 130, 65.0, 74
    top = max((abs(v) for v in values), default=0.0) or 1.0
    step = (WIDTH - left - 10) / max(1, len(values))
    body = [f'<line class="grid" x1="{left}" x2="{WIDTH - 10}" y1="{middle}" y2="{middle}"/>']
    for number, value in enumerate(values):
        size = 60 * abs(value) / top
        y = middle - size if value > 0 else middle
        colour = "good" if value > 0 else "bad"
        body.append(
            f'<rect class="{colour}" x="{left + number * step:.2f}" y="{y:.1f}" '
            f'width="{max(step * 0.9, 0.3):.2f}" height="{size:.1f}"/>'
        )
    for text, y in ((f"+{top:.2f}", 18), ("0", middle + 5), (f"-{top:.2f}", height - 4)):
        body.append(f'<text class="value" x="{left - 8}" y="{y}" text-anchor="end">{text}</text>')
    return _svg(height, body, label)


def lines(
    series: Mapping[str, Sequence[tuple[str, float]]],
    *,
    label: str,
    top: float = 1.0,
    unit: str = "",
) -> str:
    """Draw lines over named places. series: {name: [(place, value), ...]}; the scale is 0..top."""
    places = list(dict.fromkeys(p for points in series.values() for p, _ in points))
    width, height, left, base = 420, 220, 64, 180
    across = (width - left - 40) / max(1, len(places) - 1)
    top = top or 1.0
    body = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = base - 165 * share
        body.append(
            f'<line class="grid" x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="value" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{plain(top * share)}</text>"
        )
    for number, place in enumerate(places):
        x = left + across * number
        body.append(
            f'<text class="value" x="{x:.1f}" y="{base + 20}" text-anchor="middle">'
            f"{escape(place)}</text>"
        )
    for number, (_, points) in enumerate(series.items()):
        colour = f"s{number % SERIES}"
        spots = [
            (left + across * places.index(p), base - 165 * min(v, top) / top) for p, v in points
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        body.append(f'<polyline class="{colour}" points="{path}"/>')
        for (x, y), (place, value) in zip(spots, points, strict=True):
            body.append(
                f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
                f"<title>{escape(place)}: {value:.4g} {unit}</title></circle>"
            )
    return _svg(height, body, label, width) + legend(list(series))


def legend(names: Sequence[str]) -> str:
    """Return a line of coloured names in HTML, so that it wraps on a narrow page."""
    items = "".join(
        f'<span><i class="s{n % SERIES}"></i>{escape(name)}</span>' for n, name in enumerate(names)
    )
    return f'<p class="legend">{items}</p>'


def plain(value: float) -> str:
    """Return three significant digits without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _axis(height: float, top: float) -> str:
    found = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _x(top * share, top)
        found.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - 22}"/>'
            f'<text class="value" x="{x:.1f}" y="{height - 6}" text-anchor="middle">'
            f"{top * share:g}</text>"
        )
    return "".join(found)


def _x(value: float, top: float) -> float:
    return LEFT + (WIDTH - LEFT - 96) * min(max(value / top, 0.0), 1.0)


def _name(name: str, y: float, n_chars: int = 60) -> str:
    shown = name if len(name) <= n_chars else name[: n_chars - 1] + "\u2026"
    return f'<text class="name" x="{LEFT}" y="{y}">{escape(shown)}</text>'


def _svg(height: float, body: Sequence[str], label: str, width: int = WIDTH) -> str:
    kind = ' class="wide-plot"' if width == WIDTH else ""
    return (
        f'<svg{kind} viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(label)}">'
        f"{''.join(body)}</svg>"
    )
