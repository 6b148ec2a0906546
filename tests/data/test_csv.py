"""CSV: every spelling of the same cells is the same data; types come from public rows; one person is one shard."""

import csv
import io
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import arrays, csv_files
from data.csv_files import Dialect, find_dialect
from data.encoding import TableEncoder
from data.errors import UserError
from data.examples import PrivateRecords
from data.partition import partition, shards
from data.private import load_private
from data.public import load_public, load_test, table_encoder
from data.settings import DataSettings

PRIVATE = "age,ward,seen,who,y\n31,a,2020-01-01,p,no\n,b,2020-01-03,p,yes\n50,c,NA,q,no\n"
PUBLIC = "age,ward,seen\n30,a,2020-01-01\n40,b,2020-01-03\n"


def _settings(
    folder: Path,
    private: str | bytes = PRIVATE,
    public: str | bytes = PUBLIC,
    test: str | None = None,
    **more: Any,
) -> DataSettings:
    for name, text in {"private": private, "public": public, "test": test}.items():
        if text is not None:
            (folder / f"{name}.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    return DataSettings(
        **{
            "name": "t",
            "source": "csv",
            "label": "y",
            "classes": ["no", "yes"],
            "private": str(folder / "private.csv"),
            "public": str(folder / "public.csv"),
            "test": str(folder / "test.csv") if (folder / "test.csv").exists() else None,
            **more,
        }
    )


def _one_file(folder: Path, lines: list[str], **more: Any) -> DataSettings:
    (folder / "all.csv").write_text("\n".join(lines) + "\n")
    path = str(folder / "all.csv")
    return DataSettings(**{"name": "t", "source": "csv", "label": "y", "classes": ["no", "yes"], "path": path, **more})


def _private(settings: DataSettings, scratch: Path | None = None) -> PrivateRecords:
    return load_private(settings, 0, table_encoder(settings, 0), scratch)


def _same(one: PrivateRecords, other: PrivateRecords) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


def _written(text: str, order: list[int], **style: Any) -> str:
    out = io.StringIO()
    rows = list(csv.reader(io.StringIO(text)))
    csv.writer(out, **style).writerows([[row[at] for at in order] for row in rows])
    return out.getvalue()


STYLES: dict[str, tuple[dict[str, Any], str]] = {
    "semicolons": ({"delimiter": ";"}, "utf-8"),
    "tabs": ({"delimiter": "\t"}, "utf-8"),
    "bars": ({"delimiter": "|", "lineterminator": "\n"}, "utf-8"),
    "quoted": ({"quoting": csv.QUOTE_ALL, "lineterminator": "\r\n"}, "utf-8"),
    "mark": ({"lineterminator": "\n"}, "utf-8-sig"),
    "returns": ({"lineterminator": "\r"}, "utf-8"),
    "blank lines": ({"lineterminator": "\n\n"}, "utf-8"),
    "wide": ({}, "utf-16"),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("unit", ["who", None])
def test_spelling_moves_no_unit_and_changes_no_feature(tmp_path: Path, style: str, unit: str | None) -> None:
    """Delimiter, quotes, line ends, byte order mark, encoding and the order of columns are not content."""
    plain = _private(_settings(tmp_path, unit=unit))
    form, encoding = STYLES[style]
    private = _written(PRIVATE, [3, 1, 4, 0, 2], **form).encode(encoding)
    public = _written(PUBLIC, [0, 1, 2], **form).encode(encoding)
    declared = {} if encoding.startswith("utf-8") else {"encoding": encoding}
    assert _same(_private(_settings(tmp_path, private, public, unit=unit, **declared)), plain)


@given(
    st.lists(
        st.lists(st.text("ab1 ,;\"\n\r'é.", max_size=6), min_size=3, max_size=3),
        min_size=1,
        max_size=6,
    ),
    # With the other ends of lines the writer leaves a return in a cell unquoted.
    st.sampled_from([(csv.QUOTE_ALL, "\n"), (csv.QUOTE_ALL, "\r"), (csv.QUOTE_MINIMAL, "\r\n")]),
)
def test_cells_are_those_that_another_reader_finds(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], style: tuple[Any, str]
) -> None:
    """Quoted delimiters, quotes and line ends come back as they were written."""
    out = io.StringIO()
    csv.writer(out, quoting=style[0], lineterminator=style[1]).writerows([["a", "b", "c"], *rows])
    path = tmp_path_factory.getbasetemp() / "cells.csv"
    path.write_bytes(out.getvalue().encode())
    batches = list(csv_files.batches(path, "FILE", Dialect(), ["c", "a", "b"]))
    found = [list(row) for batch in batches for row in zip(*(batch[name].to_pylist() for name in "abc"), strict=True)]
    assert found == rows


