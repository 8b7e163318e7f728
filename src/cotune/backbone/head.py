"""What a task's head asks of an architecture: the class that has it, its parameters, and what the model then gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cotune.backbone.builtin import DECODERS, ENCODERS
from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.part import Capability

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

HEADS = ("classification", "causal", "multiple-choice", "masked")
PRETRAINED = frozenset(("causal", "masked"))  # heads that come with the weights
SPLITTABLE = frozenset((*DECODERS, *ENCODERS))  # families whose two halves are known to equal the whole


def auto_class(config: PreTrainedConfig, head: str, labels: int, where: str) -> Any:
    """The transformers class that makes models of `config` with this head.

    Raises:
        CotuneError: E_CONFIG for an unknown head or no labels, E_MODEL for an architecture that has no such head.
    """
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
    kind, what, known = _classes(head)
    fits = decodes(config) if known is None else type(config) in known
    if not fits:
        raise CotuneError(Code.MODEL, f"{config.model_type} is no {what}", where=where)
    return kind


def _classes(head: str) -> tuple[Any, str, Any]:
    """The auto class of a head, what its models are called, and the architectures that it knows; None for decoders."""
    import transformers

    match head:
        case "causal":
            return transformers.AutoModelForCausalLM, "causal language model", None
        case "masked":
            known = transformers.MODEL_FOR_MASKED_LM_MAPPING
            return transformers.AutoModelForMaskedLM, "masked language model", known
        case "multiple-choice":
            # Its head is one number a pair, on the pooler that published runs adapt: a classifier of one class is the
            # same for BERT, and for RoBERTa another model with a million more weights to send.
            known = transformers.MODEL_FOR_MULTIPLE_CHOICE_MAPPING
            return transformers.AutoModelForMultipleChoice, "model of multiple choice", known
        case _:
            known = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
            return transformers.AutoModelForSequenceClassification, "classifier of sequences", known


def one_option(ids: Any, head: str) -> Any:
    """Token ids (rows, tokens) as a model with this head takes them: with multiple choice, of one option a row."""
    return ids[:, None] if head == "multiple-choice" else ids


def head_names(model: Any, head: str) -> tuple[str, ...]:
    """Parameter names of a head that is new; none for a language model, whose head is pretrained."""
    if head in PRETRAINED:
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


def attends(config: PreTrainedConfig) -> bool:
    """Whether any layer of the architecture attends; those that do not, such as Mamba's, carry a state instead."""
    kinds = getattr(config, "layer_types", None)
    return not kinds or set(kinds) != {"linear_attention"}


def gives(config: PreTrainedConfig, head: str) -> frozenset[Capability]:
    """What a method may count on."""
    known = {
        Capability.SPLIT: config.model_type in SPLITTABLE,
        Capability.CAUSAL: head == "causal",
        Capability.DECODER: decodes(config),
    }
    return frozenset(capability for capability, given in known.items() if given)
