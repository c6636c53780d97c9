"""python -m lowbit.recover: see docs/recovery.md."""

from __future__ import annotations

import argparse
import json
import sys

from ..errors import LowbitError
from .arguments import HelpAll, add_sampling, methods, old_name, pattern, say_renamed, size


def parser(everything: bool = False) -> argparse.ArgumentParser:
    """everything: its help shows the options that few need, too."""
    p = argparse.ArgumentParser(prog="python -m lowbit.recover", description="Trains a low-bit checkpoint to answer as its teacher does; "
                                "the formats stay.")
    p.add_argument("checkpoint", help="checkpoint directory to start from")
    p.add_argument("--teacher", required=True, help="the model it was quantized from: GGUF file, Hugging Face directory or checkpoint")
    p.add_argument("--data", required=True, nargs="+", metavar="FILE", help="texts to train on (UTF-8), or token ids (.npy)")
    p.add_argument("-o", "--out", help="checkpoint directory to write [CHECKPOINT-recovered]")
    p.add_argument("--tokens", type=size, default="20M", help="tokens of distillation [20M]")
    p.add_argument("--method", type=methods, default="blocks,full",
                   help="blocks: block after block, text alone; then, against the teacher's logits: full (latent weights), lora (merged "
                   "before rounding) or scales (scales and norms only); several in turn between commas [blocks,full]")
    p.add_argument("--sample", type=size, default="4M", help="tokens to sample from the teacher and mix in; 0: text alone [4M]")
    p.add_argument("--batch", type=int, default=16, help="sequences of a step [16]")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<i> [auto]")
    p.add_argument("--force", action="store_true", help="replace OUT; write also what got worse")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    p.add_argument("--quiet", action="store_true")
    p.add_argument("--help-all", action=HelpAll, everything=lambda: parser(everything=True))

    def more(*names, help=None, **arguments):
        p.add_argument(*names, help=help if everything else argparse.SUPPRESS, **arguments)

    add_sampling(p, shown=everything)
    more("--to-tables", type=pattern, metavar="PATTERN", help="layers on a trellis with this regular expression in their names (. for all) begin anew in "
                   "tables of the same bits, codebook2 and codebook3, whose codes are trained [codes on a trellis stay]")
    more("--text-share", type=float, default=0.3, help="part of each batch that is text, when there are samples [0.3]")
    more("--sequence-length", type=int, default=512, help="tokens of a sequence [512]")
    more("--lr", type=float, help="peak rate of latent weights or low-rank factors; in mixed checkpoints of those with the fewest "
                   "levels, others in proportion [by the number of levels]")
    more("--lr-times", type=float, default=1.0, metavar="FACTOR", help="without --lr: the default rates of all numbers of levels times this [1]")
    more("--lr-scales", type=float, default=2e-5, help="peak rate of scales; of those of tables, in proportion to their smaller size [2e-5]")
    more("--lr-norms", type=float, default=2e-4, help="peak rate of norms [2e-4]")
    more("--lr-end", type=float, default=0.0, help="part of the peak rate that is left at the end [0]")
    more("--latent-shrink", type=float, default=0.6, help="before `full`, part of its distance to its quantized value that each latent weight keeps [0.6]")
    more("--decay", type=float, default=0.0, help="weight decay of latent weights towards the teacher's, in blocks and in `full`: each step takes "
                   "this times the rate of their distance [0]")
    more("--soft-share", type=float, default=0.5, help="part of the loss that is taken at --soft-temperature, where unlikely tokens count "
                   "for more [0.5]")
    more("--soft-temperature", type=float, default=4.0, help="[4]")
    more("--swap-spans", type=float, default=0.0, help="part of each batch's sequences that swap every second span of 8 to 48 tokens, in pairs: "
                   "passages that go on with something else [0]")
    more("--score-weight", type=float, default=0.0, help="weight of a loss on scores: on how far the student's log-probability of 8 tokens in "
                   "turn, as they stand in the sequence, lies from the teacher's [0]")
    more("--train-embedding", action="store_true", help="distillation trains the embedding too, and the head where it is another table; "
                   "they keep their format and scales")
    more("--lr-embedding", type=float, default=3e-5, help="peak rate of those [3e-5]")
    more("--rank", type=int, default=16, help="of lora [16]")
    more("--block-steps", type=int, default=300, help="steps of each block [300]")
    more("--block-sequences", type=int, default=512, help="sequences of text that blocks are trained on [512]")
    more("--block-text-share", type=float, default=1.0,
                   help="part of those that is text, the others sampled; below 1 `blocks` is no longer quantization on the text alone [1]")
    more("--block-lr", type=float, help="peak rate of latent weights in blocks [by the number of levels]")
    more("--block-lr-scales", type=float, default=1e-4)
    more("--seed", type=int, default=0)
    more("--threads", type=int, help="threads on a CPU")
    more("--samples", metavar="FILE.npz", help="keep sampled sequences there, and take them from there when it exists")
    more("--held-out", metavar="FILE.npz", help="sampled sequences to report on, in place of the last of each kind, which are then trained on too")
    more("--lowbit", metavar="PROGRAM", help="the lowbit command line, for its tokenizer [from PATH]")
    more("--save-every", type=float, default=120.0, metavar="SECONDS", help="save the state so often [120]")
    more("--stop-after", type=int, metavar="STEPS", help="save and stop after so many steps; the same command continues")
    more("--keep-stages", action="store_true", help="also write what each method but the last ends with, to OUT-METHOD")
    more("--no-compile", dest="compile", action="store_false", help="do not compile kernels (CUDA)")
    more("--no-graph", dest="graph", action="store_false", help="do not capture steps as CUDA graphs")
    old_name(p, "--window", "--sequence-length", type=int)
    old_name(p, "--settle", "--latent-shrink", type=float)
    old_name(p, "--exchange", "--swap-spans", type=float)
    old_name(p, "--block-windows", "--block-sequences", type=int)
    old_name(p, "--held", "--held-out")
    return p


def main(arguments=None) -> int:
    command = parser()
    options = command.parse_args(arguments)
    say_renamed(options)
    shares = (options.text_share, options.block_text_share, options.latent_shrink, options.soft_share, options.swap_spans)
    if options.batch < 1 or options.rank < 1 or options.block_steps < 1 or not (
            all(0 <= share <= 1 for share in shares) and 0 <= options.decay <= 100 and 0.1 <= options.soft_temperature <= 100 and 0 <= options.score_weight <= 100):
        command.error("wanted --batch, --rank and --block-steps of at least 1, --text-share, --block-text-share, --latent-shrink, --soft-share and --swap-spans between "
                      "0 and 1, --decay and --score-weight from 0 to 100 and a --soft-temperature from 0.1 to 100")
    options.out = options.out or options.checkpoint.rstrip("/") + "-recovered"
    try:
        import torch
    except ImportError:
        print("error: python: got no package torch, wanted it, to train. hint: pip install torch", file=sys.stderr)
        return 1
    from .session import Options, Session, Stopped

    try:
        report = Session(Options(**vars(options))).run()
    except torch.cuda.OutOfMemoryError:
        print("error: memory: got less than the run needs on the device, wanted more. hint: a smaller --batch or --sequence-length", file=sys.stderr)
        return 1
    except (LowbitError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("interrupted; the same command continues from the last saved state", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(report))
    elif not options.quiet:
        after = report["after"]
        print(f"{options.out}: held-out text: KL {after['kl']:.4f}, PPL {after['ppl']:.2f}, top-1 {100 * after['top1']:.1f} %; "
              f"{report['seconds']:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
