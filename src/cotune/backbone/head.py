"""What a task's head asks of an architecture: the class that has it, its parameters, and what the model then gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cotune.backbone.builtin import DECODERS, ENCODERS
from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.part import Capability

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

HEADS = ("classification", "causal")
SPLITTABLE = frozenset((*DECODERS, *ENCODERS))  # families whose two halves are known to equal the whole


def auto_class(config: PreTrainedConfig, head: str, labels: int, where: str) -> Any:
    """The transformers class that makes models of `config` with this head.

    Raises:
        CotuneError: E_CONFIG for an unknown head or no labels, E_MODEL for an architecture that has no such head.
    """
    import transformers

    if head not in HEADS:
        raise CotuneError(Code.CONFIG, f"no head '{head}'", fix=nearest(head, HEADS))
    if head == "classification" and labels < 1:
        raise CotuneError(Code.CONFIG, "a classification head needs classes", where=where, got=labels)
    if config.is_encoder_decoder:
        raise CotuneError(
            Code.MODEL,
            "encoder–decoder models are not supported",
            where=where,
            got=config.model_type,
            expected="one stack of layers: a row is one sequence, and a split cuts the stack in two",
        )
    kind: Any
    if head == "causal":
        kind, what = transformers.AutoModelForCausalLM, "causal language model"
        fits = decodes(config)
    else:
        kind, what = transformers.AutoModelForSequenceClassification, "classifier of sequences"
        fits = type(config) in transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if not fits:
        raise CotuneError(Code.MODEL, f"{config.model_type} is no {what}", where=where)
    return kind


def head_names(model: Any, head: str) -> tuple[str, ...]:
    """Parameter names of a classification head; none for a causal model, whose head is pretrained."""
    if head == "causal":
        return ()
    return tuple(name for name, _ in model.named_parameters() if not name.startswith(f"{model.base_model_prefix}."))


def check_complete(absent: Sequence[str], head: Sequence[str], where: str) -> None:
    """Raise E_MODEL when weights of the backbone itself were not read; a pooler may be new, as the head is."""
    lost = [name for name in absent if name not in head and "pooler" not in name.split(".")]
    if lost:
        raise CotuneError(
            Code.MODEL,
            f"{len(lost)} weights of the backbone are missing or of another shape",
            where=where,
            got=", ".join(lost[:3]),
            expected="weights that the config describes",
        )


def decodes(config: PreTrainedConfig) -> bool:
    """Whether a token of the architecture sees only what came before it."""
    import transformers

    masked = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    return type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and not masked


def gives(config: PreTrainedConfig, head: str) -> frozenset[Capability]:
    """What a method may count on."""
    known = {
        Capability.SPLIT: config.model_type in SPLITTABLE,
        Capability.CAUSAL: head == "causal",
        Capability.DECODER: decodes(config),
    }
    return frozenset(capability for capability, given in known.items() if given)
