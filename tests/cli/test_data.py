"""`cotune data show` says who holds what, and nothing of what the rows say."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from parsed import Page
from typed import refused, typing

from cotune.core.seeds import Seeds
from cotune.task import Classify


def folders(root: Path) -> Path:
    """Three folders, a client each, with a secret in every row."""
    root.mkdir(exist_ok=True)
    for client, rows in (("north", 10), ("south", 20), ("west", 5)):
        (root / client).mkdir()
        lines = [json.dumps({"text": f"the secret {i} of {client}", "label": i % 2}) for i in range(rows)]
        (root / client / "rows.jsonl").write_text("\n".join(lines))
    return root


def test_it_shows_each_clients_rows_and_labels_and_no_text(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = typing(capfd)("data", "show", str(folders(tmp_path)), "--set", "test=0", "--set", "held=0.2")
    assert said.status == 0
    assert "task classify, from columns text, label" in said.out
    assert [line.split()[:4] for line in said.out.splitlines() if line.startswith(("north", "south", "west"))] == [
        ["north", "8", "+", "2"],
        ["south", "16", "+", "4"],
        ["west", "4", "+", "1"],
    ]
    assert "0 5, 1 5" in said.out
    assert "secret" not in said.out


def test_the_division_can_be_tried_before_it_is_used(capfd: pytest.CaptureFixture[str]) -> None:
    partition = 'partition={kind = "dirichlet", clients = 3, alpha = 0.1}'
    said = typing(capfd)("data", "show", "synth:sentiment?clients=3&rows=90", "--set", partition)
    assert "partition kind=dirichlet clients=3 alpha=0.1" in said.out
    other = typing(capfd)("data", "show", "synth:sentiment?clients=3&rows=90", "--set", partition, "--seed", "5")
    assert other.out != said.out


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (("data", "shw"), "E_CONFIG", 2),
        (("data", "show", "./nothing"), "E_DATA", 3),
        (("data", "show", "synth:sentiment", "--set", "txet=x"), "E_CONFIG", 2),
    ],
)
def test_mistakes_are_one_line(
    words: tuple[str, ...], code: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(typing(capfd)(*words), code, status)


def test_who_holds_what_is_one_page_that_loads_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "out" / "data.html"
    said = typing(capfd)("data", "show", str(folders(tmp_path / "clinics")), "--set", "test=0", "--plot", str(page))
    assert said.out.splitlines()[-1] == f"written · {page}"
    html = page.read_text()
    assert "secret" not in html
    assert "default-src &#x27;none&#x27;" in html
    read = Page(html)
    assert all(":" not in (a.get("src") or a.get("href") or "") for _, a in read.tags)
    data = read.data
    assert data["columns"]["r0/holders"] == ["north", "south", "west"]
    assert [data["columns"][f"r0/holds/{i}"] for i in range(4)] == [[5, 10, 3], [5, 10, 2], [8, 16, 4], [2, 4, 1]]
    assert [option["label"] for option in data["choices"]["holds"]] == ["Class", "Use"]
    (plot,) = data["plots"].values()
    assert {plot["by"], *plot["choices"]} <= {*data["choices"]}, "what the plot follows is there"


def test_a_manifest_has_the_hash_of_every_row_in_order_and_no_row(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where, file = str(folders(tmp_path / "clinics")), tmp_path / "rows.json"
    typing(capfd)("data", "show", where, "--set", "test=0.2", "--seed", "3", "--manifest", str(file))
    told = json.loads(file.read_text())
    corpus = Classify(data=where, test=0.2).load(Seeds(seed=3))

    def by_hand(rows: object) -> list[str]:
        assert isinstance(rows, list)
        return [hashlib.sha256(f"{row['label']}\0{row['text']}".encode()).hexdigest() for row in rows]

    assert (told["version"], told["task"], told["seed"]) == (1, where, 3)
    assert set(told["clients"]) == {"north", "south", "west"}
    for name, split in corpus.clients.items():
        one = told["clients"][name]
        assert (one["train"], one["held"]) == (by_hand(split.train), by_hand(split.held))
        assert one["sha256"] == hashlib.sha256("".join([*one["train"], *one["held"]]).encode()).hexdigest()
        assert one["sha256"] == corpus.facts["manifest"][name]
    assert told["test"] == {"sha256": corpus.facts["test_manifest"], "rows": by_hand(corpus.test)}
    assert "secret" not in file.read_text()


def test_two_sites_find_the_rows_that_both_have(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hashes = []
    for site, numbers in (("a", range(10)), ("b", range(7, 20))):
        path, file = tmp_path / f"{site}.jsonl", tmp_path / f"{site}.json"
        path.write_text("\n".join(json.dumps({"text": f"row {n}", "label": n % 2}) for n in numbers))
        alone = f'partition={{kind = "alone", client = "{site}"}}'
        typing(capfd)("data", "show", str(path), "--set", alone, "--set", "test=0", "--manifest", str(file))
        told = json.loads(file.read_text())["clients"][site]
        hashes.append({*told["train"], *told["held"]})
    assert len(hashes[0] & hashes[1]) == 3


def test_overlap_is_counted_and_test_rows_at_a_client_are_a_warning(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [{"text": "again" if n % 4 == 0 else f"row {n}", "label": n % 2, "from": n % 4} for n in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    iid = ("--set", 'partition={kind = "iid", clients = 2}')
    said = typing(capfd)("data", "show", str(path), *iid).out
    found = re.search(
        r"overlap · again in the same client (\d+) · in several clients (\d+) · of the test at a client (\d+)", said
    )
    assert found is not None
    within, between, test = map(int, found.groups())
    assert (within, between + test) == (between - 2, 10)
    assert test > 0
    assert f"warning · test rows that a client has too: {test} " in said
    together = typing(capfd)("data", "show", str(path), *iid, "--set", "group=from").out
    assert "of the test at a client 0" in together
    assert "warning" not in together


def test_a_long_tail_is_told_with_who_has_it(capfd: pytest.CaptureFixture[str]) -> None:
    partition = 'partition={kind = "long-tail", clients = 4, tail = 1, by = "domain"}'
    said = typing(capfd)("data", "show", "synth:sentiment?clients=3&rows=90", "--set", partition).out
    assert "partition kind=long-tail clients=4 holders=1 tail=1 by=domain · seed 0" in said
    assert re.search(r"tail by domain · 1 rare classes: domain-\d \(client-0\d\)\n", said)
    assert re.search(r"test rows · \d+ head, \d+ tail\n", said)


def test_a_map_of_domains_is_told_by_its_names(capfd: pytest.CaptureFixture[str]) -> None:
    partition = 'partition={kind = "domains", key = "domain", domains = {left = ["domain-0"]}, rest = "right"}'
    said = typing(capfd)("data", "show", "synth:sentiment?clients=3&rows=90", "--set", partition).out
    assert "partition kind=domains key=domain domains=left rest=right · seed 0" in said
    assert [line.split()[0] for line in said.splitlines() if "+" in line and "rows" not in line] == ["left", "right"]


def test_a_file_that_cannot_be_written_is_one_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ("data", "show", "synth:sentiment?clients=3&rows=90", "--manifest", str(tmp_path / "file" / "rows.json"))
    refused(typing(capfd)(*words), "E_DISK", 4)
