"""Files as they are found: each of these gives the timers that its writer meant, or an error whose remedy works."""

from __future__ import annotations

import bz2
import datetime as dt
import decimal
import gzip
import io
import json
import lzma
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it

from tests.support.remedies import followed
from tests.support.statistics import statistic_of
from timewheel.cli.planning import HistoryOptions
from timewheel.core.errors import TimewheelError
from timewheel.spark_planner.errors import (
    BadColumnMapping,
    EmptyHistory,
    HistoryUnreadable,
    MissingColumn,
    NoValidRows,
    UnitUnknown,
    WrongTimeUnit,
)
from timewheel.spark_planner.history import files
from timewheel.spark_planner.history.files import encoding_of
from timewheel.spark_planner.history.read import assessed

T_MS, HOUR_MS = 1_767_571_200_000, 3_600_000  # 2026-01-05, midnight UTC
pytestmark = pytest.mark.timeout(1_800)  # the first test reads all the files
Timer = tuple[int, int, str | None, str]
"""Publish time, due time, key, topic."""
A: Timer = (T_MS, T_MS + HOUR_MS, None, "")
B: Timer = (T_MS + 1_000, T_MS + 2 * HOUR_MS, None, "")
KEYED: tuple[Timer, ...] = ((*A[:2], "k1", ""), (*B[:2], "k2", ""))
ROWS = "".join(f"{publish},{due}\n" for publish, due, *_ in (A, B))
CSV = "publish_ms,due_ms\n" + ROWS
TURNED = "due_ms,publish_ms\n" + "".join(f"{due},{publish}\n" for publish, due, *_ in (A, B))
KEYS = f"publish_ms,due_ms,key\n{A[0]},{A[1]},%s\n{B[0]},{B[1]},%s\n"
JSON = "".join(json.dumps({"publish_ms": publish, "due_ms": due}) + "\n" for publish, due, *_ in (A, B))
TABLE = pa.table({"publish_ms": [A[0], B[0]], "due_ms": [A[1], B[1]]})
Content = Any  # text, bytes, or a table of Arrow


@dataclass(frozen=True, kw_only=True)
class Case:
    """Files, and the timers that are read from them.

    Args:
        files: Contents by name; a name that ends with / is a folder, one that ends with | a pipe.
        source: The history among them; None: the only file.
        options: Fields of `HistoryOptions`.
        timers: Its timers.
        reasons: Reasons against its other rows.
        error: The error's class and a phrase of it, if it is refused.
        values: The values of options that the error leaves to its reader.
        mend: What the error tells its reader to do by hand, on the folder; None: it prints a command or an option.
    """

    name: str
    files: Mapping[str, Content]
    source: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    timers: Sequence[Timer] = (A, B)
    reasons: Sequence[str] = ()
    error: tuple[type[TimewheelError], str] | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    mend: Callable[[Path], object] | None = None

    def made(self, folder: Path) -> str:
        for name, content in self.files.items():
            path = folder / name.rstrip("|")
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("/"):
                path.mkdir(exist_ok=True)
            elif name.endswith("|"):
                os.mkfifo(path)
            elif isinstance(content, pa.Table):
                (orc.write_table if path.suffix == ".orc" else pq.write_table)(content, path)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(folder / (next(iter(self.files)).rstrip("|") if self.source is None else self.source))


def case(name: str, files: Mapping[str, Content] | Content, **more: Any) -> Case:
    return Case(name=name, files=files if isinstance(files, dict) else {"history.csv": files}, **more)


def refused(
    name: str,
    files: Mapping[str, Content] | Content,
    phrase: str,
    kind: type[TimewheelError] = HistoryUnreadable,
    **more: Any,
) -> Case:
    return case(name, files, error=(kind, phrase), **more)


def jsons(*rows: Mapping[str, Any]) -> dict[str, Content]:
    return {"history.json": "".join(json.dumps(row) + "\n" for row in rows)}


def parquet(**columns: Any) -> dict[str, Content]:
    return {"history.parquet": pa.table(columns)}


def packed(write: Callable[[io.BytesIO], None]) -> bytes:
    into = io.BytesIO()
    write(into)
    return into.getvalue()


def zipped(inner: str, content: str) -> bytes:
    def write(into: io.BytesIO) -> None:
        with zipfile.ZipFile(into, "w") as archive:
            archive.writestr(inner, content)

    return packed(write)


