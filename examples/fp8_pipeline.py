"""The FP8 pipeline of docs/fp8.md: weights are quantized once, activations whenever they come, and the codes
multiplied.

    python examples/fp8_pipeline.py
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from lowbit import fp8  # noqa: E402


def main() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((768, 1000), dtype=np.float32)  # [outputs, columns]; the last blocks are short

    # Offline: one scale per 128 x 128 weights.
    w_codes, w_scales = fp8.weight_quant(weights)
    size = w_codes.nbytes + w_scales.nbytes
    print(f"weights: {weights.nbytes} bytes as float32, {size} as FP8, {weights.nbytes / size:.2f} times smaller")

    # Online: one scale per row and 128 columns of the activations, then the product.
    for rows in (1, 16):
        x = rng.standard_normal((rows, 1000), dtype=np.float32)
        x_codes, x_scales = fp8.act_quant(x)
        y = fp8.gemm(x_codes, x_scales, w_codes, w_scales)
        exact = x.astype(np.float64) @ weights.T.astype(np.float64)
        print(f"{rows} rows: relative error {np.linalg.norm(y - exact) / np.linalg.norm(exact):.4f}")


if __name__ == "__main__":
    main()
