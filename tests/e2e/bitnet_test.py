"""BitNet b1.58: what the files hold, against a NumPy model of the whole network and against transformers, where they
are installed."""
import importlib.util
import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import cli
from cli import CliTest

MISSING = [m for m in ("numpy",) if importlib.util.find_spec(m) is None]
NO_TRANSFORMERS = [m for m in ("numpy", "torch", "transformers", "accelerate") if importlib.util.find_spec(m) is None]
NO_PACKAGE = [m for m in ("numpy", "xxhash") if importlib.util.find_spec(m) is None]
GPU_FILE = "model_state_int2.safetensors"
if not MISSING:
    import numpy as np

    import bitnet_models
    from bitnet_models import Reference, Sizes, as_bf16, random_weights, ternarized, write_online, write_packed, write_safetensors
    from operators_test import seed_002_tiles

sys.path.insert(0, str(cli.SOURCE / "scripts"))
import make_test_model  # noqa: E402

FORMS = {"online": None, "packed": "autobitlinear", "packed, divided": "bitlinear"}


def sizes_of(name):
    vocab = len(make_test_model.vocabulary())
    return {"tiny": Sizes(64, 160, 2, 4, 2, vocab), "small": Sizes(384, 1024, 4, 6, 2, vocab),
            "2B-4T, two layers": Sizes(2560, 6912, 2, 20, 5, vocab)}[name]


def add_tokenizer(folder):
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": make_test_model.SPECIAL[1], "eos_token": make_test_model.SPECIAL[2]}
    for name, content in (("tokenizer.json", make_test_model.tokenizer_json()), ("tokenizer_config.json", config)):
        (Path(folder) / name).write_text(json.dumps(content))
    return folder


def write(folder, form, sizes, weights):
    add_tokenizer(write_online(folder, sizes, weights) if form == "online" else write_packed(folder, sizes, weights, FORMS[form]))
    return folder


def tensors_of(folder, file="model.safetensors"):
    """name -> (type, shape, bytes)."""
    data = (Path(folder) / file).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for name, t in header.items()}


def relative_error(got, want):
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def same_likeliest(got, want):
    return float(np.mean(got.argmax(-1) == want.argmax(-1)))


# In f32, whatever the file's type, and with keys and values rounded to f16, as lowbit's cache holds them: int8 codes of
# x that fall on the other side of a tie else hide what is compared.
TRANSFORMERS = r"""
import sys
import numpy as np
import torch
import transformers
from transformers.integrations.bitnet import BitLinear
torch.set_num_threads(2)

class F16Cache(transformers.DynamicCache):
    def update(self, keys, values, *args, **kwargs):
        return super().update(keys.half().float(), values.half().float(), *args, **kwargs)

def logits(folder, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    torch.nn.Module.float(model)  # transformers' own float() refuses quantized models
    for module in model.modules():
        if isinstance(module, BitLinear):
            module.dtype = torch.float32
    with torch.no_grad():
        cache = F16Cache(config=model.config)
        return model(torch.tensor([tokens]), past_key_values=cache).logits[0].numpy()

for folder in sys.argv[1:]:
    np.save(folder + "/transformers.npy", logits(folder, [int(t) for t in open(folder + "/tokens.txt").read().split()]))
"""


