"""Tables of recurrent networks for print_tables.py: accuracy and speed. Each takes a report of bench/results/."""

from tables_speed import find, optional


def gru_g2p(report: dict) -> str:
    lines = ["| network | phoneme error rate, % | words right, % | words as in float, % | size |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        lines.append(f"| {row['name']} | {row['per']:.2f} | {row['words']:.2f} | {row['same']:.2f} | {row['bytes_ratio']:.3f} |")
    return "\n".join(lines) + (f"\n\n{report['test_words']} words, calibrated on {report['calibration_words']} others, tuned on "
                               f"{report['tuning_words']}.")


def gru_denoise(report: dict) -> str:
    lines = ["| network | SI-SDR, dB | size | times real time |", "|---|---|---|---|"]
    lines += [f"| {row['name']} | {row['si_sdr_db']:.2f} | {row['bytes_ratio']:.3f} | {row['times_real_time']:.0f} |"
              for row in report["rows"]]
    return ("\n".join(lines) + f"\n\nThe noisy file itself: {report['noisy_db']:.2f} dB. Speed: one core of Zen 4, of the GRUs alone but "
            "in the rows of all layers.")


def gru_cpu(report: dict) -> str:
    lines = ["| N, C, H | preset | instruction set | us per step, whole sequence | streamed |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        if row["preset"] != "gates12":
            lines.append(f"| {row['n']}, {row['c']}, {row['h']} | {row['preset']} | {row['isa']} | {row['us_per_step']:.2f} | "
                         f"{row['stream_us_per_step']:.2f} |")
    return "\n".join(lines) + f"\n\n{report['cpu']}, one core, {report['statistic']}, every answer checked against the reference."


def gru_rivals(report: dict) -> str:
    lines = ["| N, C, H | instruction set | us per step | streamed | int4 weights | streamed | `accurate` | oneDNN f32 | bf16 | u8s8, reset first | of f32's |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in report["rows"]:
        other = r["onednn"]
        lines.append(f"| {r['n']}, {r['c']}, {r['h']} | {r['isa']} | {r['us_per_step']:.2f} | {r['stream_us_per_step']:.2f} | "
                     f"{r['int4_us_per_step']:.2f} | {r['int4_stream_us_per_step']:.2f} | {r['accurate_us_per_step']:.2f} | {other['f32']:.2f} | "
                     f"{optional(other.get('bf16'), 2)} | {optional(other.get('u8s8'), 2)} | {r['us_per_step'] / other['f32']:.2f} |")
    return "\n".join(lines) + (f"\n\n{report['machine']}, one core, {report['statistic']}, both programs' answers checked; oneDNN {report['onednn']}, "
                               f"on AVX2 where lowbit is. Presets `seed8`, `accurate`.")


# the design's, of seed8
GRU_GOALS_US = {(100, 1, 64, 64): 25, (100, 64, 256, 256): 150, (500, 32, 512, 512): 750, (100, 128, 1024, 1024): 400}


def gru_gpu(report: dict) -> str:
    lines = ["| T, N, C, H | preset | kernel | us | wanted | input product and first step | a step more | cuDNN fp16, us | ratio |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in report["rows"]:
        if not row["chosen"]:
            continue
        shape = {k: row[k] for k in "tnch"}
        rival = find(report["cudnn"], dtype="float16", **shape)["us"]
        goal = GRU_GOALS_US.get(tuple(shape.values())) if row["preset"] == "seed8" else None
        further = (row["us"] - row["one_step_us"]) / (row["t"] - 1)
        lines.append(f"| {', '.join(str(v) for v in shape.values())} | {row['preset']} | `{row['kernel']}` | {row['us']:.1f} | {optional(goal, 0)} | "
                     f"{row['one_step_us']:.1f} | {further:.3f} | {rival:.0f} | {rival / row['us']:.2f} |")
    return "\n".join(lines) + f"\n\n{report['device']}, codes in and out, hot, replayed from a graph, {report['statistic']}; answers checked. Gates in {report['gates']}."
