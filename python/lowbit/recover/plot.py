"""The loss curve as a picture."""

from __future__ import annotations


def write_curve_png(path, report: dict) -> bool:
    """One panel per stage. False without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return False
    stages = report["stages"]
    figure, axes = pyplot.subplots(1, len(stages), figsize=(6 * len(stages), 4), squeeze=False)
    for axis, stage in zip(axes[0], stages):
        if stage["method"] == "blocks":
            trained = [b for b in stage["blocks"] if b["first"] is not None]
            for key in ("first", "last"):
                axis.plot([b["block"] for b in trained], [b[key] for b in trained], label=f"{key} steps")
            axis.set(xlabel="block", ylabel="relative output error", yscale="log", title="block reconstruction")
            axis.legend()
        else:
            axis.plot(*zip(*stage["curve"]))
            axis.set(xlabel="step", ylabel="KL divergence per token, nats", yscale="log", title=stage["method"])
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