def transformers_logits(folders):
    """Of the ids in FOLDER/tokens.txt: FOLDER/transformers.npy. One process for all, for it takes long to start."""
    done = subprocess.run([sys.executable, "-c", TRANSFORMERS, *map(str, folders)], capture_output=True,
                          env=dict(os.environ, TORCH_COMPILE_DISABLE="1", HF_HUB_OFFLINE="1"))
    if done.returncode:
        raise AssertionError(done.stderr[-2000:].decode(errors="replace"))
    return [np.load(Path(folder) / "transformers.npy") for folder in folders]


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class BitNet(CliTest):
    def logits(self, model, text, *options):
        out = self.dir / "logits.npy"
        tokens = self.json("logits", model, "-p", text, "--all", "-o", out, *options)["tokens"]
        return tokens, np.load(out)

    def test_all_forms_give_the_reference_s_logits(self):
        for name in ("tiny", "small", "2B-4T, two layers"):
            sizes = sizes_of(name)
            weights = random_weights(sizes, seed=len(name))
            for form, linear_class in FORMS.items():
                with self.subTest(size=name, form=form):
                    folder = write(self.dir / "model", form, sizes, weights)
                    tokens, got = self.logits(folder, cli.text(20))
                    want = Reference(sizes, weights, linear_class).logits(tokens)
                    self.assertGreater(len(tokens), 30)
                    self.assertLess(relative_error(got, want), 1e-3)
                    self.assertGreaterEqual(same_likeliest(got, want), 0.99)

    @unittest.skipIf(NO_TRANSFORMERS, f"not installed: {', '.join(NO_TRANSFORMERS)}")
    def test_all_forms_give_transformers_logits(self):
        folders, logits = [], []
        for name in ("tiny", "small", "2B-4T, two layers"):
            sizes = sizes_of(name)
            weights = random_weights(sizes, seed=len(name))
            for form in FORMS:
                folders.append(write(self.dir / f"{len(folders)}", form, sizes, weights))
                tokens, got = self.logits(folders[-1], cli.text(20))
                (folders[-1] / "tokens.txt").write_text(" ".join(map(str, tokens)))
                logits.append(got)
        for folder, got, want in zip(folders, logits, transformers_logits(folders)):
            with self.subTest(config=(folder / "config.json").read_text()):
                self.assertLess(relative_error(got, want), 1e-3)
                self.assertGreaterEqual(same_likeliest(got, want), 0.99)

    def forms_with_norms(self):
        """A model whose linear layers norm their inputs for themselves (use_rms_norm), in all forms."""
        sizes = sizes_of("tiny")
        weights = random_weights(sizes, seed=7, linear_norms=True)
        for form, linear_class in FORMS.items():
            yield sizes, weights, linear_class, write(self.dir / f"norms_{form}".replace(" ", "_"), form, sizes, weights)

    def test_norms_of_single_layers(self):
        for sizes, weights, linear_class, folder in self.forms_with_norms():
            with self.subTest(form=folder.name):
                tokens, got = self.logits(folder, cli.text(20))
                want = Reference(sizes, weights, linear_class).logits(tokens)
                self.assertLess(relative_error(got, want), 1e-3)
                self.assertGreaterEqual(same_likeliest(got, want), 0.99)
                for part in ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):  # each of them is felt
                    other = {name: np.flip(w) if name.endswith(part + ".rms_norm.weight") else w for name, w in weights.items()}
                    self.assertGreater(relative_error(Reference(sizes, other, linear_class).logits(tokens), want), 2e-3, part)
                own, back = folder.with_name(folder.name + "_own"), folder.with_name(folder.name + "_back")
                self.lowbit("import", folder, own)
                config = json.loads((own / "config.json").read_text())["quantization_config"]
                self.assertEqual((config["format_version"], config["linear_norms"]), (2, {"eps": bitnet_models.LINEAR_EPS}))
                self.lowbit("export", own, back, "--linear-class", linear_class or "autobitlinear")
                for model in (own, back):
                    self.assertEqual(self.logits(model, cli.text(20))[1].tobytes(), got.tobytes(), model)
                calibration = self.dir / "text.txt"
                calibration.write_text(cli.text(2000))
                self.assertIn("use_rms_norm", self.refused("quantize", folder, self.dir / "no", "--format", "int4", "--calib", calibration))
                self.assertIn("use_rms_norm", self.refused("quantize", folder, self.dir / "no", "--format", "int4", "--hadamard"))
        config = json.loads((folder / "config.json").read_text())
        for key, value in (("use_rms_norm", "yes"), ("rms_norm_eps", -1), ("modules_to_not_convert", ["q_proj"])):
            broken = config | {"quantization_config": config["quantization_config"] | {key: value}}
            (folder / "config.json").write_text(json.dumps(broken))
            self.assertIn(key, self.refused("run", folder, "-p", "x"))

    @unittest.skipIf(NO_TRANSFORMERS, f"not installed: {', '.join(NO_TRANSFORMERS)}")
    def test_norms_of_single_layers_are_transformers(self):
        folders, logits = [], []
        for _, _, _, folder in self.forms_with_norms():
            tokens, got = self.logits(folder, cli.text(20))
            (folder / "tokens.txt").write_text(" ".join(map(str, tokens)))
            folders.append(folder)
            logits.append(got)
        for folder, got, want in zip(folders, logits, transformers_logits(folders)):
            self.assertLess(relative_error(got, want), 1e-3, folder)
            self.assertGreaterEqual(same_likeliest(got, want), 0.99, folder)

    def test_the_reference_feels_what_a_block_is_made_of(self):
        """So that the comparison above can fail: each part of the block that BitNet alone has moves the logits far more
        than the bound."""
        sizes = sizes_of("tiny")
        weights = random_weights(sizes, seed=1)
        tokens = list(range(40, 80))
        want = Reference(sizes, weights).logits(tokens)
        for part in ("attn_sub_norm", "ffn_sub_norm"):
            other = {name: np.flip(w) if part in name else w for name, w in weights.items()}
            self.assertGreater(relative_error(Reference(sizes, other).logits(tokens), want), 5e-3, part)

    def test_import_and_export_keep_every_code_and_scale(self):
        sizes = sizes_of("tiny")
        weights = random_weights(sizes, seed=4)
        for form, linear_class in FORMS.items():
            with self.subTest(form=form):
                folder = write(self.dir / form.replace(" ", "_"), form, sizes, weights)
                own, back = self.dir / f"own_{form}", self.dir / f"back_{form}"
                self.lowbit("import", folder, own)
                report = self.json("export", own, back, "--linear-class", linear_class or "autobitlinear")
                self.assertKeys(report, "source target linear_class tensors bytes seconds")
                text = cli.text(12)
                tokens, want = self.logits(folder, text)
                for model in (own, back):
                    self.assertEqual(self.logits(model, text)[1].tobytes(), want.tobytes(), model)
                if linear_class == "autobitlinear":
                    self.assertEqual(tensors_of(back), tensors_of(folder))
                config = json.loads((back / "config.json").read_text())["quantization_config"]
                self.assertEqual(config["quantization_mode"], "offline")
                self.assertIn("--force", self.refused("export", own, back))
                self.lowbit("export", own, back, "--force")

    def test_shapes_that_contradict_the_config_are_named(self):
        sizes = sizes_of("tiny")
        folder = write(self.dir / "model", "packed", sizes, random_weights(sizes, seed=3))
        config = json.loads((folder / "config.json").read_text())
        for key, value, part in (("intermediate_size", 192, "mlp."), ("num_key_value_heads", 4, "self_attn."), ("num_hidden_layers", 3, "layers.2")):
            (folder / "config.json").write_text(json.dumps(config | {key: value}))
            self.assertIn(part, self.refused("run", folder, "-p", "x"), key)
        old = {"architectures": ["BitnetForCausalLM"], "model_type": "llama", "weight_bits": 1, "input_bits": 8, "hidden_act": "silu"}
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "quantization_config"} | old))
        self.assertIn("1bitLLM", self.refused("run", folder, "-p", "x"))

    def test_export_names_what_is_not_ternary(self):
        self.assertIn("ternary with one scale", self.refused("export", self.hf, self.dir / "out"))
        self.assertFalse((self.dir / "out").exists())

    @unittest.skipIf(NO_TRANSFORMERS, f"not installed: {', '.join(NO_TRANSFORMERS)}")
    def test_transformers_loads_an_export(self):
        sizes = sizes_of("tiny")
        folder = write(self.dir / "online", "online", sizes, random_weights(sizes, seed=4))
        tokens, want = self.logits(folder, cli.text(12))
        exports = [self.dir / linear_class for linear_class in ("autobitlinear", "bitlinear")]
        for out in exports:
            self.lowbit("export", folder, out, "--linear-class", out.name)
            (out / "tokens.txt").write_text(" ".join(map(str, tokens)))
        for out, got in zip(exports, transformers_logits(exports)):
            self.assertLess(relative_error(got, want), 1e-3, out)

    def test_gguf_files_hold_the_same_model(self):
        sizes = Sizes(256, 512, 2, 4, 2, len(make_test_model.vocabulary()))
        weights = random_weights(sizes, seed=5)
        text = cli.text(12)
        _, want = self.logits(write(self.dir / "packed", "packed", sizes, weights), text)
        special, vocab = make_test_model.SPECIAL, make_test_model.vocabulary()
        meta = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": vocab,
                "tokenizer.ggml.token_type": [3] * len(special) + [1] * (len(vocab) - len(special)),
                "tokenizer.ggml.merges": make_test_model.MERGES, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
                "tokenizer.ggml.add_bos_token": False}
        for name, pack, options in (("tq2_0", bitnet_models.tq2_0, ()), ("i2_s", bitnet_models.i2s_x86, ("--i2s-layout", "x86"))):
            file = bitnet_models.write_gguf(self.dir / f"{name}.gguf", sizes, weights, meta, make_test_model.gguf_file, pack)
            self.lowbit("import", file, self.dir / name, *options)
            self.assertEqual(self.logits(self.dir / name, text)[1].tobytes(), want.tobytes(), name)
        self.assertIn("--i2s-layout", self.refused("run", self.dir / "i2_s.gguf", "-p", "x"))


