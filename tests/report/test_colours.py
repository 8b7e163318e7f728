"""Colours of runs, message parts and states stay apart for every kind of colour vision, on light and on dark."""

from __future__ import annotations

import re
from importlib import resources
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Machado, Oliveira and Fernandes 2009, severity 1.0.
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
SCHEMES = ("light", "dark")
APART = 10.0  # CIE 1976 distance; about 2.3 is just noticeable


def colours(family: str, scheme: str) -> list[Array]:
    css = resources.files("cotune.report").joinpath("assets", "report.css").read_text("utf-8")
    found = re.findall(rf"--{family}: light-dark\((#\w{{6}}), (#\w{{6}})\)", css)
    return [linear(pair[SCHEMES.index(scheme)]) for pair in found]


def linear(text: str) -> Array:
    plain = np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    light: Array = np.where(plain <= 0.04045, plain / 12.92, ((plain + 0.055) / 1.055) ** 2.4)
    return light


def lab(light: Array) -> Array:
    x, y, z = np.cbrt(XYZ @ light / XYZ.sum(1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def luminance(light: Array) -> float:
    return float(XYZ[1] @ light)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(("family", "count"), [(r"run-\d", 8), (r"part-\d", 8), (r"bad-\d|good", 5), (r"heat-\d", 3)])
def test_colours_that_stand_beside_each_other_stay_apart(family: str, count: int, vision: str, scheme: str) -> None:
    seen = [lab(np.clip(VISION[vision] @ one, 0, 1)) for one in colours(f"(?:{family})", scheme)]
    assert len(seen) == count
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) >= APART


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("text", "least"), [("ink", 12.0), ("muted", 4.5), ("accent", 4.5)])
def test_text_can_be_read(text: str, least: float, scheme: str) -> None:
    (ink,) = colours(text, scheme)
    for ground in ("page", "surface", "sunken"):
        (paper,) = colours(ground, scheme)
        light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= least
