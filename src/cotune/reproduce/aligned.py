"""The page of Subspace-Reg's comparison: accuracies, geometry and lengths, and the three verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cotune.comparison import Comparison
from cotune.comparison.lengths import WITHIN, Matched
from cotune.reproduce import beside, geometry, paper, quadratic, ranks, tables, verdicts
from cotune.reproduce.geometry import FORMS, Geometry
from cotune.reproduce.page import Page, Titled
from cotune.reproduce.reproduction import Found
from cotune.store import Table

FEDAVG, ORTHONORMAL, SUBSPACE = "lora-fedavg", "orthonormal-b", "subspace-reg"
SOURCE = "subspace_reg"
OVERLAP = "basis_overlap"
COSINES = ("client_global_cosine", "pairwise_cosine")
PREDICTORS = (OVERLAP, *COSINES, "cancellation")
WITHOUT_DATA = "no data, random updates"


@dataclass(frozen=True)
class Aligned:
    """All that the page is made of.

    Attributes:
        steps: of a client in a round.
        best: the rows at their best rates.
        equal: the rows at one length.
        pulled: Subspace-Reg by the strength of its penalty, 0 first and the largest before `orthonormal-b`.
        found: row -> the search for that length.
        nothing: by seed, the numbers of the last round of a simulation without data.
        quadratic: case -> draw -> the squared gradient at each mu.
    """

    steps: int
    best: Comparison
    equal: Comparison
    pulled: Comparison
    found: Mapping[str, Matched]
    nothing: Sequence[Mapping[str, float]]
    quadratic: Mapping[str, Sequence[Sequence[float]]]


def page(name: str, told: Aligned) -> Found:
    """Tables, and verdicts whichever way they fall."""
    all_ = {"swept": told.best, "matched": told.equal, "mu": told.pulled}
    shapes = {which: _geometry(one) for which, one in all_.items()}
    labels = [row["label"] for row in told.pulled.table["rows"] if row["label"] != ORTHONORMAL]
    nothing = {key: [one.get(key) for one in told.nothing] for key in told.nothing[0]}
    correlated = {which: _correlated(all_[which], shapes[which]) for which in ("swept", "matched")}
    fell = _slopes(told.quadratic)
    said = {
        "penalty": [
            *verdicts.penalty(told.pulled.table["pairs"], labels[1:], labels[0]),
            verdicts.overlap(
                _known(shapes["mu"][labels[0]][OVERLAP]),
                _known(shapes["mu"][labels[-1]][OVERLAP]),
                geometry.mean(nothing[OVERLAP]) or math.nan,
                geometry.mean(shapes["swept"][FEDAVG][OVERLAP]) or math.nan,
                labels[-1],
            ),
        ],
        "predictor": [
            verdicts.predicting([ahead for _, ahead in correlated.values()], COSINES),
            *(
                verdicts.predictors(_headed(found), _headed(ahead), text)
                for text, (found, ahead) in zip(("Best rates", "One length"), correlated.values(), strict=True)
            ),
        ],
        "bound": [verdicts.bound({case: words for case, (_, _, words) in fell.items()})],
    }
    seeds = ", ".join(map(str, told.best.table["seeds"]))
    caption = "the last round, mean over seeds; in brackets what it is where nothing agrees"
    blocks: list[str | Titled] = [
        "**Synthetic** sentiment of one sentence (synth:sentiment): **two classes, not multiple choice, not "
        f"HellaSwag**. Clients differ by domain (Dirichlet 0.3), some of them take part in a round; seeds {seeds}; "
        f"chance {told.best.table['chance']:.3f}, and 0.95 is the best there is. Learning rates are chosen row by row "
        "on a spare seed, on rows that the clients hold back.",
        *said["penalty"],
        *said["predictor"],
        *said["bound"],
        scores(told.best, shapes["swept"], "Accuracy at each row's best learning rate"),
        geometry.lengths(shapes["swept"], _rates(told.best), told.steps),
        geometry.forms(shapes["swept"], f"Geometry at the best rates, {caption}"),
        tables.costs(told.best.table),
        tables.search(told.best.table),
        scores(told.equal, shapes["matched"], "Accuracy at one length of update"),
        geometry.lengths(shapes["matched"], _rates(told.equal), told.steps),
        geometry.forms(shapes["matched"], f"Geometry at one length, {caption}"),
        _tried(told.found),
        scores(told.pulled, shapes["mu"], "Accuracy by the strength of the penalty, at subspace-reg's rate", labels[0]),
        geometry.lengths(shapes["mu"], _rates(told.pulled), told.steps),
        geometry.forms({**shapes["mu"], WITHOUT_DATA: nothing}, f"Geometry by the strength of the penalty, {caption}"),
        f"mu = 0 keeps ridge and basis terms of the recipe; orthonormal-b has neither. '{WITHOUT_DATA}': the rounds of "
        "the mu = 0 runs, cohorts, weights, server and lengths of updates, each update in a direction drawn at random.",
        _correlations(correlated),
        _quadratic(told.quadratic, fell),
        f"On the quadratic L = 1, σ² = {quadratic.SPREAD**2:g}, ξ² = 0 and K = 6; the bound's floor, which does "
        f"not depend on mu, is 2 L σ² / K = {2 * quadratic.SPREAD**2 / 6:.3f}.",
        beside.hellaswag(paper.expected(SOURCE)),
        beside.differing(paper.experiment(SOURCE, "roberta-paper-code.toml"), told.best.runs[SUBSPACE][0]),
        *(tables.hashes(one.about) for one in all_.values()),
    ]
    results = {
        "name": name,
        "scale": "laptop",
        **{
            which: {**tables.portable(one.table), "geometry": shapes[which], "hashes": tables.hashed(one.about)}
            for which, one in all_.items()
        },
        "lengths": {
            label: {"lr": one.lr, "reached": one.reached, "target": one.target, "tried": _by_rate(one)}
            for label, one in told.found.items()
        },
        "no_data": nothing,
        "correlations": {
            which: {"accuracy": _plain(found), "ahead": _plain(ahead)} for which, (found, ahead) in correlated.items()
        },
        "quadratic": {
            "mus": list(quadratic.MUS),
            "cases": {
                case: {"values": told.quadratic[case], "slope": slope, "interval": ends, "said": words}
                for case, (slope, ends, words) in fell.items()
            },
        },
        "verdicts": said,
    }
    return Found(Page("Subspace-Reg and its rivals, synthetic", blocks), results, told.best.folder)


def scores(found: Comparison, shapes: Mapping[str, Geometry], caption: str, *more: str) -> Titled:
    """Row by accuracy, loss, and what it gains over `lora-fedavg`, `orthonormal-b`, and others that are named."""
    table = found.table
    labels = [row["label"] for row in table["rows"]]
    others = [label for label in (FEDAVG, ORTHONORMAL, *more) if label in labels]
    rows = []
    for row in table["rows"]:
        cells = [
            row["label"],
            f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]",
            " ".join(f"{value:.2f}" for value in row["by_seed"]),
            f"{geometry.mean(shapes[row['label']][geometry.LOSS]):.3f}",
        ]
        for other in others:
            cells += tables.gain_cells(tables.between(table["pairs"], row["label"], other))
        rows.append(cells)
    heads = [text for other in others for text in (f"gain over {other}", "Holm p", "over seeds")]
    said = (
        f"{caption}, mean over seeds with the 95 % interval over test rows; gains in percentage points, paired by test "
        "row; over seeds: the 95 % interval of the mean over training runs, by Student's t"
    )
    return Titled(said, Table(("row", "accuracy", "by seed", "loss", *heads), rows))


def _geometry(found: Comparison) -> dict[str, dict[str, list[float | None]]]:
    return {label: geometry.measured(runs) for label, runs in found.runs.items()}


def _rates(found: Comparison) -> dict[str, float]:
    return {row["label"]: row["lr"] for row in found.table["rows"]}


def _known(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


Correlated = tuple[dict[str, ranks.Correlation], dict[str, ranks.Correlation]]


def _correlated(found: Comparison, shapes: Mapping[str, Geometry]) -> Correlated:
    """Each predictor with accuracy, and by how much the overlap is ahead, over rows × seeds."""
    score = np.array([row["by_seed"] for row in found.table["rows"]])
    labels = [row["label"] for row in found.table["rows"]]
    grids = {name: np.array([_known(shapes[label][name]) for label in labels]) for name in PREDICTORS}
    return ranks.correlations(grids, score, OVERLAP, 0)


def _headed(found: Mapping[str, ranks.Correlation]) -> dict[str, ranks.Correlation]:
    return {FORMS[name]: one for name, one in found.items()}


def _correlations(found: Mapping[str, Correlated]) -> Titled:
    rows = []
    for name in PREDICTORS:
        cells = [FORMS[name]]
        for correlated, ahead in found.values():
            cells += [verdicts.shown(correlated[name]), verdicts.shown(ahead[name]) if name in ahead else "–"]
        rows.append(cells)
    heads = [text for which in found for text in (f"{which}: with accuracy", f"{which}: overlap minus it")]
    caption = (
        "Spearman's rank correlation over rows × seeds, with the 95 % interval of the bootstrap that draws rows and "
        f"seeds each by itself, {ranks.RESAMPLES} times"
    )
    return Titled(caption, Table(("measure", *heads), rows))


def _by_rate(one: Matched) -> dict[str, float | None]:
    return {f"{lr:g}": length for lr, length in sorted(one.tried.items())}


def _tried(found: Mapping[str, Matched]) -> Titled:
    rows = []
    for label, one in found.items():
        tried = " ".join(f"{lr}: {'diverged' if v is None else f'{v:.3g}'}" for lr, v in _by_rate(one).items())
        rows.append([label, f"{one.lr:g}", "yes" if one.reached else "no", tried])
    target = next(iter(found.values())).target
    caption = (
        f"The search on the spare seed for the rate at which ‖s B A‖ after training is {target:.3g} within "
        f"{100 * WITHIN:.0f} %: the shortest that a row has at its best rate, since a penalty may keep a row from "
        "going as far as the others do at theirs"
    )
    return Titled(caption, Table(("row", "rate", "reached", "rate: length"), rows))


Slope = tuple[float, verdicts.Interval | None, str]


def _slopes(found: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Slope]:
    """Case -> the mean slope over draws, its 95 % interval, and what that means."""
    told = {}
    for case, draws in found.items():
        slopes = [quadratic.slope(values) for values in draws]
        slope, ends = math.fsum(slopes) / len(slopes), tables.over_seeds(slopes)
        told[case] = (slope, ends, verdicts.falls(slope, ends))
    return told


def _quadratic(found: Mapping[str, Sequence[Sequence[float]]], fell: Mapping[str, Slope]) -> Titled:
    rows = []
    for case, (slope, ends, words) in fell.items():
        means = [f"{math.fsum(values) / len(values):.3g}" for values in zip(*found[case], strict=True)]
        interval = "–" if ends is None else f"[{ends[0]:.3f}, {ends[1]:.3f}]"
        rows.append([case, *means, f"{slope:.3f}", interval, words])
    heads = (*(f"mu = {mu:g}" for mu in quadratic.MUS), "slope", "95 % interval", "so")
    caption = (
        "‖∇L‖² on a quadratic with known constants, mean over draws of the problem; slope of its logarithm against "
        f"log mu from mu = {quadratic.FITTED:g} on, with the interval over draws by Student's t"
    )
    return Titled(caption, Table(("case", *heads), rows))


def _plain(found: Mapping[str, ranks.Correlation]) -> dict[str, Any]:
    return {name: asdict(one) for name, one in found.items()}