@unittest.skipIf(NO_PACKAGE, f"not installed: {', '.join(NO_PACKAGE)}")
class GpuForm(CliTest):
    """The form of BitNet's GPU kernels, by python -m lowbit.bitnet_gpu."""

    def convert(self, direction, source, out, code=0):
        done = subprocess.run([sys.executable, "-m", "lowbit.bitnet_gpu", direction, source, out], capture_output=True, text=True,
                              env=cli.environment(PYTHONPATH=str(cli.SOURCE / "python")))
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def packed_model(self):
        sizes = sizes_of("tiny")
        weights = random_weights(sizes, seed=9)
        return sizes, weights, write(self.dir / "packed", "packed", sizes, weights)

    def test_there_and_back_every_byte_is_kept(self):
        sizes, weights, packed = self.packed_model()
        gpu, back, again = self.dir / "gpu", self.dir / "back", self.dir / "again"
        self.convert("to-gpu", packed, gpu)
        self.convert("from-gpu", gpu, back)
        self.convert("to-gpu", back, again)
        self.assertEqual(tensors_of(back), tensors_of(packed))
        self.assertEqual((again / GPU_FILE).read_bytes(), (gpu / GPU_FILE).read_bytes())
        one, two = (self.json("run", model, "-p", "one two", "-n", 8, "--temp", 0)["tokens"] for model in (packed, back))
        self.assertEqual(one, two)
        # By the words of the seed, element by element.
        found = tensors_of(gpu, GPU_FILE)
        self.assertEqual(len(found), 3 + 12 * sizes.layers)
        for i in range(sizes.layers):
            rows, scales = [], []
            for name, heads in (("q", sizes.heads), ("k", sizes.kv_heads), ("v", 0)):
                codes, scale = ternarized(weights[f"model.layers.{i}.self_attn.{name}_proj.weight"])
                scales.append(bitnet_models.packed_scale("autobitlinear", scale)[1])
                half = sizes.head_dim // 2
                rows += [codes[r if not heads else r // (2 * half) * 2 * half + r % 2 * half + r % (2 * half) // 2] for r in range(len(codes))]
            dtype, shape, data = found[f"layers.{i}.attention.wqkv.weight"]
            self.assertEqual((dtype, shape), ("I8", [128, 16]))
            self.assertEqual(data, seed_002_tiles(np.stack(rows)).tobytes())
            self.assertEqual(found[f"layers.{i}.attention.wqkv.weight_scale"], ("BF16", [4], as_bf16(np.array([*scales, 0]))[2]))
        self.assertEqual(found["output.weight"], found["tok_embeddings.weight"])

    def test_what_does_not_fit_is_named(self):
        _, _, packed = self.packed_model()
        gpu = self.dir / "gpu"
        self.convert("to-gpu", packed, gpu)
        self.assertIn("wanted", self.convert("to-gpu", packed, gpu, code=1))  # OUT is there
        good = tensors_of(gpu, GPU_FILE)
        scale, weight = "layers.0.attention.wo.weight_scale", "layers.1.feed_forward.w2.weight"
        for name, change, part in ((scale, lambda t: (t[0], t[1], t[2][:6] + b"\1\1"), "zeros behind"), (scale, lambda t: (t[0], [2], t[2][:4]), "[4]"),
                                   (scale, lambda t: ("F32", [2], t[2]), "BF16"), (weight, lambda t: (t[0], t[1], b"\0" + t[2][1:]), "code 0"),
                                   (weight, lambda t: (t[0], t[1][::-1], t[2]), "[64, 40]"), (weight, lambda t: None, "nothing"),
                                   ("output.weight", lambda t: (t[0], t[1], t[2][2:] + t[2][:2]), "other numbers"),
                                   ("layers.9.attention_norm.weight", lambda t: good["norm.weight"], "no place")):
            with self.subTest(name, part=part):
                tensors = good | {name: change(good.get(name))}
                write_safetensors(gpu / GPU_FILE, {n: t for n, t in tensors.items() if t})
                self.assertRegex(self.convert("from-gpu", gpu, self.dir / "out", code=1), f"error: .*{re.escape(name.rsplit('.', 1)[0])}.*{re.escape(part)}")
                self.assertFalse((self.dir / "out").exists())
        divided = write(self.dir / "divided", "packed, divided", *self.packed_model()[:2])
        self.assertIn("autobitlinear", self.convert("to-gpu", divided, self.dir / "out", code=1))


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class Text(CliTest):
    """The 2B-4T model's tokenizer, template and ends of text, on a model of its vocabulary's size that always says one
    token."""

    def model(self, says):
        sizes = Sizes(64, 160, 1, 4, 2, 128256)
        weights = random_weights(sizes, seed=6)
        weights["model.embed_tokens.weight"][:, 0] = 8  # of every token, and nothing else counts
        weights["model.norm.weight"][:] = 0
        weights["model.norm.weight"][0] = 1
        head = np.zeros((128256, 64), np.float32)
        head[says, 0] = 1
        folder = write_online(self.dir / "model", sizes, {**weights, "lm_head.weight": head})
        config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False, "bos_token_id": 128000, "eos_token_id": 128001}
        vocab = [t for t in make_test_model.vocabulary() if t not in make_test_model.SPECIAL]
        files = {"config.json": config, "tokenizer.json": bitnet_models.llama3_tokenizer(vocab, make_test_model.MERGES),
                 "generation_config.json": {"bos_token_id": 128000, "eos_token_id": [128001, 128009], "do_sample": True},
                 "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>",
                                           "eos_token": "<|end_of_text|>", "chat_template": bitnet_models.TEMPLATE}}
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content))
        return folder

    def test_both_ends_of_a_text_end_it(self):
        for says, reason in ((128001, "eos"), (128009, "eos"), (70, "length")):
            folder = self.model(says)
            self.lowbit("import", folder, self.dir / "own", "--force")
            for model in (folder, self.dir / "own"):
                self.assertEqual(self.json("run", model, "-p", "one two", "-n", 4, "--temp", 0)["stop_reason"], reason, says)
            answer = self.json("chat", folder, "-n", 4, "--temp", 0, stdin=b"hi\n")["messages"][-1]["content"]
            self.assertEqual(answer == "", reason == "eos", answer)

    def test_template_and_tokens(self):
        folder = self.model(128009)
        messages = [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "12345 o'clock"},
                    {"role": "assistant", "content": "Yes.\n"}, {"role": "user", "content": "And?"}]
        said = self.dir / "said.json"
        said.write_text(json.dumps({"messages": messages}))
        text = self.json("chat", folder, "--render", said)["text"]
        self.assertEqual(text, "<|begin_of_text|>System: Be brief.<|eot_id|>User: 12345 o'clock<|eot_id|>Assistant: Yes.<|eot_id|>"
                               "User: And?<|eot_id|>Assistant: ")
        ids = self.json("tokenize", folder, "-p", text, "--parse-special", "--no-special")["ids"]
        self.assertEqual([i for i in ids if i >= 128000], [128000, 128009, 128009, 128009, 128009])
        self.assertEqual(self.json("tokenize", folder, "-p", "x")["ids"][0], 128000)
