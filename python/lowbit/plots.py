"""The figures of a report as PNG files: python -m lowbit.plots REPORT.json -o DIR

REPORT.json is what `lowbit report DIR... --json` prints, `-` for standard input: figures[] with name, kind (plot,
heat_map), title and numbers. One file per figure, DIR/NAME.png. Needs matplotlib: pip install 'lowbit[plots]'."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path

DOTS_PER_INCH = 120
WITHOUT = "no pictures without matplotlib: pip install 'lowbit[plots]'"


def pyplot():
    """matplotlib's, for files only. None without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as module
    except ImportError:
        return None
    return module


def drawable(points: list, log_x: bool, log_y: bool) -> list:
    """Points that have a place on the axes; JSON has null for what is not finite."""
    return [p for p in points if all(v is not None and (v > 0 or not log) for v, log in ((p[0], log_x), (p[1], log_y)))]


def draw_plot(axis, figure: dict) -> None:
    for series in figure["series"]:
        points = drawable(series["points"], figure["log_x"], figure["log_y"])
        if not points:
            continue
        x, y, errors, labels = zip(*points)
        axis.errorbar(x, y, yerr=errors if any(errors) else None, label=series["name"], markersize=4, capsize=2,
                      linestyle="-" if series["line"] else "none", marker="o" if series["marks"] else "none", color=series.get("colour"))
        for point in zip(x, y, labels):
            if point[2]:
                axis.annotate(point[2], point[:2], xytext=(4, 3), textcoords="offset points", fontsize=7)
    axis.set(xlabel=figure["x_label"], ylabel=figure["y_label"], xscale="log" if figure["log_x"] else "linear",
             yscale="log" if figure["log_y"] else "linear")
    for one, log in ((axis.xaxis, figure["log_x"]), (axis.yaxis, figure["log_y"])):
        low, high = one.get_view_interval()
        if log and high < 20 * low:  # few powers of ten to read: 1.1 and not 1.1 x 10^0
            one.set_minor_formatter("{x:g}")
            one.set_major_formatter("{x:g}")
    if any(point[3] for series in figure["series"] for point in series["points"]):
        axis.margins(x=0.14)  # labels stand right of their points
    axis.grid(alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8)


def draw_heat_map(axis, figure: dict) -> None:
    """Darker is more, by logarithm; white where there is no number."""
    from matplotlib.colors import LogNorm

    cells = [[v if v is not None and v > 0 else math.nan for v in row] for row in figure["cells"]]
    known = [v for row in cells for v in row if math.isfinite(v)]
    if known:
        low, high = min(known), max(known)
        image = axis.imshow(cells, aspect="auto", cmap="Blues", norm=LogNorm(low, high if high > low else 1.01 * low))
        axis.figure.colorbar(image, ax=axis)
    axis.set_yticks(range(len(figure["rows"])), figure["rows"])
    axis.set_xticks(range(len(figure["columns"])), figure["columns"], fontsize=7)
    axis.set_xlabel("block")


DRAW = {"plot": draw_plot, "heat_map": draw_heat_map}


def write_png(path, figures: list[dict]) -> bool:
    """The figures side by side. False without matplotlib. Errors: KeyError for one that lacks a part."""
    module = pyplot()
    if module is None:
        return False
    picture, axes = module.subplots(1, len(figures), figsize=(7.5 * len(figures), 4.5), squeeze=False)
    for axis, figure in zip(axes[0], figures):
        DRAW[figure["kind"]](axis, figure)
        axis.set_title(figure["title"], fontsize=10)
    picture.tight_layout()
    picture.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    module.close(picture)
    return True


def file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name) + ".png"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lowbit.plots", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", help="JSON of `lowbit report --json`; - is standard input")
    parser.add_argument("-o", "--output", type=Path, default=Path("."), help="directory of the PNG files [.]")
    options = parser.parse_args(arguments)
    try:
        report = json.loads(sys.stdin.read() if options.report == "-" else Path(options.report).read_text(encoding="utf-8"))
        figures = report["figures"]
        options.output.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            path = options.output / file_name(figure["name"])
            if not write_png(path, [figure]):
                print(f"error: {WITHOUT}", file=sys.stderr)
                return 1
            print(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: {options.report}: got {error!r}, wanted the output of `lowbit report --json`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
