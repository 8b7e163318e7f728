"""Train the weights themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from cotune.core.contracts import Attachable, Trainable, Trained
from cotune.core.errors import Code, CotuneError
from cotune.core.spec import Entry, Role, Share, Spec
from cotune.core.state import Personal, Theta
from cotune.trainable import plain
from cotune.trainable.head import Head, head_entries


class Full(Trainable):
    """Every weight of the backbone, or those whose name contains one of `only`, and the head."""

    kind: ClassVar[str] = "full"
    only: tuple[str, ...] = ()
    head: Head = "shared"

    def attach(self, backbone: Attachable, seed: int, share: Share) -> tuple[Theta, Personal, Spec]:
        """The weights as they are, float32; the seed is not needed."""
        del seed
        entries = head_entries(backbone, self.head)
        ours = set(backbone.head)
        rows = []
        for name, parameter in backbone.model.named_parameters():
            wanted = not self.only or any(part in name for part in self.only)
            if name not in ours and wanted:
                module = name.rpartition(".")[0]
                rows.append(Entry(name, tuple(parameter.shape), Role.FULL, module))
        if not rows:
            raise CotuneError(
                Code.CONFIG,
                "no weight matches",
                where="trainable.only",
                got=", ".join(self.only),
                fix="see `cotune show`",
            )
        spec = Spec((*rows, *entries)).sharing(share)
        values = dict(backbone.model.named_parameters())
        whole = [row.name for row in rows if not values[row.name].is_floating_point()]
        if whole:
            raise CotuneError(
                Code.CONFLICT,
                f"{len(whole)} weights are quantised, and whole numbers have no gradient",
                where="trainable.only" if self.only else "trainable",
                got=whole[0],
                fix='train factors (kind = "lora"), or drop backbone.quantization',
            )
        theta, personal = spec.divide({name: values[name].detach().float().clone() for name in spec.names})
        return theta, personal, spec

    def weights(self, trained: Trained) -> Mapping[str, Tensor]:
        """The model with the trained weights in their places."""
        return plain.weights(trained)
