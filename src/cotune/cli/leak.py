"""What scalars behind seeds tell of the rows that a client trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator

from cotune.core.part import Capability
from cotune.optim import PrivateZO
from cotune.setup import Plan


def leaks(plan: Plan) -> Iterator[str]:
    """A line for each group whose clients send scalars: s slopes of a gradient of d numbers hold s / d of its energy.

    Slopes along known directions are what the gradient is on their span; of its squared length a random span of s out
    of d dimensions holds s / d on average, and all of it once s reaches d. One more where clients are told them too.
    """
    seen = set[tuple[int, int]]()
    for info in plan.clients:
        method, spec = plan.method_of(info.id), plan.spec_of(info.id)
        announced = method.optimizer.traced(method.budget.count(plan.train_rows(info.id)))
        if "scalars" not in method.sent(spec, 1, plan.train_rows(info.id)):
            continue
        if isinstance(method.optimizer, PrivateZO) and method.optimizer.hides:
            continue  # what its noise is worth is a claim with an epsilon
        slopes = sum(math.prod(shape) for _, shape in announced.values())
        trained = sum(spec[name].numel for name in method.scope(spec, 1).train)
        if (slopes, trained) not in seen:
            seen.add((slopes, trained))
            share = min(slopes / trained, 1.0) if trained else 0.0
            yield (
                f"scalars are not private: whoever knows the seeds reads the gradient along {slopes:,} directions a "
                f"round, about {share:.2g} of the energy of its {trained:,} numbers"
            )
    if Capability.SCALARS in plan.method.downlink.needs:
        yield (
            "what comes down to be replayed tells every client the coefficients, seed and weight of every other "
            "one, though not whose they are"
        )
