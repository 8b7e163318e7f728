"""Gradient checkpointing for a model that is never in training mode."""

from __future__ import annotations

from typing import Any

from cotune.core.errors import Code, CotuneError


def recompute(model: Any, where: str) -> None:
    """Make every layer keep its input alone and run again in the backward pass, with dropout off as before.

    A layer does so only while it believes that it trains, so that much is said to it and not to the modules inside;
    a rate of dropout that the layer itself holds is set to zero. Calling `train` or `eval` afterwards undoes this.

    Raises:
        CotuneError: E_CONFLICT for an architecture that cannot.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers or not model.supports_gradient_checkpointing:
        raise CotuneError(
            Code.CONFLICT,
            f"{type(model).__name__} has no gradient checkpointing",
            where=where,
            fix="set gradient_checkpointing = false",
        )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.config.use_cache = False
    for layer in layers:
        layer.training = True
        for name, value in vars(layer).items():
            if "drop" in name and isinstance(value, float):
                setattr(layer, name, 0.0)