def tarred(inner: str, content: str) -> bytes:
    def write(into: io.BytesIO) -> None:
        with tarfile.open(fileobj=into, mode="w") as archive:
            found = tarfile.TarInfo(inner)
            found.size = len(content)
            archive.addfile(found, io.BytesIO(content.encode()))

    return packed(write)


def times(publish: str, due: str, name: str = "publish,due") -> str:
    return f"{name}\n{publish},{due}\n"


def moment(at_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_ms / 1_000, dt.UTC)


STAMPS = [moment(A[0]), moment(B[0])], [moment(A[1]), moment(B[1])]
LONG = (
    "publish_ms,due_ms\n" + "".join(f"{A[0] + 7_919 * number},{B[1] + 104_729 * number}\n" for number in range(9_000))
).encode()
DELTA: dict[str, Content] = {"t/part-0.parquet": TABLE, "t/_delta_log/00000000000000000000.json": "{}\n"}


def by_hand(folder: Path) -> object:
    return (folder / "history.csv").write_text(CSV)


NAMES = (
    *("a b.csv", "50%.csv", "a%20b.csv", "a[1].csv", "{a}.csv", "{a,b}.csv", "a?.csv", "a*.csv", "a\\b.csv", "a,b.csv"),
    *(
        "a#b.csv",
        "ä.csv",
        "a+b;c.csv",
        "it's.csv",
        "-a.csv",
        "A.CSV",
        "a.b.c.csv",
        "a\nb.csv",
        "$a`b.csv",
        "é\u0301.csv",
    ),
    *("f [1]/a.csv", "a:b/a.csv", "_f/a.csv", ".f/a.csv", "a=b.csv", "history", "history.txt", "history.log", "~a.csv"),
)
CASES = [
    *(case(f"name {name!r}", {name: CSV}) for name in NAMES),
    *(case(f"folder of {name!r}", {f"x/{name}": CSV}, source="x") for name in ("a b.csv", "a[1].csv", "a%.csv", "a")),
    refused("name with a colon", {"x/09:30.csv": CSV}, "its name has a colon", source="x/09:30.csv"),
    refused("folder of names with colons", {"x/09:30.csv": CSV, "x/09:31.csv": "publish_ms,due_ms\n"},
            "its name has a colon", source="x"),
    *(refused(f"name {name!r}", {name: CSV}, "a file is hidden") for name in ("_a.csv", ".a.csv", "__a.parquet.csv")),
    refused("folder of hidden files", {"x/_a.csv": CSV}, "no file in it", source="x",
            mend=lambda folder: (folder / "x/_a.csv").rename(folder / "x/a.csv")),
    refused("empty folder", {"x/": ""}, "no file in it", source="x",
            mend=lambda folder: (folder / "x/a.csv").write_text(CSV)),
    refused("nowhere", {"x/": ""}, "check the path", source="y.csv",
             mend=lambda folder: (folder / "y.csv").write_text(CSV)),
    refused("pattern without files", {"x/": ""}, "check the path", source="x/*.csv",
            mend=lambda folder: (folder / "x/y.csv").write_text(CSV)),
    refused("pipe", {"pipe.csv|": ""}, "a pipe or a device",
            mend=lambda folder: ((folder / "pipe.csv").unlink(), (folder / "pipe.csv").write_text(CSV))),
    # ------------------------------------------------------------------------------------------------------ separators
    *(case(f"separator {one!r}", CSV.replace(",", one)) for one in (";", "\t", "|", " , ", ";\t")),
    case("separator in quotes of the header", f'publish_ms;due_ms;"a,b,c,d"\n{A[0]};{A[1]};x\n{B[0]};{B[1]};y\n'),
    case("tsv", {"history.tsv": CSV.replace(",", "\t")}),
    case("separator given", CSV.replace(",", "^"), options={"separator": "^"}),
    case("separator of two characters", CSV.replace(",", "||"), options={"separator": "||"}),
    case("separator as it is typed", CSV.replace(",", "\t"), options={"separator": r"\t"}),
    case("separator at the end of each line", CSV.replace("\n", ",\n")),
    refused("separator unknown", CSV.replace(",", "^"), "names one column", values={"separator": "^"}),
    refused("one column", "publish_ms\n5\n", "names one column", mend=by_hand),
    refused("no header", ROWS, "no names of columns", mend=by_hand),
    refused("no header, times as text", "2026-01-05T00:00:00Z,2026-01-05T01:00:00Z\n", "no names of columns",
             mend=by_hand),
    # ------------------------------------------------------------------------------------------- encodings and quotes
    *(case(f"encoding {one}", (KEYS % ("ä", "ö")).encode(one), timers=((*A[:2], "ä", ""), (*B[:2], "ö", "")))
      for one in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1")),
    case("encoding given", (KEYS % ("ä", "ö")).encode("latin-1"), timers=((*A[:2], "ä", ""), (*B[:2], "ö", "")),
         options={"encoding": "latin1"}),
    case("text of a spreadsheet", (KEYS % ("ä", "ö")).replace(",", "\t").encode("utf-16"),
         timers=((*A[:2], "ä", ""), (*B[:2], "ö", ""))),
    case("keys beyond the plane", KEYS % ("🂡", "漢字"), timers=((*A[:2], "🂡", ""), (*B[:2], "漢字", ""))),
    refused("encoding that Spark has not", (KEYS % ("k1", "k2")).encode("cp500"), "is written in cp500", timers=KEYED,
            options={"encoding": "cp500"}),
    refused("encoding of no text", CSV, "no encoding 'hex'", options={"encoding": "hex"}, values={"encoding": "utf-8"}),
    refused("encoding unknown", CSV, "no encoding 'klingon'", options={"encoding": "klingon"},
             values={"encoding": "utf-8"}),
    case("line ends of Windows", CSV.replace("\n", "\r\n")),
    case("line ends of an old Mac", CSV.replace("\n", "\r")),
    case("no last line end", CSV.rstrip()),
    case("empty lines", "\n\n" + CSV.replace("\n", "\n\n")),
    case("quotes around all", '"publish_ms","due_ms"\n' + "".join(f'"{one[0]}","{one[1]}"\n' for one in (A, B))),
    case("quotes in quotes", f'note,publish_ms,due_ms\n"a ""b"", c",{A[0]},{A[1]}\n"d, ""e""",{B[0]},{B[1]}\n'),
    case("quotes as Spark writes them", f'note,publish_ms,due_ms\n"a \\"b\\", c",{A[0]},{A[1]}\nd,{B[0]},{B[1]}\n'),
    case("line ends in quotes", f'note,publish_ms,due_ms\n"a\nb, c",{A[0]},{A[1]}\n"d\n\ne",{B[0]},{B[1]}\nf,5,\n',
         reasons=("publish_absurd",)),
    case("quotes never closed", f'note,publish_ms,due_ms\n5" disk,{A[0]},{A[1]}\nd,{B[0]},{B[1]}\n'),
    # ------------------------------------------------------------------------------------------------- packed and cut
    case("gzip", {"history.csv.gz": gzip.compress(CSV.encode())}),
    case("gzip, with foreign names and two units", {"log.csv.gz": gzip.compress(times("1767571200.000", "60.0",
         "sent at,wait.minutes").encode())}, timers=(A,), options={"publish": "sent at", "delay": "wait.minutes"}),
    case("gzip of JSON", {"history.json.gz": gzip.compress(JSON.encode())}),
    case("gzip in two parts", {"history.csv.gz": gzip.compress(CSV[:30].encode()) + gzip.compress(CSV[30:].encode())}),
    case("bzip2", {"history.csv.bz2": bz2.compress(CSV.encode())}),
    case("zstd", {"history.csv.zst": bytes(pa.compress(CSV.encode(), codec="zstd", asbytes=True))}),
    refused("gzip by another name", gzip.compress(CSV.encode()), "does not end with .gz"),
    refused("bzip2 by another name", {"history": bz2.compress(CSV.encode())}, "does not end with .bz2"),
    refused("zip", {"history.csv.zip": zipped("history.csv", CSV)}, "packed by zip"),
    refused("zip without csv in its name", {"history.zip": zipped("history.csv", CSV)}, "packed by zip"),
    refused("xz", {"history.json.xz": lzma.compress(JSON.encode())}, "packed by xz"),
    refused("workbook", {"history.xlsx": zipped("[Content_Types].xml", CSV)}, "a workbook",
            mend=lambda folder: (folder / "history.xlsx").write_text(CSV)),
    refused("archive", {"history.tar": tarred("history.csv", CSV)}, "is an archive"),
    refused("cut gzip", {"history.csv.gz": gzip.compress(CSV.encode() * 9)[:-20]}, "cannot be read: Unexpected end",
            mend=lambda folder: (folder / "history.csv.gz").write_bytes(gzip.compress(CSV.encode()))),
    refused("cut gzip, far from its beginning", {"x/a.csv.gz": gzip.compress(LONG, 1)[:-9_000], "x/b.csv": CSV},
            "error while reading file file:", source="x", mend=lambda folder: (folder / "x/a.csv.gz").unlink()),
    refused("cut csv", CSV + str(A[0]), "history.csv ends within a row"),
    refused("long cut csv", "publish_ms,due_ms\n" + (ROWS * 4_000).rstrip()[:-14], "ends within a row", mend=by_hand),
    refused("cut JSON lines", {"history.ndjson": JSON + '{"publish_ms": 17'}, "history.ndjson ends within a row"),
    refused("cut Parquet in a folder", {"x/a.parquet": TABLE, "x/b.parquet": b"PAR1" + bytes(50)}, "b.parquet",
             source="x",
            mend=lambda folder: (folder / "x/b.parquet").unlink()),
    # -------------------------------------------------------------------------------------------------------- folders
    case("columns in another order", {"x/a.csv": CSV, "x/b.csv": TURNED}, source="x", timers=(A, A, B, B)),
    case("the first with sizes, the second with keys",
         {"x/a.csv": f"due_ms,size_bytes,publish_ms\n{A[1]},7,{A[0]}\n",
             "x/b.csv": f"publish_ms,due_ms,key\n{B[0]},{B[1]},k\n"},
         source="x", timers=(A, (*B[:2], "k", ""))),
    case("a separator of each", {"x/a.csv": CSV, "x/b.csv": TURNED.replace(",", ";")}, source="x", timers=(A, A, B, B)),
    case("an encoding of each", {"x/a.csv": CSV, "x/b.csv": CSV.encode("utf-16")}, source="x", timers=(A, A, B, B)),
    case("by pattern, in another order", {"x/a.csv": CSV, "x/b.csv": TURNED}, source="x/*.csv", timers=(A, A, B, B)),
    case("by braces", {"x/a.csv": CSV, "x/b.csv": TURNED, "x/c.csv": CSV}, source="x/{a,b}.csv", timers=(A, A, B, B)),
    case("empty beside full", {"x/a.csv": "", "x/b.csv": CSV}, source="x"),
    case("header alone beside full", {"x/a.csv": "due_ms,publish_ms\n", "x/b.csv": CSV}, source="x"),
    case("empty Parquet beside full", {"x/a.parquet": b"", "x/b.parquet": TABLE}, source="x"),
    case("folders within", {"x/a.csv": CSV, "x/2026/01/b.csv": CSV}, source="x", timers=(A, A, B, B)),
    case("folders within, and none above", {"x/2026/01/05/b.parquet": TABLE}, source="x"),
    case("folders with columns", {"x/topic=a/1.csv": CSV, "x/topic=b/1.csv": CSV}, source="x",
         timers=[(*one[:3], topic) for one in (A, B) for topic in "ab"]),
    case("folders with columns, in another order", {"x/topic=a/1.csv": CSV, "x/topic=b/1.csv": TURNED}, source="x",
         timers=[(*one[:3], topic) for one in (A, B) for topic in "ab"]),
    case("folders with columns, of Parquet", {"x/topic=a/1.parquet": TABLE}, source="x",
         timers=[(*one[:3], "a") for one in (A, B)]),
    case("marks of Spark and of Hadoop", {"x/a.csv": CSV, "x/_SUCCESS": "", "x/.a.csv.crc": "crc"}, source="x"),
    case("formats of each", {"x/a.csv": CSV, "x/b.parquet": TABLE, "x/c.json": JSON}, source="x", timers=(A, A, A, B, B,
             B)),
    case("a folder that is called a file", {"x.csv/part-0": CSV, "x.csv/part-1": TURNED}, source="x.csv", timers=(A, A,
             B, B)),
    refused("a note beside", {"x/a.csv": CSV, "x/README.txt": "Exported by hand\n"}, "leave the file out", source="x",
            mend=lambda folder: (folder / "x/README.txt").unlink()),
    refused("empty file", "", "no row", EmptyHistory, mend=by_hand),
    refused("blank file", " \n\n", "no row", EmptyHistory, mend=by_hand),
    refused("mark alone", b"\xef\xbb\xbf", "no row", EmptyHistory, mend=by_hand),
    case("a null character", CSV.replace("due_ms", "due_ms,note").replace("00\n", "00,\0\n", 1)),
    refused("empty files", {"x/a.csv": "", "x/b.json": ""}, "no row", EmptyHistory, source="x",
            mend=lambda folder: (folder / "x/a.csv").write_text(CSV)),
    refused("header alone", "publish_ms,due_ms\n", "no row", EmptyHistory, mend=by_hand),
    refused("header alone, without units", "publish,delay\n", "no row", EmptyHistory, mend=by_hand),
    refused("Parquet without rows", {"a.parquet": TABLE.slice(0, 0)}, "no row", EmptyHistory,
            mend=lambda folder: pq.write_table(TABLE, folder / "a.parquet")),
    # --------------------------------------------------------------------------------------------- units, zones, times
    *(case(f"times {publish}, {due}", times(publish, due), timers=(A,)) for publish, due in (
        ("1767571200", "1767574800"), ("1767571200.000", "1767574800.0"), ("1767571200000000", "1767574800000000"),
        ("1767571200000000000", "1767574800000000000"), ("1.7675712E12", "1.7675748e12"), ("+1767571200",
             " 1767574800 "),
        ("2026-01-05T00:00:00Z", "2026-01-05T01:00:00Z"), ("2026-01-05 00:00:00", "2026-01-05 01:00"),
        ("2026-01-05T01:00:00+01:00", "2026-01-05T02:00:00+01"), ("2026-01-04T19:00:00-0500",
             "2026-01-05T06:30:00+05:30"),
        ("2026-01-05", "2026-01-05 01:00:00.000000"), ("2026-1-5 0:0:0", "2026-01-05 02:00:00 Europe/Zurich"),
        ("2026-01-05T00:00:00.000999Z", "2026-01-05 01:00:00 UTC"), ("2026-01-05T00:00:00Z", "1767574800000"),
    )),
    case("two units", times("1767571200", "1767574800000", "publish_s,due_ms"), timers=(A,)),
    case("delays in minutes", times("1767571200000", "60", "publish_ms,delayMinutes"), timers=(A,)),
    case("delays of days", times("1767571200", "1.5", "sent_s,delay_d"), timers=((A[0], A[0] + 36 * HOUR_MS, None,
             ""),),
         options={"publish": "sent_s"}),
    case("a time of day in one row", CSV + f"{A[0]},09:30\n", reasons=("due_not_a_time",)),
    refused("times of day alone", times("09:30", "10:30"), "such as 2026-01-05T09:30:00Z", NoValidRows, mend=by_hand,
            timers=(A, B), options={}),
    *(refused(f"times {text}", times(text, text), "such as 2026-01-05T09:30:00Z", NoValidRows,
             mend=by_hand) for text in (
        "now", "05/01/2026 09:30", "20260105T093000Z", "2026-02-30", "5 Jan 2026", '"1,767,571,200,000"')),
    refused("days of a spreadsheet", times("46027.5", "46028.5"), "--time-unit", UnitUnknown, mend=by_hand),
    refused("digits of a date", times("20260105093000", "20260105103000"), "--time-unit", UnitUnknown, mend=by_hand),
    refused("delays as words", times(str(A[0]), "5m", "publish_ms,delay_ms"), "--delay-unit", NoValidRows,
             mend=by_hand),
    refused("delays of no unit", times(str(A[0]), "3600", "publish_ms,delay"), "--delay-unit", UnitUnknown, timers=(A,),
            values={"delay-unit": "s"}),
    refused("seconds that are called milliseconds", times("1767571200", "1767574800", "publish_ms,due_ms"),
             "--time-unit s",
            WrongTimeUnit, timers=(A,)),
    # ------------------------------------------------------------------------------------------------------- no values
    *(case(f"key {text!r}", KEYS % (text, "k2"), timers=(A, (*B[:2], "k2", "")))
      for text in ("", r"\N", "NULL", "null", "None", "nan", '""')),
    case("ids that are none", f"publish_ms,due_ms,timer_id\n{A[0]},{A[1]},\\N\n{B[0]},{B[1]},\\N\n{A[0]},{A[1]},\n",
         timers=(A, A, B)),
    case("topics that are none", f"publish_ms,due_ms,topic\n{A[0]},{A[1]},a\n{B[0]},{B[1]},\\N\n",
         timers=((*A[:3], "a"),), reasons=("topic_missing",)),
    # ------------------------------------------------------------------------------------------------ names of columns
    case("names in capitals", {"a.csv": (KEYS % ("k1", "k2")).replace("publish_ms,due_ms,key",
             "PUBLISH_MS,DUE_MS,KEY")},
         timers=KEYED),
    case("names of Java", (KEYS % ("k1", "k2")).replace("publish_ms,due_ms,key", "publishMs,dueMs,Key"), timers=KEYED),
    case("names with spaces", CSV.replace("_", " ")),
    refused("two that could be meant", CSV.replace("publish_ms,", "Publish_Ms,publish ms,"), "could both be meant",
            BadColumnMapping, mend=by_hand),
    refused("no column of the send time", CSV.replace("publish_ms", "sent"), "--publish", MissingColumn,
            values={"publish": "sent"}),
    refused("no column of the due time", CSV.replace("due_ms", "fires"), "--delay", BadColumnMapping,
             values={"due": "fires"}),
    refused("no column of topics", CSV.replace("publish_ms,due_ms", "publish_ms,due_ms,queue").replace("00\n",
             "00,q\n"),
            "--topic-column", MissingColumn, options={"topic_column": "qeue"}, values={"topic-column": "queue"},
            timers=[(*one[:3], "q") for one in (A, B)]),
    # ------------------------------------------------------------------------------------------------------------ JSON
    case("JSON", {"history.json": JSON}),
    case("JSON with a mark", {"history.json": b"\xef\xbb\xbf" + JSON.encode()}),
    case("JSON without an ending", {"export": JSON}),
    case("JSON as one list", {"history.json": json.dumps([json.loads(line) for line in JSON.splitlines()], indent=1)}),
    case("JSON with a list in each line", {"history.json": JSON.replace("{", "[{").replace("}", "}]")}),
    case("JSON with broken and empty lines", {"history.json": JSON + "\noops\n"}, reasons=("publish_missing",)),
    case("JSON of texts and numbers",
         jsons({"publish_ms": str(A[0]), "due_ms": A[1]}, {"publish_ms": B[0], "due_ms": "2026-01-05T02:00:00Z"})),
    case("JSON of other fields in each", jsons({"publish_ms": A[0], "due_ms": A[1], "x": 1},
                                               {"publish_ms": B[0], "due_ms": B[1], "key": "k"}), timers=(A, (*B[:2],
                                               "k", ""))),
    case("JSON within", jsons(*({"publish_ms": one[0], "payload": {"due_at": one[1]}} for one in (A, B))),
         options={"due": "payload.due_at"}),
    case("JSON of MongoDB", jsons(*({"sent": {"$date": moment(one[0]).isoformat()},
             "due": {"$date": one[1]}} for one in (A, B))),
         options={"publish": "sent.$date", "due": "due.$date"}),
    case("JSON with dots in names", jsons(*({"publish_ms": one[0], "a.due_ms": one[1],
             "a": {"due_ms": 5}} for one in (A, B))),
         options={"due": "a.due_ms"}),
    case("JSON with an id within", jsons(*({"publish_ms": A[0], "due_ms": A[1], "m": {"id": "7"}} for _ in range(2))),
         options={"timer_id": "m.id"}, timers=(A,), reasons=("later_copy",)),
    refused("JSON of no such field", jsons(*({"publish_ms": one[0], "p": {"due": one[1]}} for one in (A, B))),
             "'p.due'",
            MissingColumn, options={"due": "p.due_at"}, values={"due": "p.due"}),
    refused("JSON in UTF-16", {"history.json": JSON.encode("utf-16")}, "is written in utf-16"),
    refused("JSON over several lines", {"history.json": json.dumps(json.loads(JSON.splitlines()[0]), indent=1)},
            "one object per line", mend=lambda folder: (folder / "history.json").write_text(JSON)),
    # --------------------------------------------------------------------------------------------------- Parquet, ORC
    case("ORC", {"history.orc": TABLE}),
    case("ORC without an ending", {"x": packed(lambda into: orc.write_table(TABLE, into))}),
    case("Parquet without an ending", {"x": packed(lambda into: pq.write_table(TABLE, into))}),
    case("Parquet in another order", {"x/a.parquet": TABLE, "x/b.parquet": TABLE.select(["due_ms", "publish_ms"])},
         source="x", timers=(A, A, B, B)),
    case("ORC, the second with keys", {"x/a.orc": TABLE, "x/b.orc": TABLE.append_column("key", [["k1", "k2"]])},
             source="x",
         timers=(A, B, *KEYED)),
    case("Parquet, the second with keys", {"x/a.parquet": TABLE, "x/b.parquet": TABLE.append_column("key", [["k1",
             "k2"]])},
         source="x", timers=(A, B, *KEYED)),
    *(case(f"Parquet, the second of {name}",
           {"x/a.parquet": TABLE, "x/b.parquet": pa.table({"due_ms": due, "publish_ms": TABLE["publish_ms"]})},
           source="x", timers=(A, A, B, B))
      for name, due in (
          ("text", [str(A[1]), str(B[1])]), ("floats", [float(A[1]), float(B[1])]),
          ("timestamps", pa.array(STAMPS[1], pa.timestamp("us", "UTC"))), ("local times", pa.array(STAMPS[1],
             pa.timestamp("us"))),
          ("decimals", [decimal.Decimal(A[1]), decimal.Decimal(B[1])]))),
    *(case(f"Parquet of {kind}", parquet(publish=pa.array(STAMPS[0], kind), due=pa.array(STAMPS[1], kind)))
      for kind in (pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("ns",
             "Asia/Tokyo"))),
    case("Parquet of unsigned and of text", parquet(publish=pa.array([A[0], B[0]], pa.uint64()),
                                                   due=pa.array([str(A[1]), str(B[1])], pa.large_string()))),
    case("Parquet of dictionaries", parquet(publish=pa.array([A[0], B[0]]), due=pa.array([A[1], B[1]]),
                                            key=pa.array(["k1", "k2"]).dictionary_encode()), timers=KEYED),
    case("Parquet with bytes as keys", parquet(publish=[A[0], B[0]], due=[A[1], B[1]], key=[b"k1", b"\xff\0"]),
         timers=((*A[:2], "k1", ""), (*B[:2], "/wA=", ""))),
    case("Parquet with numbers as keys", parquet(publish=[A[0], B[0]], due=[A[1], B[1]], key=[7, None]),
         timers=((*A[:2], "7", ""), B)),
    case("Parquet within", parquet(m=[{"sent_ms": A[0], "w": {"due": STAMPS[1][0]}}, {"sent_ms": B[0],
             "w": {"due": STAMPS[1][1]}}]),
         options={"publish": "m.sent_ms", "due": "m.w.due"}),
    refused("Parquet of times of day", parquet(publish_ms=[A[0]], due=pa.array([5], pa.time64("us"))), "with its date",
            mend=lambda folder: pq.write_table(TABLE, folder / "history.parquet")),
    refused("Parquet of truths", parquet(publish_ms=[A[0]], due=[True]), "boolean holds no times",
            BadColumnMapping, mend=lambda folder: pq.write_table(TABLE, folder / "history.parquet")),
    refused("CSV that is called Parquet", {"a.parquet": CSV}, "with --format", values={"format": "csv"}),
    refused("Parquet that is called CSV", packed(lambda into: pq.write_table(TABLE, into)), "is no csv"),
    refused("Avro", {"history.avro": b"Obj\1" + bytes(60)}, "add its package",
            mend=lambda folder: (folder / "history.avro").write_text(CSV)),
    # ---------------------------------------------------------------------------------------------------------- tables
    refused("Delta", DELTA, "a table of Delta", source="t"),
    refused("Delta, by its folder's slash", DELTA, "a table of Delta", source="t/"),
    refused("a day of Delta", {"t/day=1/a.parquet": TABLE, "t/_delta_log/0.json": "{}"}, "a table of Delta",
             source="t/day=1"),
    refused("Hudi", {"t/a.parquet": TABLE, "t/.hoodie/hoodie.properties": "x"}, "a table of Hudi", source="t"),
    refused("Iceberg", {"t/data/a.parquet": TABLE, "t/metadata/v1.metadata.json": "{}", "t/metadata/s.avro": b"Obj\1"},
            "a table of Iceberg", source="t", mend=lambda folder: shutil.rmtree(folder / "t/metadata")),
    refused("Iceberg's data", {"t/data/a.parquet": TABLE, "t/metadata/v1.metadata.json": "{}"}, "of Iceberg",
             source="t/data"),
    case("a folder called metadata", {"t/metadata/a.parquet": TABLE}, source="t/metadata"),
]  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """The rows (or the error) of each case, and the rows after the remedy of its error; all rows in two jobs."""

    def attempt(source: str, asked: HistoryOptions, *, is_counted: bool) -> DataFrame | TimewheelError:
        try:
            raw, mapping = asked.read(spark, source)
            frame = raw.transform(assessed(mapping))
            if is_counted:
                statistic_of(frame, source=source)
        except TimewheelError as error:
            return error
        return frame

    root = tmp_path_factory.mktemp("odd")
    found: dict[str, DataFrame | TimewheelError] = {}
    again: dict[str, DataFrame | TimewheelError] = {}
    for number, one in enumerate(CASES):
        folder = root / str(number)
        folder.mkdir()
        source, asked = one.made(folder), HistoryOptions(**one.options)
        outcome = found[one.name] = attempt(source, asked, is_counted=one.error is not None)
        if isinstance(outcome, TimewheelError) and one.error is not None:
            if one.mend is None:
                source, asked = followed(str(outcome), source, asked, one.values)
            else:
                one.mend(folder)
            again[one.name] = attempt(source, asked, is_counted=False)
    first, second = rows_of(found), rows_of(again)
    return {one.name: (first[one.name], second.get(one.name)) for one in CASES}


def rows_of(frames: Mapping[str, DataFrame | TimewheelError]) -> dict[str, Any]:
    """Collect the rows of all frames in one job; of an error the error."""
    read = [
        frame.select(F.lit(name).alias("case"), "*") for name, frame in frames.items() if isinstance(frame, DataFrame)
    ]
    while len(read) > 1:  # as a tree: a chain of unions takes quadratic time to analyse
        read = [reduce(DataFrame.unionAll, read[at : at + 8]) for at in range(0, len(read), 8)]
    rows: dict[str, Any] = {name: frame if isinstance(frame, TimewheelError) else [] for name, frame in frames.items()}
    for row in read[0].collect():
        rows[row["case"]].append(row)
    return rows


def timers_of(rows: Any) -> tuple[list[Timer], list[str]]:
    assert not isinstance(rows, Exception), rows
    sound = [row for row in rows if row["reason"] is None]
    timers = [(row["publish_ms"], row["due_ms"], row["key"], row["topic"]) for row in sound]
    return sorted(timers, key=repr), sorted(row["reason"] for row in rows if row["reason"] is not None)


@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in CASES])
@pytest.mark.short
def test_a_file_gives_its_timers_or_an_error_whose_remedy_works(
    outcomes: dict[str, tuple[Any, Any]], one: Case
) -> None:
    found, remedied = outcomes[one.name]
    if one.error is not None:
        kind, phrase = one.error
        assert isinstance(found, kind), found
        assert phrase in str(found)
        found = remedied
    assert timers_of(found) == (sorted(one.timers, key=repr), sorted(one.reasons))