def test_types_come_from_public_rows_alone(tmp_path: Path) -> None:
    """Numbers, true/false, dates and text; a private cell of another type is one line that shows it not."""
    public = (
        "i,f,b,d,t,e,m\n1,1.5,true,2020-01-01,2020-01-01T00:00:00Z,x1,\n2,-2e3,FALSE,2020-01-02,2020-01-02 12:00,2,\n"
    )
    good = public.replace("i,f,b,d,t,e,m\n1", "i,f,b,d,t,e,m,y\n1").replace(",\n", ",,no\n")
    settings = _settings(tmp_path, good, public)
    encoder = table_encoder(settings, 0)
    assert encoder is not None
    kinds = {column.name: column.kind for column in encoder.columns}
    assert kinds == dict(zip("ifbdtem", ["number", "number", "boolean", "date", "date", "text", "text"], strict=True))
    assert [c.mean for c in encoder.columns if c.kind == "date"] == [18262.5, 18262.75]
    assert len(_private(settings).labels) == 2
    for cell, rule in {
        "2,-2e3": "column 'i' must hold numbers only",
        "FALSE": "column 'b' must hold true or false only",
        "2020-01-02,": "column 'd' must hold ISO dates only",
    }.items():
        bad = good.replace(
            cell, cell.replace("2,-2e3", "CANARY,1").replace("FALSE", "CANARY").replace("2020-01-02,", "CANARY,")
        )
        with pytest.raises(UserError, match=rule) as caught:
            _private(_settings(tmp_path, bad, public))
        assert "CANARY" not in str(caught.value)
        assert table_encoder(settings, 0) == encoder


def test_in_one_file_private_rows_decide_no_type(tmp_path: Path) -> None:
    """What the split makes private may hold anything: the encoder does not move."""
    rows = [f"{n},w{n % 2},{'no' if n % 3 else 'yes'}" for n in range(8)]
    encoders = []
    for last in ("7,w1,yes", "CANARY,w9,no"):
        settings = _one_file(tmp_path, ["a,b,y", *rows[:7], last], private="all[4:]", public="all[:4]")
        encoders.append(table_encoder(settings, 0))
    assert encoders[0] == encoders[1]
    with pytest.raises(UserError, match="column 'a' must hold numbers only"):
        _private(settings)
    assert len(load_public(settings, 0).features) == 4


def test_counts_split_one_file_by_unit(tmp_path: Path) -> None:
    """Each unit falls into one part, whole; every row into one part."""
    rows = [f"{n},p{n % 20},{'no' if n % 3 else 'yes'}" for n in range(60)]
    settings = _one_file(tmp_path, ["a,who,y", *rows], private=10, public=6, test=4, unit="who")
    private, public, test = _private(settings), load_public(settings, 0), load_test(settings, 0)
    assert test is not None
    assert (len(private.labels), len(public.ids), len(test.ids)) == (30, 18, 12)
    assert {n % 20 for n in public.ids} & {n % 20 for n in test.ids} == set()


@pytest.mark.parametrize("spelling", ["", "NA", "n/a", "NaN", "null", "None", " "])
def test_missing_numbers_and_dates_are_the_public_mean(tmp_path: Path, spelling: str) -> None:
    """With a column that says so where the public part misses some, and without one where it does not."""
    private = f"a,d,y\n{spelling},{spelling},no\n3,2020-01-05,yes\n"
    without = _private(_settings(tmp_path, private, "a,d\n1,2020-01-01\n3,2020-01-05\n"))
    assert without.features.tolist() == [[0, 0], [1, 1]]
    marked = _private(_settings(tmp_path, private, f"a,d\n1,2020-01-01\n{spelling},2020-01-05\n3,\n"))
    assert marked.features.tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]


