#!/usr/bin/env python3
"""Draws bits against quality as SVG: docs/bits-and-quality.svg, the README's picture, from bench/results/; with --check
only says whether it differs.

The demo draws its own rows by the same functions. A figure is what python/lowbit/plots.py draws as PNG:
  {"name", "kind": "plot", "title", "x_label", "y_label", "log_x", "log_y", "series": [{"name", "line", "marks",
      "points": [[x, y, error, label], ...]}]}
Either axis may be logarithmic; errors are not drawn. A series with "below" has its labels there.
"""
import argparse
import html
import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/bits-and-quality.svg"
COLOURS = ("#c0392b", "#1f6fb4", "#2a8a4a", "#8a5a00")
WIDTH, HEIGHT = 700, 420
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 56, 52  # margins around the axes


def ticks(low: float, high: float, log: bool) -> list[float]:
    """Round numbers from low to high: 1, 1.2, 1.5, 2, 3, 5 and so on where the axis is logarithmic, else at most ten
    even steps."""
    if log:
        marks = (1, 1.2, 1.5, 2, 3, 5) if high < 20 * low else (1, 3) if high < 1000 * low else (1,)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        return [m * 10**p for p in powers for m in marks if low <= m * 10**p <= high]
    step = 10 ** math.floor(math.log10(high - low))
    step = next(step * part for part in (0.1, 0.2, 0.25, 0.5, 1, 2) if (high - low) / (step * part) <= 10)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


class Axis:
    """From numbers to places of the picture."""

    def __init__(self, values: list[float], start: float, end: float, log: bool):
        self.log, self.start, self.end = log, start, end
        low, high = min(values), max(values)
        room = (high / low) ** 0.08 if log else 0.1 * (high - low or 1)
        self.low, self.high = (low / room, high * room) if log else (max(0.0, low - room), high + room)

    def __call__(self, value: float) -> float:
        scale = math.log if self.log else float
        part = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        return ticks(self.low, self.high, self.log)


def text(x: float, y: float, words: str, anchor: str = "middle", size: int = 11, extra: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{extra}>{html.escape(words)}</text>'


def draw_axes(figure: dict, x: Axis, y: Axis) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [f'<line x1="{x(v):g}" y1="{TOP}" x2="{x(v):g}" y2="{bottom}" stroke="#e6e6e6"/>{text(x(v), bottom + 16, f"{v:g}")}' for v in x.ticks()]
    parts += [f'<line x1="{LEFT}" y1="{y(v):g}" x2="{right}" y2="{y(v):g}" stroke="#e6e6e6"/>{text(LEFT - 6, y(v) + 4, f"{v:g}", "end")}' for v in y.ticks()]
    parts.append(f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}" fill="none" stroke="#888"/>')
    middle = (TOP + bottom) / 2
    return [*parts, text((LEFT + right) / 2, HEIGHT - 16, figure["x_label"]), text(WIDTH / 2, 22, figure["title"], size=14, extra=' font-weight="bold"'),
            text(16, middle, figure["y_label"], extra=f' transform="rotate(-90 16 {middle:g})"')]


def draw(figure: dict) -> str:
    """The figure as <svg>, the same bytes for the same numbers."""
    points = [p for series in figure["series"] for p in series["points"]]
    x = Axis([p[0] for p in points], LEFT, WIDTH - RIGHT, figure["log_x"])
    y = Axis([p[1] for p in points], HEIGHT - BOTTOM, TOP, figure["log_y"])
    parts = draw_axes(figure, x, y)
    for i, series in enumerate(figure["series"]):
        colour, placed = COLOURS[i % len(COLOURS)], sorted(series["points"])
        if series["line"] and len(placed) > 1:
            line = " ".join(f"{x(p[0]):g},{y(p[1]):g}" for p in placed)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for px, py, _, label in placed:
            parts.append(f'<circle cx="{x(px):g}" cy="{y(py):g}" r="4" fill="{colour}"/>')
            near_end = x(px) > WIDTH - RIGHT - 110
            parts.append(text(x(px) + (-7 if near_end else 7), y(py) + (16 if series.get("below") else -6), label, "end" if near_end else "start", extra=f' fill="{colour}"') if label else "")
        if len(figure["series"]) > 1:
            start = LEFT + i * (WIDTH - LEFT - RIGHT) / len(figure["series"])
            parts.append(f'<circle cx="{start + 6:g}" cy="{TOP - 14}" r="4" fill="{colour}"/>{text(start + 15, TOP - 10, series["name"], "start")}')
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" fill="#222">',
                      f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *filter(None, parts), "</svg>", ""])


def undominated(rows: list[tuple]) -> list[tuple]:
    """Without those that another row beats with as few bits."""
    return [r for r in rows if not any(o[0] <= r[0] and o[1] < r[1] for o in rows)]


def readme_figure() -> dict:
    """The best that each way of quantizing reaches with some bits, of what bench/results/ holds."""
    from tables_quality import best_of_sizes

    quality, recovery = (json.loads((ROOT / f"bench/results/{name}.json").read_text()) for name in ("quality", "recovery"))
    presets = json.loads((ROOT / "bench/results/presets.json").read_text())
    point = lambda r, name, measured: (r["bits_per_weight"], measured["kld_mean"], 0.0, f"{name.removesuffix('-packed')} {measured['kld_mean']:.2f}")
    alone = [point(r, r["format"], r) for r in quality["rows"] if r["fit"] == "lsq"]
    written, given = ([point(r, r["preset"], r) for r in presets["rows"] if ("calib" in r) == is_given] for is_given in (False, True))
    trained = undominated([point(r, r["format"], r["recovered"]) for r in best_of_sizes(recovery) if r["recovered"]["kld_mean"]])
    names = ("weights alone, seconds", "presets, without a text", "presets, on WikiText", "trained on a GPU")
    series = [{"name": name, "line": True, "marks": True, "points": [list(p) for p in points], "below": points is trained} for name, points in zip(names, (alone, written, given, trained))]
    return {"name": "bits and quality", "kind": "plot", "title": f"{quality['model']}: what few bits cost", "x_label": "bits per weight of linear layers, scales included",
            "y_label": "KL divergence from the original (0: no loss)", "log_x": False, "log_y": True, "series": series}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    new = draw(readme_figure())
    same = PICTURE.is_file() and PICTURE.read_text() == new
    if not options.check:
        PICTURE.write_text(new)
    if not same:
        print(f"{PICTURE.relative_to(ROOT)}: " + ("differs from bench/results: run scripts/draw_bits.py" if options.check else "drawn"))
    return 1 if options.check and not same else 0


if __name__ == "__main__":
    sys.exit(main())
