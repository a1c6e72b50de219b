#!/usr/bin/env python3
"""Golden numbers of the OLMoE model of `transformers`, for tests/test_parity.c.

Development only; `./dev test` reads the files and needs no Python.  To make them anew:

    python3 -m venv VENV && VENV/bin/pip install torch transformers numpy
    VENV/bin/python tests/parity/olmoe_parity.py tests/golden

One file a case, olmoe_parity_NAME.bin: lines of text, then values.

    # who made it, with versions
    config KEY VALUE          one line a key of the model
    i32 NAME COUNT            each array, in the order of the values that follow
    f32 NAME COUNT
    end
    little-endian values, nothing between the arrays

Arrays: tokens, targets (< 0: no label); log_softmax [tokens, vocabulary]; losses (of each
step, before its update: cross-entropy, plus the two terms where the case has them); for each
parameter under its name on disk `weight/`, `gradient/` (of the first step) and `updated/`
(after three AdamW steps on the same batch).

Traps, from the project's facts: pad_token_id must be None (row 1 of the embedding would be
dead), weight_decay 0 (ours decays matrices only), the balance term is compared at one layer
(transformers averages over all layers at once), where it is experts_per_token times ours.
"""
import sys

import torch
import transformers
from transformers.models.olmoe import modeling_olmoe

STEPS, RATE = 3, 1e-2

CASES = {
    # Gates as they are, as many key-value heads as heads.
    "plain": dict(layers=2, key_value_heads=2, normalize=0, balance=0.0, z=0.0),
    # Gates normalised, both heads share one key-value head.
    "normalized": dict(layers=2, key_value_heads=1, normalize=1, balance=0.0, z=0.0),
    # One layer with the balance term of transformers and OLMoE's z term.
    "terms": dict(layers=1, key_value_heads=2, normalize=0, balance=0.05, z=0.02),
}
WIDTH, HEADS, EXPERTS, CHOSEN, INNER, VOCABULARY, SEQUENCE, BATCH = 16, 2, 4, 2, 16, 48, 16, 2


def build(case):
    config = transformers.OlmoeConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER,
        num_hidden_layers=case["layers"], num_attention_heads=HEADS,
        num_key_value_heads=case["key_value_heads"], num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN, norm_topk_prob=bool(case["normalize"]),
        max_position_embeddings=SEQUENCE, rms_norm_eps=1e-5, rope_theta=10000.0,
        tie_word_embeddings=False, pad_token_id=None, attn_implementation="eager")
    torch.manual_seed(20)
    model = transformers.OlmoeForCausalLM(config).to(torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * 0.6 * parameter.shape[-1] ** -0.5)
    return model


def on_disk(model, tensor_of):
    """Yields (name on disk, array): experts that are fused in memory are cut apart."""
    for name, parameter in model.named_parameters():
        value = tensor_of(parameter).detach()
        base, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for expert in range(EXPERTS):
                yield f"{base}.{expert}.gate_proj.weight", value[expert, :INNER]
                yield f"{base}.{expert}.up_proj.weight", value[expert, INNER:]
        elif last == "down_proj":
            for expert in range(EXPERTS):
                yield f"{base}.{expert}.down_proj.weight", value[expert]
        else:
            yield name, value


def terms(case, router_logits):
    """The two terms of a one-layer model, and the narrowest margin of any choice."""
    margin = 1.0
    for logits in router_logits:
        ordered = torch.softmax(logits.float(), -1).sort(-1, descending=True).values
        margin = min(margin, (ordered[:, CHOSEN - 1] - ordered[:, CHOSEN]).min().item())
    balance = modeling_olmoe.load_balancing_loss_func(tuple(router_logits), EXPERTS, CHOSEN)
    z = sum(torch.logsumexp(logits, -1).square().mean() for logits in router_logits)
    return case["balance"] * balance + case["z"] * z, margin


def run_case(name, case, directory):
    model = build(case)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
    targets = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
    targets[0, 5] = -100
    arrays = [("i32", "tokens", tokens), ("i32", "targets", targets)]
    arrays += [("f32", "weight/" + key, value.clone())
               for key, value in on_disk(model, lambda parameter: parameter)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        router_logits = []
        hooks = [layer.mlp.gate.register_forward_hook(
            lambda _, __, out: router_logits.append(out[0])) for layer in model.model.layers]
        logits = model(tokens, use_cache=False).logits
        for hook in hooks:
            hook.remove()
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY).float(),
                                                 targets.reshape(-1), ignore_index=-100)
        extra, margin = terms(case, router_logits)
        assert margin > 1e-4, f"{name}: step {step}: a choice by {margin}: take another seed"
        loss = loss + extra
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            arrays.append(("f32", "log_softmax", torch.log_softmax(logits.float(), -1).detach()))
            arrays += [("f32", "gradient/" + key, value.clone())
                       for key, value in on_disk(model, lambda parameter: parameter.grad)]
        optimizer.step()
    arrays += [("f32", "updated/" + key, value)
               for key, value in on_disk(model, lambda parameter: parameter)]
    arrays.append(("f32", "losses", torch.tensor(losses)))
    write(f"{directory}/olmoe_parity_{name}.bin", case, arrays)
    print(f"{name}: losses {losses}")


def write(path, case, arrays):
    config = dict(layers=case["layers"], width=WIDTH, heads=HEADS,
                  key_value_heads=case["key_value_heads"], experts=EXPERTS,
                  experts_per_token=CHOSEN, expert_width=INNER, vocabulary=VOCABULARY,
                  sequence=SEQUENCE, batch=BATCH, normalize_gates=case["normalize"],
                  balance_weight=case["balance"] * CHOSEN, z_weight=case["z"],
                  steps=STEPS, learning_rate=RATE)
    with open(path, "wb") as out:
        out.write(f"# made by tests/parity/olmoe_parity.py with torch {torch.__version__}, "
                  f"transformers {transformers.__version__}\n".encode())
        for key, value in config.items():
            out.write(f"config {key} {value!r}\n".encode())
        for kind, name, value in arrays:
            out.write(f"{kind} {name} {value.numel()}\n".encode())
        out.write(b"end\n")
        for kind, name, value in arrays:
            out.write(value.contiguous().numpy().astype("<i4" if kind == "i32" else "<f4").tobytes())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    for case_name, case_row in CASES.items():
        run_case(case_name, case_row, sys.argv[1])