def test_parquet_of_the_same_values_has_the_same_features(tmp_path: Path) -> None:
    """Typed columns of a Parquet file, missing values and dates included, are encoded as the text of a CSV file is."""
    settings = _settings(tmp_path, unit="who", public=PUBLIC + ",,\n")
    encoder = table_encoder(settings, 0)
    private = {
        "age": [31, None, 50],
        "ward": ["a", "b", "c"],
        "seen": pa.array([datetime(2020, 1, 1), datetime(2020, 1, 3), None], pa.timestamp("ns")),
        "who": ["p", "p", "q"],
        "y": ["no", "yes", "no"],
    }
    public = {"age": [30.0, 40.0, None], "ward": ["a", "b", None], "seen": [date(2020, 1, 1), date(2020, 1, 3), None]}
    for name, columns in (("private", private), ("public", public)):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    typed = settings.model_copy(
        update={"source": "parquet", **{p: str(tmp_path / f"{p}.parquet") for p in ("private", "public")}}
    )
    found = table_encoder(typed, 0)
    assert found is not None
    assert encoder == replace(found, dialect=Dialect())
    one, other = _private(settings), _private(typed)
    assert np.array_equal(one.features, other.features)
    assert np.array_equal(one.units, other.units)


def test_an_encoder_is_read_back_with_its_dialect(tmp_path: Path) -> None:
    """The student's page holds all that predicting needs."""
    settings = _settings(tmp_path, public=PUBLIC.replace(",", ";"), private=PRIVATE.replace(",", ";"), decimal=",")
    encoder = table_encoder(settings, 0)
    assert encoder is not None
    assert encoder.dialect == Dialect(";", "utf-8", ",")
    assert TableEncoder.from_dict(encoder.to_dict()) == encoder


@pytest.mark.parametrize(("decimal", "cells"), [(",", ["1,5", "-2,25", "3"]), (".", ["1.5", "-2.25", "+3"])])
def test_decimal_mark(tmp_path: Path, decimal: str, cells: list[str]) -> None:
    """Numbers with the declared mark; grouped ones, or ones with the other mark, are refused and not taken for text."""
    rows = "\n".join(f"{cell};x" for cell in cells)
    settings = _settings(tmp_path, f"a;y\n{cells[0]};no\n", f"a;b\n{rows}\n", decimal=decimal)
    encoder = table_encoder(settings, 0)
    assert encoder is not None
    assert encoder.columns[0].mean == pytest.approx(0.75)
    other = {",": "."}.get(decimal, ",")
    for wrong in (f"1{other}5", f"1{other}000", f"12{other}345{decimal}6"):
        with pytest.raises(UserError, match=r"column 'a' looks like numbers with a thousands separator"):
            table_encoder(_settings(tmp_path, "", f"a;b\n{wrong};x\n{cells[1]};x\n", decimal=decimal), 0)
        bad = _settings(tmp_path, f"a;y;b\n{wrong};no;x\n", f"a;b\n{rows}\n", decimal=decimal)
        with pytest.raises(UserError, match=r"column 'a' must hold numbers only, with decimal mark"):
            load_private(bad, 0, encoder)


def test_another_delimiter_than_the_file_s_is_suspected(tmp_path: Path) -> None:
    settings = _settings(tmp_path, "", "a;b\n1,5;x\n2,5;y\n", delimiter=",")
    with pytest.raises(UserError, match=r"is data.delimiter the file's\?"):
        table_encoder(settings, 0)


@pytest.mark.parametrize("cells", [["31.01.2020", "1.2.2021"], ["01/31/2020 12:00", ""], ["31-01-2020", "n/a"]])
def test_dates_outside_iso_are_refused(tmp_path: Path, cells: list[str]) -> None:
    """As text each day would be a category that hardly another row shares; one cell that is no date makes it text."""
    rows = "\n".join(f"{cell},x" for cell in cells)
    with pytest.raises(UserError, match=r"public.csv: column 'a' looks like dates that are not ISO"):
        table_encoder(_settings(tmp_path, "", f"a,b\n{rows}\n"), 0)
    encoder = table_encoder(_settings(tmp_path, "", f"a,b\n{rows}\nunknown,x\n"), 0)
    assert encoder is not None
    assert encoder.columns[0].kind == "text"


@pytest.mark.parametrize(
    ("header", "delimiter"),
    [("a,b", ","), ("a;b", ";"), ("a\tb", "\t"), ("a|b", "|"), ('"x;y;z",b', ","), ("alone", ",")],
)
def test_the_delimiter_is_found_in_the_header(tmp_path: Path, header: str, delimiter: str) -> None:
    """Marks inside quotes do not count, nor those of the rows."""
    (tmp_path / "x.csv").write_text(header + "\n1;2;3\n")
    assert find_dialect(tmp_path / "x.csv", "FILE").delimiter == delimiter


