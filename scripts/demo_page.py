"""The demo's picture and page: bits against quality and speed, drawn from its report (scripts/demo.py)."""
import html
import importlib.util
from pathlib import Path

import draw_bits

ROOT = Path(__file__).resolve().parent.parent
STYLE = "body{font:15px sans-serif;margin:2em auto;max-width:1440px;color:#222}table{border-collapse:collapse}td,th{padding:3px 10px;border-bottom:1px solid #ddd;" \
        "text-align:right}td:first-child,th:first-child{text-align:left}tr.ruined td{color:#c0392b}dt{font-weight:bold;margin-top:.6em}svg{max-width:49%;height:auto}"


def series_of(rows: list[dict], y) -> list[dict]:
    """The original, what is good and what is garbage, apart; y gives a row's height and label."""
    parts = (("original", [r for r in rows if r["format"] == "original"]), ("quantized", [r for r in rows if r["format"] != "original" and not r["ruined"]]),
             ("garbage: a warning", [r for r in rows if r["ruined"]]))
    # The order of draw_bits' colours: red first. The PNG takes the same.
    return [{"name": name, "line": name == "quantized", "marks": True, "colour": colour, "points": [[r["bits_per_weight"], *y(r)] for r in part]}
            for (name, part), colour in zip([p for p in reversed(parts) if p[1]], draw_bits.COLOURS)]


def figures(report: dict) -> list[dict]:
    rows = report["rows"]
    # garbage stands at the upper edge, its label says where it is
    top = 1.6 * max(r["ratio"] for r in rows if not r["ruined"])

    def quality(row: dict) -> tuple:
        name = row["format"].removesuffix(" calibrated")
        return (top, 0.0, f"{row['format']}: {row['ratio']:,.0f} times, off the scale") if row["ruined"] else (row["ratio"], 0.0, f"{name} {row['ratio']:.2f}")

    def speed(row: dict) -> tuple:
        return row["decode_tok_s"], 0.0, f"{row['format'].removesuffix(' calibrated')} {row['decode_tok_s']:.0f}"

    shared = {"kind": "plot", "x_label": "bits per weight of linear layers", "log_x": False}
    return [{**shared, "name": "quality", "title": "Bits against quality", "y_label": "perplexity / the original's (1: no loss)", "log_y": True, "series": series_of(rows, quality)},
            {**shared, "name": "speed", "title": f"Bits against speed: {report['cpu']}, {report['threads']} threads", "y_label": "generated tokens a second", "log_y": False,
             "series": series_of(rows, speed)}]


def write_png(path: Path, drawn: list[dict]) -> bool:
    """By python/lowbit/plots.py, which stands alone. False without matplotlib."""
    spec = importlib.util.spec_from_file_location("lowbit_plots", ROOT / "python/lowbit/plots.py")
    plots = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plots)
    return plots.write_png(path, drawn)


def page(report: dict, drawn: list[dict]) -> str:
    """One page without scripts or network: the picture, the table, what each model wrote."""
    cells = ("format", "bits/weight", "MB", "perplexity", "ratio", "KLD", "top-1", "prefill tok/s", "decode tok/s")
    lines = []
    for r in report["rows"]:
        values = (r["format"], f"{r['bits_per_weight']:.2f}", f"{r['bytes'] / 1e6:.0f}", f"{r['ppl']:.4g}", f"{r['ratio']:.3g}", f"{r['kld_mean']:.3f}", f"{100 * r['top1']:.1f} %",
                  f"{r['prefill_tok_s']:.0f}", f"{r['decode_tok_s']:.0f}")
        lines.append(f"<tr{' class=ruined' * r['ruined']}>" + "".join(f"<td>{html.escape(v)}</td>" for v in values) + "</tr>")
    wrote = "".join(f"<dt>{html.escape(r['format'])}</dt><dd>{html.escape(' '.join(r['text'].split()))}</dd>" for r in report["rows"])
    return (f"<!DOCTYPE html>\n<html lang=en><meta charset=utf-8><title>lowbit: bits, quality, speed</title><style>{STYLE}</style>\n<h1>What few bits cost and buy</h1>\n"
            + "".join(draw_bits.draw(figure) for figure in drawn)
            + "<table><tr>" + "".join(f"<th>{c}</th>" for c in cells) + "</tr>\n" + "\n".join(lines) + "</table>\n"
            f"<p>{html.escape(report['text'])}, {report['chunks']} chunks of {report['context']} tokens, against the file's own weights with f32 activations. Red: garbage; weights alone do not "
            f"carry this model to so few bits.</p>\n<h2>{html.escape(report['prompt'])} ...</h2>\n<dl>{wrote}</dl>\n</html>\n")


def write(report: dict, folder: Path) -> list[Path]:
    """demo.html, and demo.png where matplotlib is; what was written."""
    drawn = figures(report)
    (folder / "demo.html").write_text(page(report, drawn))
    return [folder / "demo.html"] + [folder / "demo.png"] * write_png(folder / "demo.png", drawn)