@pytest.mark.parametrize(("looked_at", "phrase"), [(2, "by a pattern"), (3, "by patterns")])
def test_beyond_the_files_that_are_looked_at_other_columns_are_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_at: int, phrase: str
) -> None:
    monkeypatch.setattr(files, "FILES", looked_at)  # of 2 that differ; of 3, but not of the file that differs
    for number in range(5):
        (tmp_path / f"{number}.csv").write_text(TURNED if number == 3 else CSV)

    def timers(source: str) -> int:
        raw, mapping = HistoryOptions().read(spark, source)
        return statistic_of(raw.transform(assessed(mapping)), source=source).timers

    with pytest.raises(HistoryUnreadable, match=phrase):
        timers(str(tmp_path))
    assert timers(f"{tmp_path}/[0124].csv") + timers(f"{tmp_path}/3.csv") == 10


def test_there_are_at_least_a_hundred_of_them_each_with_its_own_name() -> None:
    assert len({one.name for one in CASES}) == len(CASES) >= 100


@pytest.mark.parametrize("cut", range(65_530, 65_536))
def test_a_character_that_is_cut_at_the_end_of_the_first_bytes_is_no_other_encoding(cut: int) -> None:
    assert encoding_of(("ä€🂡" * 9_000).encode()[:cut]) == "utf-8"
