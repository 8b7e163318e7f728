"""A data reference becomes rows, or one line that says which row cannot be read and never what stands in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.core.errors import Code, CotuneError
from cotune.task import files
from cotune.task.table import Table, read

CANARY = "canary-7f3a"


def written(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return str(path)


def lines(rows: Sequence[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def refused(reference: str, *said: str) -> CotuneError:
    with pytest.raises(CotuneError) as caught:
        read(reference)
    assert caught.value.code is Code.DATA
    for word in said:
        assert word in str(caught.value)
    assert CANARY not in str(caught.value)
    context: BaseException | None = caught.value
    while context is not None:  # nor in what a debugger would show
        assert CANARY not in str(context)
        context = context.__context__
    assert "\n" not in str(caught.value)
    return caught.value


ROWS = [{"text": "fine", "label": 1}, {"text": "2020-01-01", "label": 0}, {"text": "NA", "label": 1}]


def as_text(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [{name: str(cell) for name, cell in row.items()} for row in rows]


def test_every_kind_of_file_gives_the_same_rows_in_the_same_column_order(tmp_path: Path) -> None:
    parquet = tmp_path / "d.parquet"
    datasets.Dataset.from_list(ROWS).to_parquet(str(parquet))
    names = [
        written(tmp_path, "a.jsonl", lines(ROWS)),
        written(tmp_path, "b.json", json.dumps(ROWS, indent=2)),
        written(tmp_path, "c.json", lines(ROWS)),
        written(tmp_path, "e.csv", "text,label\nfine,1\n2020-01-01,0\nNA,1\n"),
        str(parquet),
    ]
    for name in names:
        table = read(name)
        assert table.columns == ("text", "label")
        assert as_text(table.rows) == as_text(ROWS)
        assert len(table.places) == 3


def test_texts_that_look_like_dates_numbers_or_gaps_stay_texts(tmp_path: Path) -> None:
    texts = ["2020-01-01", "NA", "null", "nan", "001", "1.50", "True", "", "None", "inf"]
    csv = written(tmp_path, "a.csv", "text,n\n" + "".join(f"{text},x\n" for text in texts))
    assert [row["text"] for row in read(csv).rows] == texts
    jsonl = written(tmp_path, "a.jsonl", lines([{"text": text} for text in texts]))
    assert [row["text"] for row in read(jsonl).rows] == texts


@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))),
        min_size=1,
        max_size=6,
    )
)
def test_any_text_survives_csv_and_json(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("any")
    cells = [{"text": text, "other": other} for text, other in rows]
    quoted = ["{},{}\n".format(*('"' + cell.replace('"', '""') + '"' for cell in row)) for row in rows]
    assert read(written(folder, "a.csv", "text,other\n" + "".join(quoted))).rows == cells
    assert read(written(folder, "a.jsonl", lines(cells))).rows == cells


def test_places_are_lines_of_json_and_rows_of_csv(tmp_path: Path) -> None:
    table = read(written(tmp_path, "a.jsonl", '\n{"text": "a"}\n\n{"text": "b"}\n'))
    assert [table.place(row).rpartition("a.jsonl")[2] for row in (0, 1)] == [", line 2", ", line 4"]
    table = read(written(tmp_path, "a.csv", 'text\n"two\nlines"\nb\n'))
    assert table.place(1).endswith("a.csv, row 2")


def test_byte_order_marks_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    for name, content in (
        ("a.jsonl", '{"text": "a", "label": 0}\r\n{"text": "b", "label": 1}\r\n'),
        ("a.json", '[{"text": "a", "label": 0},\r\n{"text": "b", "label": 1}]'),
        ("a.csv", "text,label\r\na,0\r\nb,1\r\n"),
    ):
        table = read(written(tmp_path, name, b"\xef\xbb\xbf" + content.encode()))
        assert table.columns == ("text", "label")
        assert [row["text"] for row in table.rows] == ["a", "b"]


def test_emoji_right_to_left_nul_and_lone_surrogates_are_kept(tmp_path: Path) -> None:
    texts = ["😀 é", "שלום", "a\0b", "lone \ud800 surrogate", "\u2028 separator \x85"]
    assert [
        row["text"] for row in read(written(tmp_path, "a.jsonl", lines([{"text": t} for t in texts]))).rows
    ] == texts


def test_a_line_of_a_megabyte_is_read(tmp_path: Path) -> None:
    text = "x" * 10**6
    assert read(written(tmp_path, "a.jsonl", lines([{"text": text}]))).rows[0]["text"] == text
    assert read(written(tmp_path, "a.csv", f"text,label\n{text},1\n")).rows[0]["text"] == text


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.jsonl", f'{{"text": "a"}}\n{{"text": "{CANARY}\n', "a.jsonl, line 2"),
        ("a.jsonl", f'{{"text": "a"}}\n["{CANARY}"]\n', "a.jsonl, line 2"),
        ("a.jsonl", f'{{"text": "{CANARY}\0"}}\n', "a.jsonl, line 1"),
        ("a.jsonl", f'{{"a": 1}}\n{{"text": "{CANARY}'.encode() + b'\xff"}\n', "a.jsonl, line 2"),
        ("a.jsonl", "[" * 100_000, "a.jsonl, line 1"),
        ("a.jsonl", '{"label": ' + "9" * 5000 + "}", "a.jsonl, line 1"),
        ("a.jsonl", f'{{"text": "{CANARY}"}}'.encode("utf-16"), "a.jsonl, line 1"),
        ("a.json", f'[{{"text": "a"}},\n{{"text": "{CANARY}" "b"}}]', "a.json, line 2"),
        ("a.json", f'[{{"text": "a"}}, "{CANARY}"]', "a.json, item 2"),
        ("a.csv", f"text,label\na,0\n{CANARY}, and more,1\n", "a.csv, row 2"),
        ("a.csv", f"text,label\na,0\n{CANARY}\n", "a.csv, row 2"),
        ("a.csv", f"text,label\n{CANARY}".encode() + b"\xff,1\n", "a.csv, line 2"),
        ("a.csv", f"text,text\n{CANARY},1\n", "header"),
        ("a.csv", f'text,label\n"{CANARY},1\n', "a.csv"),
        ("a.parquet", CANARY, "a.parquet"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(
    tmp_path: Path, name: str, content: str | bytes, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(written(tmp_path, name, content), place)
    assert CANARY not in "".join(capfd.readouterr())


def test_a_csv_row_with_a_comma_too_many_never_moves_columns(tmp_path: Path) -> None:
    error = refused(written(tmp_path, "a.csv", "text,label\ngreat, really,1\ngood,0\n"), "row 1")
    assert "got 3 cells, expected 2 cells" in str(error)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv"])
@pytest.mark.parametrize("content", ["", "\n\n", "text,label\n"])
def test_a_file_without_rows_is_refused(tmp_path: Path, suffix: str, content: str) -> None:
    if (suffix == "csv") or not content.strip():
        refused(written(tmp_path, f"a.{suffix}", content), "no rows")


def test_missing_and_unknown_files_are_refused(tmp_path: Path) -> None:
    refused(str(tmp_path / "nothing.csv"), "no such file")
    refused(written(tmp_path, "a.xlsx", CANARY), ".xlsx", ".jsonl")
    refused(written(tmp_path, "plain", CANARY), "no suffix")


def test_in_a_folder_one_file_is_one_client(tmp_path: Path) -> None:
    written(tmp_path, "ward-b.csv", "text,label\nbad,0\n")
    written(tmp_path, "ward-a.jsonl", lines([{"text": "good", "label": 1}, {"label": 0, "text": "so", "age": 3}]))
    written(tmp_path, "empty.jsonl", "")
    written(tmp_path, ".hidden.csv", CANARY)
    written(tmp_path, "README.md", CANARY)
    table = read(str(tmp_path))
    assert table.owner == "client_id"
    assert [row["client_id"] for row in table.rows] == ["ward-a", "ward-a", "ward-b"]
    assert table.columns == ("text", "label", "client_id", "age")
    assert [table.place(row) for row in range(3)] == [
        "ward-a.jsonl, line 1",
        "ward-a.jsonl, line 2",
        "ward-b.csv, row 1",
    ]
    assert table.facts == {"files": 3, "empty_files": ["empty.jsonl"], "other_files": 1}


def test_in_a_folder_of_folders_one_folder_is_one_client_with_all_its_files(tmp_path: Path) -> None:
    for client, file, rows in (("north", "a.jsonl", 2), ("north", "b.jsonl", 1), ("south", "a.jsonl", 2)):
        (tmp_path / client).mkdir(exist_ok=True)
        (tmp_path / client / file).write_text('{"text": "x", "label": 0}\n' * rows)
    (tmp_path / "west.jsonl").write_text('{"text": "x", "label": 0}\n')
    table = read(str(tmp_path))
    assert [row["client_id"] for row in table.rows] == ["north"] * 3 + ["south"] * 2 + ["west"]
    assert table.place(3) == "south/a.jsonl, line 1"
    (tmp_path / "west").mkdir()
    (tmp_path / "west" / "c.jsonl").write_text('{"text": "x", "label": 0}\n')
    refused(str(tmp_path), "two files for one client 'west'")


def test_a_folder_without_rows_or_with_two_files_of_one_client_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "notes.txt", CANARY)
    refused(str(tmp_path), "no rows", "0 data files among 1 files")
    written(tmp_path, "a.csv", "text,label\nx,1\n")
    written(tmp_path, "a.jsonl", lines(ROWS))
    refused(str(tmp_path), "two files for one client 'a'")


def test_a_broken_row_in_a_folder_names_its_file(tmp_path: Path) -> None:
    written(tmp_path, "a.csv", "text,label\nx,1\n")
    written(tmp_path, "b.jsonl", f"{{{CANARY}\n")
    refused(str(tmp_path), "b.jsonl, line 1")


@pytest.mark.parametrize("reference", ["pkg:rotten-tomato", "synth:sentimint", "builtin:tiny", "random:llama"])
def test_a_reference_to_no_data_names_what_there_is(reference: str) -> None:
    refused(reference, reference, "pkg:rotten-tomatoes", "synth:sentiment")


def test_a_bare_name_is_no_reference() -> None:
    with pytest.raises(CotuneError, match="E_CONFIG"):
        read("reviews")


def test_a_column_that_is_not_there_names_the_nearest() -> None:
    table = Table(("text", "label"), [{"text": "a"}], [("a.csv, row", 1)])
    with pytest.raises(CotuneError, match=r"no column 'txt'.*did you mean 'text'"):
        table.cells("txt", "a.csv")
    assert table.cells("label", "a.csv") == [None]


def test_a_reader_is_there_for_each_documented_suffix() -> None:
    assert sorted(files.READERS) == [".csv", ".json", ".jsonl", ".parquet"]


@pytest.mark.real_model
def test_rotten_tomatoes_has_its_known_counts() -> None:
    table = read("pkg:rotten-tomatoes")
    assert len(table) == 12752
    assert dict(table.skipped) == {"plot": 1097, "duplicate": 56}
    assert table.names == {"label": ("rotten", "fresh")}
    assert table.columns == ("text", "label", "movie")
    assert len({row["movie"] for row in table.rows}) == 507  # the 508th has repeated texts only
    assert len({row["text"] for row in table.rows}) == 12752
    assert {row["label"] for row in table.rows} == {0, 1}