def test_the_private_header_does_not_decide_the_delimiter(tmp_path: Path) -> None:
    """The private file is read as the public one is written."""
    settings = _settings(tmp_path, PRIVATE.replace(",", ";"))
    with pytest.raises(UserError, match="data.label = 'y'"):
        _private(settings)


def test_public_ids_join_as_other_readers_see_them(tmp_path: Path) -> None:
    """Whole numbers are numbers, other ids are text."""
    for cells, expected in ((["7", "12"], [7, 12]), (["007", "12"], ["007", "12"]), (["u", "v"], ["u", "v"])):
        public = f"a,key\n1,{cells[0]}\n2,{cells[1]}\n"
        settings = _settings(tmp_path, "a,key,y\n1,z,no\n", public, id="key")
        assert load_public(settings, 0).ids.tolist() == expected


def test_subgroups_are_values_of_the_test_part(tmp_path: Path) -> None:
    """As text, '' where missing, and features as well where the public part has them."""
    test = "age,ward,seen,sex,y\n1,a,,f,no\n2,,,,yes\n"
    settings = _settings(tmp_path, test=test, subgroup=["ward", "sex"])
    found = load_test(settings, 0)
    assert found is not None
    assert {name: values.tolist() for name, values in found.groups.items()} == {"ward": ["a", ""], "sex": ["f", ""]}
    assert found.features[:, 1].tolist() == [1.0, 0.0]
    assert load_public(settings, 0).groups == {}
    with pytest.raises(UserError, match=r"data\.subgroup = 'town'"):
        load_test(settings.model_copy(update={"subgroup": ["town"]}), 0)


def _people(folder: Path, without: int | None = None) -> DataSettings:
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(60), rng.integers(1, 6, 60))
    lines = [
        f"{x:.4f},p{person},{'yes' if x > 0 else 'no'}"
        for x, person in zip(rng.normal(size=len(who)), who, strict=True)
    ]
    kept = [line for line, person in zip(lines, who, strict=True) if person != without]
    return _settings(folder, "\n".join(["x,who,y", *kept]), "x\n-1\n1\n", unit="who")


@pytest.mark.parametrize("person", [0, 31, 59])
def test_one_person_is_one_shard(tmp_path: Path, person: int) -> None:
    """Removing all rows of one person changes the shard of exactly one teacher."""
    teachers = np.arange(8)
    found = []
    for without in (None, person):
        records = _private(_people(tmp_path, without))
        rows = shards(records, partition(records, 8, 0), teachers)
        found.append([records.features[shard].tobytes() + records.labels[shard].tobytes() for shard in rows])
    assert sum(one != other for one, other in zip(*found, strict=True)) == 1


def test_large_features_lie_in_a_nameless_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the disk as in memory the records are the same; nothing is left behind, after a failure neither."""
    settings = _people(tmp_path)
    small = _private(settings)
    monkeypatch.setattr(arrays, "IN_MEMORY_BYTES", 8)
    scratch = tmp_path / "scratch"
    large = _private(settings, scratch)
    assert isinstance(large.features, np.memmap)
    assert _same(small, large)
    bad = _settings(tmp_path, (tmp_path / "private.csv").read_text() + "\nCANARY,p,no", "x\n-1\n1\n", unit="who")
    with pytest.raises(UserError, match="must hold numbers only"):
        _private(bad, scratch)
    assert list(scratch.iterdir()) == []


def test_batches_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small blocks of a file give what one large one gives, for all rows and for a slice."""
    settings = _people(tmp_path)
    private = settings.private
    whole = [_private(settings.model_copy(update={"private": f"{private}{rows}"})) for rows in ("", "[7:90]")]
    monkeypatch.setattr(csv_files, "LONGEST_LINE", 200)
    monkeypatch.setattr("data.tables.BATCH_CELLS", 3)
    for rows, expected in zip(("", "[7:90]"), whole, strict=True):
        assert _same(_private(settings.model_copy(update={"private": f"{private}{rows}"})), expected)


@pytest.mark.parametrize(
    "change", [{"encoding": "klingon"}, {"encoding": "base64"}, {"delimiter": "é"}, {"delimiter": '"'}]
)
def test_impossible_dialects_are_refused(tmp_path: Path, change: dict[str, str]) -> None:
    """When the settings are read, naming the field."""
    with pytest.raises(ValueError, match=next(iter(change))):
        _settings(tmp_path, **change)
