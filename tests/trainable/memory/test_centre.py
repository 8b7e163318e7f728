from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import experiment

from cotune.backbone import Backbone
from cotune.core.state import Named
from cotune.trainable import Memory
from cotune.trainable.memory import Rules
from cotune.trainable.memory.centre import centres

WINDOWS = [[10, 11, 12, 13], [200, 9, 30], [40]]


@pytest.mark.parametrize("ref", ["random:llama?kv_heads=2", "random:gpt2"])
def test_offsets_are_the_mean_raw_key_and_query_over_all_tokens(ref: str) -> None:
    backbone = Backbone(ref=ref).load("causal", 0, seed=1)
    theta, _, _ = Memory(rules=Rules(centre=True), factors=False).attach(backbone, 0, "all")
    found = centres(backbone.model, WINDOWS, "cpu")
    assert set(found) == {name for name in theta if name.endswith("_centre")}
    plain: Any = Backbone(ref=ref).load("causal", 0, seed=1).model
    seen = []
    attention = plain.model.layers[0].self_attn if "llama" in ref else plain.transformer.h[0].attn
    projection = attention.k_proj if "llama" in ref else attention.c_attn
    projection.register_forward_hook(lambda module, inputs, output: seen.append(output[0].double()))
    with torch.no_grad():
        for window in WINDOWS:
            plain(input_ids=torch.tensor([window]))
    keys = torch.cat(seen) if "llama" in ref else torch.cat(seen).chunk(3, dim=-1)[1]
    key = next(name for name in found if name.endswith("key_centre"))
    torch.testing.assert_close(found[key].double().flatten(), keys.mean(0), atol=1e-6, rtol=0)


def test_a_run_starts_from_the_public_text_that_it_names_and_from_no_other() -> None:
    def start(text: str | None) -> Named:
        rules: dict[str, object] = {"method.trainable.rank": 2, "method.trainable.rules.centre": True}
        rules |= {"method.trainable.centre_text": text} if text else {}
        found = experiment("fednl", backbone__ref="random:llama", **rules)
        return found.blueprint().build().start

    zero, prose = start(None), start("synth:prose?rows=40")
    names = [name for name in zero if name.endswith("_centre")]
    assert not any(bool(zero[name].any()) for name in names)
    assert all(bool(prose[name].any()) for name in names)
    assert prose.sha256() == start("synth:prose?rows=40").sha256() != start("synth:prose?rows=40&seed=1").sha256()
    assert all(torch.equal(zero[name], prose[name]) for name in zero if name not in names)


def test_a_text_to_centre_on_without_centring_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rules\.centre is off"):
        Memory(centre_text="synth:prose")
