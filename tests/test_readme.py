"""What the README shows of the rows is what there is: every recipe, and the bytes that the demo prints."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from cotune.resolve import recipes

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def test_every_recipe_is_in_the_readmes_list_of_rows_and_nothing_else_is() -> None:
    rows = README.split("| rows | what they are |\n|---|---|\n")[1].split("\n\n")[0].splitlines()
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(recipes())


def test_the_readmes_table_of_bytes_is_what_the_demo_prints() -> None:
    path = ROOT / "demo" / "first_minute.py"
    found = spec_from_file_location("first_minute", path)
    assert found is not None
    assert found.loader is not None
    demo: Any = module_from_spec(found)
    found.loader.exec_module(demo)
    assert f"```\n{demo.what_each_row_sends()}\n```" in README
