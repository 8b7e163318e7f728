"""MMLU's development questions, as the package `lm-eval` carries them: five a subject, each with its answer argued."""

from __future__ import annotations

import json
import re
from collections import Counter

from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.fetch import Package, members
from cotune.task.rows import Table

LM_EVAL = Package(
    distribution="lm-eval",
    version="0.4.13",
    wheel_sha256="5daaa1973bf874005f64f28d3834b875f6886f0d6475878e6a6c821994a5286a",
    module="lm_eval",
)
ARGUED = "lm_eval/tasks/mmlu/flan_cot_fewshot/_cot_prompts.json"
COLUMNS = ("question", "subject", "choices", "answer")
_BETWEEN = "\n\nQ: "
_ASKED = re.compile(r"(.*?)\s*\(A\)(.*?)\(B\)(.*?)\(C\)(.*?)\(D\)(.*?)\nA:(.*)", re.DOTALL)
_ANSWER = re.compile(r"The answer is \(([A-D])\)")


def mmlu_dev(say: Say = silent) -> Table:
    """281 questions of 57 subjects, in the columns of `cais/mmlu`; one whose answer is no option is left out."""
    try:
        told = json.loads(members(LM_EVAL, [ARGUED], say=say)[ARGUED].read_text("utf-8"))
        blocks = [(subject, block) for subject, text in told.items() for block in text.split(_BETWEEN)[1:]]
    except (ValueError, AttributeError) as error:
        got = type(error).__name__
        raise CotuneError(Code.DATA, "not the file that it should be", where=str(LM_EVAL), got=got) from None
    rows, places, skipped = [], [], Counter[str]()
    for number, (subject, block) in enumerate(blocks, start=1):
        asked = _ASKED.fullmatch(block)
        answer = _ANSWER.search(asked[6]) if asked else None
        if asked is None or answer is None:
            skipped["without an answer among its options"] += 1
            continue
        choices = [asked[option].strip() for option in range(2, 6)]
        right = "ABCD".index(answer[1])
        rows.append({"question": asked[1].strip(), "subject": subject, "choices": choices, "answer": right})
        places.append(("mmlu-dev, question", number))
    return Table(COLUMNS, rows, places, names={"answer": ("A", "B", "C", "D")}, skipped=skipped)
