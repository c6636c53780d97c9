"""The loss curve as a picture."""

from __future__ import annotations

from ..plots import write_png


def loss_figure(stage: dict) -> dict:
    """A stage of OUT.loss.json in the form of lowbit.plots."""
    if stage["method"] == "blocks":
        trained = [b for b in stage["blocks"] if b["first"] is not None]
        series = [{"name": f"{key} steps", "line": True, "marks": True, "points": [[b["block"], b[key], 0, ""] for b in trained]}
                  for key in ("first", "last")]
        labels = {"title": "block reconstruction", "x_label": "block", "y_label": "relative output error"}
    else:
        series = [{"name": stage["method"], "line": True, "marks": False, "points": [[*point, 0, ""] for point in stage["curve"]]}]
        labels = {"title": stage["method"], "x_label": "step", "y_label": "KL divergence per token, nats"}
    return {"kind": "plot", **labels, "log_x": False, "log_y": True, "series": series}


def write_curve_png(path, report: dict) -> bool:
    """One panel per stage. False without matplotlib."""
    return write_png(path, [loss_figure(stage) for stage in report["stages"]])
