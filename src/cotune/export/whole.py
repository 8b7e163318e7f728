"""A whole model in the Hugging Face layout: weights, configuration with the names of its classes, and tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cotune.backbone import Backbone
from cotune.backbone.bind import bind
from cotune.backbone.head import one_option
from cotune.backbone.quiet import quiet
from cotune.core.contracts import Backbone as Attached
from cotune.core.contracts import Corpus, Trained
from cotune.core.errors import Code, CotuneError

CLOSE = 1e-4  # how far logits of a reloaded float32 model may be off, relative to the largest


def save(folder: Path, backbone: Attached, tensors: Mapping[str, Tensor], labels: Sequence[str]) -> None:
    """Write a folder that `from_pretrained` loads; tied weights are written once, and tied again when loaded."""
    model: Any = backbone.model
    with quiet():
        model.save_pretrained(folder, state_dict=dict(tensors))
        backbone.tokenizer.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    if "use_cache" in config:
        config["use_cache"] = True  # a memory, and checkpointing, turn it off for training
    if labels:
        config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        config["label2id"] = {label: i for i, label in enumerate(labels)}
    path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def difference(folder: Path, trained: Trained, corpus: Corpus, config: Backbone) -> float:
    """The largest difference of a logit between a model and the folder that it was saved to, loaded again.

    Raises:
        CotuneError: E_MODEL when that is more than float32 explains.
    """
    settings = {"ref": str(folder.resolve()), "revision": None, "device": "cpu", "gradient_checkpointing": False}
    saved = config.model_copy(update=settings).load(corpus.head, len(corpus.labels), seed=0)
    model: Any = trained.backbone.model
    padding, rows = model.config.pad_token_id, model.get_input_embeddings().num_embeddings
    words = torch.tensor([token for token in range(rows) if token != padding])
    ids = words[torch.arange(16) * (len(words) // 16 or 1) % len(words)].reshape(2, 8)
    ids = one_option(ids, corpus.head)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        with bind(model, trained.tensors, trained.spec, trained.base) as bound:
            expected: Tensor = bound(trained.tensors, **inputs).logits.float()
        got: Tensor = saved.model(**inputs).logits.float()
    moved = float((got - expected).abs().max())
    if config.dtype == "float32" and not moved <= CLOSE * max(1.0, float(expected.abs().max())):
        raise CotuneError(
            Code.MODEL, "the saved model computes something else", where=config.ref, got=f"logits off by {moved:.1e}"
        )
    return moved
