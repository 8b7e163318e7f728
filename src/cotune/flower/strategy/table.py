"""What the arrays of a Flower app are: PEFT's names as a table of tensors, and as the parameters of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from torch import nn

from cotune.core.contracts import Layout
from cotune.core.errors import Code, CotuneError
from cotune.core.spec import Entry, Role, Spec

_FACTOR = re.compile(r"(?P<before>.+)\.lora_(?:embedding_)?(?P<which>[AB])(?P<after>\..+)?")
_ROLES = {"A": Role.FACTOR_A, "B": Role.FACTOR_B}


def plain(layout: Layout) -> Spec:
    """The table of tensors that mean nothing to each other, sorted by name: the order of every fold and replay."""
    return Spec(tuple(Entry(name, layout[name][1], Role.FULL, name) for name in sorted(layout)))


def paired(layout: Layout) -> Spec:
    """The same, with `PATH.lora_A.weight` (r, d_in) and `PATH.lora_B.weight` (d_out, r) as a pair of factors.

    With the name of an adapter after `lora_A`, and PEFT's names for embeddings, too.

    Raises:
        CotuneError: E_KEYS without a pair, or for a factor without its partner; E_SHAPE for factors that are no two
            matrices with a product.
    """
    rows, halves = [], dict[str, dict[str, Entry]]()
    for entry in plain(layout):
        found = _FACTOR.fullmatch(entry.name)
        if found is None:
            rows.append(entry)
            continue
        module = found["before"] + (found["after"] or "")
        rows.append(replace(entry, role=_ROLES[found["which"]], module=module))
        halves.setdefault(module, {})[found["which"]] = entry
    if not halves:
        some = ", ".join(sorted(layout)[:3]) or "no arrays"
        raise CotuneError(Code.KEYS, "no pair of LoRA factors among the arrays", got=some, expected="….lora_A.weight")
    for module, pair in halves.items():
        if len(pair) != 2:
            fix = "send both factors: the strategy multiplies them"
            raise CotuneError(
                Code.KEYS, "a factor without its partner", where=module, got=f"lora_{next(iter(pair))}", fix=fix
            )
        b, a = pair["B"].shape, pair["A"].shape
        if len(b) != 2 or len(a) != 2 or b[1] != a[0]:
            expected = "B (d_out, r) and A (r, d_in)"
            raise CotuneError(Code.SHAPE, "no product of two matrices", where=module, got=f"{b} {a}", expected=expected)
    return Spec(tuple(rows))


def parameters(model: nn.Module, names: Iterable[str], adapter: str = "default") -> dict[str, str]:
    """PEFT's key -> the parameter of a model that it stands for; a parameter's own name stands for itself.

    PEFT leaves the name of the adapter out of its keys: `PATH.lora_A.weight` is `PATH.lora_A.default.weight`.

    Raises:
        CotuneError: E_KEYS for a name that the model does not have.
    """
    own = [name for name, _ in model.named_parameters()]
    keys = {name.replace(f".{adapter}", "").replace(".modules_to_save", ""): name for name in own}
    known = {**keys, **{name: name for name in own}}
    missing = [name for name in names if name not in known]
    if missing:
        what = f"{len(missing)} arrays have no place in the model"
        raise CotuneError(Code.KEYS, what, where=", ".join(missing[:3]), fix="send what the model has, by PEFT's names")
    return {name: known[name] for name in names}
