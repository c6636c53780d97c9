"""Random models of Llama, Qwen2 and Qwen3 against transformers, where it is installed: the same logits. BitNet's are in
bitnet_test.py."""
import importlib.util
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

import cli
from cli import CliTest

MISSING = [m for m in ("numpy", "torch", "transformers", "safetensors") if importlib.util.find_spec(m) is None]
if importlib.util.find_spec("numpy"):
    import numpy as np

sys.path.insert(0, str(cli.SOURCE / "scripts"))
import make_test_model  # noqa: E402

VOCAB = len(make_test_model.vocabulary())
COMMON = {"vocab_size": VOCAB, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2}
# Contents of transformers' configs, by the name of the folder.
MODELS = {
    "llama": ("Llama", dict(hidden_size=96, intermediate_size=172, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                            rms_norm_eps=1e-5, tie_word_embeddings=False)),
    "llama, wide, tied": ("Llama", dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=4, num_attention_heads=9,
                                        num_key_value_heads=3, rms_norm_eps=1e-5, rope_theta=100000.0, tie_word_embeddings=True)),
    "qwen2": ("Qwen2", dict(hidden_size=64, intermediate_size=172, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                            rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True)),
    "qwen2, wide": ("Qwen2", dict(hidden_size=896, intermediate_size=2432, num_hidden_layers=3, num_attention_heads=14, num_key_value_heads=2,
                                  rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False)),
    "qwen3": ("Qwen3", dict(hidden_size=64, intermediate_size=172, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                            head_dim=32, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True)),
    "qwen3, wide": ("Qwen3", dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
                                  head_dim=128, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False)),
}

# Makes FOLDER from FOLDER/made_of.json, and the logits of its tokens: exact.npy in f32 with keys and values rounded to
# f16, as lowbit's cache holds them, and half.npy in the type of the file, as transformers would run it. Weights are
# spread so that every part of a block moves the logits far more than the bounds, and what blocks add to the stream is a
# third of it, as early in a training: else the two likeliest tokens are too close for bf16.
TRANSFORMERS = r"""
import json
import sys
import numpy as np
import torch
import transformers
torch.set_num_threads(2)

class F16Cache(transformers.DynamicCache):
    def update(self, keys, values, *args, **kwargs):
        return super().update(keys.half().float(), values.half().float(), *args, **kwargs)

def make(folder, family, dtype, config):
    torch.manual_seed(len(folder))
    made = getattr(transformers, family + "ForCausalLM")(getattr(transformers, family + "Config")(**config))
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith("norm.weight"):
                weight.copy_(1 + 0.2 * torch.randn_like(weight))
            elif weight.dim() == 2:
                spread = 0.3 if "o_proj" in name or "down_proj" in name else 1.4 if "_proj" in name else 1
                weight.copy_(spread * torch.randn_like(weight) / weight.shape[1] ** (0 if "embed" in name else 0.5))
            else:
                weight.copy_(0.5 * torch.randn_like(weight))
    made.to(getattr(torch, dtype)).save_pretrained(folder)

for folder in sys.argv[1:]:
    what = json.load(open(folder + "/made_of.json"))
    make(folder, what["family"], what["dtype"], what["config"])
    with torch.no_grad():
        for name, dtype in (("exact", torch.float32), ("half", getattr(torch, what["dtype"]))):
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
            cache = F16Cache(config=model.config) if name == "exact" else None
            np.save(f"{folder}/{name}.npy", model(torch.tensor([what["tokens"]]), past_key_values=cache).logits[0].float().numpy())
"""


def relative_error(got, want):
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def same_likeliest(got, want):
    return float(np.mean(got.argmax(-1) == want.argmax(-1)))


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class Parity(CliTest):
    def test_transformers_logits(self):
        folders = {}
        for name, (family, config) in MODELS.items():
            for dtype in ("float32", "bfloat16"):
                folder = folders[name, dtype] = self.dir / f"{name.replace(', ', '-')}-{dtype}"
                folder.mkdir()
                (folder / "tokenizer.json").write_text(json.dumps(make_test_model.tokenizer_json()))
                tokens = self.json("tokenize", folder / "tokenizer.json", "-p", cli.text(40))["ids"]
                (folder / "made_of.json").write_text(json.dumps({"family": family, "dtype": dtype, "config": {**COMMON, **config}, "tokens": tokens}))
        done = subprocess.run([sys.executable, "-c", TRANSFORMERS, *map(str, folders.values())], capture_output=True,
                              env=dict(os.environ, TORCH_COMPILE_DISABLE="1", HF_HUB_OFFLINE="1"))
        self.assertEqual(done.returncode, 0, done.stderr[-2000:].decode(errors="replace"))
        same, positions = 0, 0  # in bf16, of all models: one token is too much of a single one
        for (name, dtype), folder in folders.items():
            out = self.dir / "logits.npy"
            self.json("logits", folder, "-p", cli.text(40), "--all", "--act", "f32", "-o", out)
            got, exact, half = np.load(out), np.load(folder / "exact.npy"), np.load(folder / "half.npy")
            with self.subTest(name, dtype=dtype):
                self.assertEqual(got.shape, exact.shape)
                self.assertGreater(len(got), 60)
                self.assertLess(relative_error(got, exact), 1e-4)
                self.assertGreaterEqual(same_likeliest(got, exact), 0.99)
                if dtype == "bfloat16":
                    self.assertLess(relative_error(got, half), 2e-2)
                    same, positions = same + same_likeliest(got, half) * len(got), positions + len(got)
            print(f"{name}, {dtype}: {relative_error(got, exact):.1e} from f32, {relative_error(got, half):.1e} from transformers in {dtype}", file=sys.stderr)
        print(f"the same likeliest token at {same:.0f} of {positions} positions in bf16", file=sys.stderr)
        self.assertGreaterEqual(same / positions, 0.99)


if __name__ == "__main__":
    unittest.main()
