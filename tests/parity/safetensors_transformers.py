#!/usr/bin/env python3
"""Do checkpoints cross between heddle and `transformers`?  Both ways, with losses to compare.

Development only.  It needs a built heddle and an environment with torch:

    python3 -m venv VENV && VENV/bin/pip install torch transformers numpy
    VENV/bin/python tests/parity/safetensors_transformers.py build/release/bin/heddle

1. heddle trains a small model; transformers loads its checkpoint/model.safetensors by names
   and shapes, nothing missing and nothing left over, and its loss on the same text is that of
   `heddle run --evaluate`.
2. transformers draws and saves a model, in float32 and in bfloat16; `heddle run --resume
   DIRECTORY --evaluate` takes it, and the losses agree.

It ends with code 1 and says which comparison failed.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

SEQUENCE, VOCABULARY = 16, 256
KEYS = {
    "model.layers": 4, "model.width": 32, "model.heads": 4, "model.experts": 4,
    "model.key_value_heads": 2, "model.experts_per_token": 2, "model.expert_width": 48,
    "model.vocabulary": VOCABULARY, "model.sequence": SEQUENCE, "kernels.precision": "f32",
    "pipeline.ranks": 2, "pipeline.microbatches": 4, "data.microbatch_size": 2,
    "train.warmup_steps": 0, "data.corpus": "text.txt",
}


def config():
    return transformers.OlmoeConfig(
        vocab_size=VOCABULARY, hidden_size=KEYS["model.width"],
        intermediate_size=KEYS["model.expert_width"], num_hidden_layers=KEYS["model.layers"],
        num_attention_heads=KEYS["model.heads"], num_key_value_heads=KEYS["model.key_value_heads"],
        num_experts=KEYS["model.experts"], num_experts_per_tok=KEYS["model.experts_per_token"],
        max_position_embeddings=SEQUENCE, rope_theta=1e4, rms_norm_eps=1e-5,
        norm_topk_prob=False, pad_token_id=None, eos_token_id=None, bos_token_id=None,
        tie_word_embeddings=False, attn_implementation="eager")


def heddle(binary, work, *words):
    line = [binary, "run", *words, *(f"{key}={value}" for key, value in KEYS.items())]
    done = subprocess.run(line, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(line)}: exit {done.returncode}: {done.stderr}{done.stdout}")
    return done.stdout


def evaluate(binary, work, resume):
    return json.loads(heddle(binary, work, "--evaluate", "--resume", resume, "--json"))["loss"]


def loss_of(model, text):
    """Mean over every sample of the text, each of `SEQUENCE` tokens and one label more."""
    count = (len(text) - 1) // SEQUENCE
    samples = torch.stack([text[i * SEQUENCE:i * SEQUENCE + SEQUENCE + 1] for i in range(count)])
    with torch.no_grad():
        logits = model(input_ids=samples[:, :-1]).logits.float()
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, VOCABULARY), samples[:, 1:].reshape(-1)).item()


def compare(what, ours, theirs, bound):
    relative = abs(ours - theirs) / theirs
    print(f"{what}: heddle {ours:.8f}, transformers {theirs:.8f}, relative {relative:.1e}")
    if not relative < bound:
        sys.exit(f"{what}: more than {bound:.0e} apart")


def ours_to_theirs(binary, work, text):
    heddle(binary, work, "train.steps=8", "output.directory=run", "--quiet")
    model = transformers.OlmoeForCausalLM(config()).eval()
    directory = work / "ours"
    directory.mkdir()
    config().save_pretrained(directory)
    (directory / "model.safetensors").symlink_to(work / "run/checkpoint/model.safetensors")
    model, report = transformers.OlmoeForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True, attn_implementation="eager")
    for name, entries in report.items():
        if entries:
            sys.exit(f"transformers loads heddle's file with {name}: {entries}")
    compare("heddle's checkpoint", evaluate(binary, work, "run"), loss_of(model.eval(), text), 1e-5)
    moments = load_file(work / "run/checkpoint/optimizer.safetensors")
    if len(moments) != 2 * len(load_file(work / "run/checkpoint/model.safetensors")):
        sys.exit("two moments a parameter are expected")


def theirs_to_ours(binary, work, text, dtype, name):
    torch.manual_seed(7)
    model = transformers.OlmoeForCausalLM(config()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)  # away from the uniform guess
    directory = work / name
    model.to(dtype).save_pretrained(directory)
    # Read anew: the angles of a model that was bfloat16 once stay rounded.
    model = transformers.OlmoeForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager")
    theirs = loss_of(model.eval(), text)
    compare(f"transformers' {name}", evaluate(binary, work, name), theirs, 1e-5)


def main():
    transformers.utils.logging.disable_progress_bar()
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as path:
        work = pathlib.Path(path)
        letters = bytes((i * i * 7 + i // 3) % 251 for i in range(2000))
        (work / "text.txt").write_bytes(letters)
        text = torch.tensor(list(letters), dtype=torch.long)
        ours_to_theirs(binary, work, text)
        theirs_to_ours(binary, work, text, torch.float32, "float32")
        theirs_to_ours(binary, work, text, torch.bfloat16, "bfloat16")
    print("checkpoints cross both ways")


if __name__ == "__main__":
    main()
