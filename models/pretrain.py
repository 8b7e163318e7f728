"""The training loop and the folder that the scripts beside this one share: one thread, fixed seeds, no network."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cotune.core.state import digest

WARMUP = 100
OUT = Path(__file__).parents[1] / "src/cotune/backbone/models"


def llama(seed: int, **sizes: Any) -> nn.Module:
    """A causal Llama with a tied head, drawn from `seed`; it sets torch to one thread, because threads change bits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model: nn.Module = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, attention_dropout=0.0, **sizes))
    return model


def cosine(step: int, steps: int) -> float:
    """Half a cosine, from 1 to 0."""
    return 0.5 + 0.5 * math.cos(math.pi * step / steps)


def train(
    model: nn.Module,
    loss: Callable[[int], Tensor],
    rate: Callable[[int, int], float],
    *,
    steps: int,
    lr: float,
    decay: float,
    memory: float,
) -> float:
    """The seconds that `steps` of AdamW took, with a linear warm-up; prints the loss now and then.

    Args:
        model: changed in place.
        loss: of the model on the batch of a step.
        rate: the learning rate of a step among all steps, as a share of `lr`.
        steps: how many.
        lr: the learning rate at its highest.
        decay: of matrices; norms have none.
        memory: the second beta of Adam.
    """
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, memory))
    start, total = time.process_time(), torch.zeros(())
    for step in range(steps):
        heat = min(1.0, (step + 1) / WARMUP) * rate(step, steps)
        for group in optimizer.param_groups:
            group["lr"] = lr * heat
        here = loss(step)
        optimizer.zero_grad()
        here.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += here.detach()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            count = (step % 100) + 1
            print(f"step {step + 1:5d}  loss {total / count:.4f}  {time.process_time() - start:6.0f} s", flush=True)
            total = torch.zeros(())
    return time.process_time() - start


def rounded(model: Any) -> Any:
    """The model with every weight rounded to float16, in float32: what a reader of the saved folder gets."""
    return model.half().float().eval()


def save(folder: Path, model: Any, tokenizer: Any, card: Iterable[tuple[str, object]]) -> None:
    """Write a Hugging Face folder in float16 and `card.toml`: what the model is, and what was measured.

    Args:
        folder: made if need be.
        model: as `rounded` gives it.
        tokenizer: of transformers.
        card: keys and values; the digests of what is in the folder are added.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    rows = [*card, ("weights_digest", digest(dict(model.named_parameters())))]
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    files = [folder / name for name in ("config.json", "model.safetensors", "tokenizer.json")]
    rows += [(f"sha256_{file.stem}", hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]
    lines = [f"{key} = {_toml(value)}" for key, value in rows]
    (folder / "card.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"wrote {folder}: {sum(file.stat().st_size for file in folder.iterdir())} bytes")


def _toml(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
