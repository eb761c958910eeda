"""The files of a history: where they are, how each is written, and which of them Spark would misread.

Spark reads all files of a folder by the columns of the first. So the driver looks at the ends of each text file (by
Hadoop's file systems, so that any storage will do), and files that are written alike become a group. A client of Spark
Connect has no such access: there Spark itself refuses a file whose columns differ from those of the first.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from timewheel.core.escapes import shell_line, timewheel_command

from ..errors import EmptyHistory, HistoryUnreadable

FILES = 1_000  # most files that the driver looks at
FIRST_BYTES, LAST_BYTES = 65_536, 4_096
_LINES = 20  # first lines that tell the separator of a CSV file
_AT_ONCE = 16  # files that are looked at concurrently: object stores answer slowly
SEPARATORS = ",;\t|"
FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
}
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".snappy", ".lz4")
_CHARSETS = {
    "utf-8": "UTF-8",
    "utf-8-sig": "UTF-8",
    "ascii": "US-ASCII",
    "iso8859-1": "ISO-8859-1",
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16LE",
    "utf-16-be": "UTF-16BE",
    "utf-32": "UTF-32",
}
"""Spark's names of the encodings that it reads, by Python's."""
_WIDE = {"utf-16", "utf-16-le", "utf-16-be", "utf-32"}
_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe\0\0", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_BINARY = {b"PAR1": "parquet", b"ORC": "orc", b"Obj\1": "avro"}  # first bytes
_PACKED = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"}
"""First bytes of packed files, with the ending by which Hadoop knows to unpack them."""
_UNPACKED_BY = {b"PK\3\4": ("zip", "unzip -p"), b"\xfd7zXZ": ("xz", "xz -dc")}
_TABLES = {"_delta_log": "Delta", ".hoodie": "Hudi", "metadata": "Iceberg"}
_TABLE = "{_delta_log/*,.hoodie/hoodie.properties,metadata/*.metadata.json}"
_FOLDERS = 20  # most folders in which a table's log is looked for
_ROOT = re.compile(r"[^:/]+://[^/]*/")
_PATTERN = re.compile(r"[\\\[\]{}?*]")  # characters with a meaning in Hadoop's patterns


@dataclass(frozen=True, slots=True)
class Written:
    """How files are written that Spark may read together."""

    format: str
    options: tuple[tuple[str, str], ...] = ()
    header: str = ""  # first line of a CSV file

    def also(self, name: str, value: str) -> Written:
        return replace(self, options=(*self.options, (name, value)))


def format_of_name(name: str) -> str | None:
    """Return the format by the ending of a name, without that of a compression."""
    endings = [ending.lower() for ending in PurePath(name).suffixes]
    if endings and endings[-1] in _COMPRESSIONS:
        endings.pop()
    return FORMATS.get(endings[-1]) if endings else None


def groups_of(
    spark: SparkSession, source: str, file_format: str | None, separator: str | None, encoding: str | None
) -> dict[Written, list[str]]:
    """Return the paths of a history's files, as Spark takes them, by how they are written.

    Raises:
        EmptyHistory: All files are empty.
        HistoryUnreadable: There is no file, or one that Spark would not read, or not as it is meant.
    """
    path = _literal(source)
    if encoding is not None:
        encoding = _charset(source, encoding)
    files = sorted(spark.read.text(path, recursiveFileLookup=True).inputFiles())
    _refuse_hidden(source, files)
    is_pattern = path == source and _PATTERN.search(source) is not None
    if not is_pattern:
        _refuse_table(spark, source, files)
    found: dict[Written, list[str]] = {}
    looked_at = files[:: -(-len(files) // FILES)]
    for file, written in _looked(spark, source, looked_at, file_format or format_of_name(source), separator, encoding):
        if written is not None:
            found.setdefault(written, []).append(path_of(file))
    if not found:
        raise EmptyHistory
    has_columns = any("=" in file.rpartition("/")[0] for file in files)  # folders that Spark makes columns of
    if len(found) == 1:
        (written,) = found
        return {written if has_columns else written.also("recursiveFileLookup", "true"): [path]}
    if len(looked_at) < len(files):
        raise HistoryUnreadable(
            source,
            f"its {len(files):,} files are not written alike, and are more than the {FILES:,} that can be told apart",
            "give those with the same columns, separator and encoding, by a pattern",
        )
    if has_columns and not is_pattern:
        return {written.also("basePath", source): paths for written, paths in found.items()}
    return found


def escaped(path: str) -> str:
    """Return a path that Spark takes literally."""
    return _PATTERN.sub(r"\\\g<0>", path)


def path_of(uri: str) -> str:
    """Return the path of an input file, as Spark takes it."""
    return escaped(unquote(uri))


def _charset(source: str, encoding: str) -> str:
    try:
        "".encode(encoding)  # refuses those that are not of text
        return codecs.lookup(encoding).name
    except LookupError:
        raise HistoryUnreadable(source, f"no encoding {encoding!r} is known", "give another with --encoding") from None


def _literal(source: str) -> str:
    """Return a path as Spark takes it: a name that is there is no pattern, whatever its characters."""
    path = Path(source.removeprefix("file://"))
    try:
        if not path.exists():
            return source
    except (OSError, ValueError):  # too long a name, or one with a null character
        return source
    if not path.is_file() and not path.is_dir():
        raise HistoryUnreadable(source, "it is a pipe or a device, which can be read only once", "write a file")
    return escaped(str(path.absolute() if ":" in source else path))


def _refuse_hidden(source: str, files: Sequence[str]) -> None:
    """Refuse names that Hadoop hides, and names that it cannot open."""
    path = Path(source)
    if not files and path.is_file() and path.name.startswith(("_", ".")):
        link = path.with_name(path.name.lstrip("_.") or "history")
        raise HistoryUnreadable(
            source,
            "to Spark a file is hidden whose name begins with _ or .",
            f"give it another name as well: {shell_line('ln', '-s', str(path.absolute()), str(link))}",
        )
    if not files:
        raise HistoryUnreadable(
            source,
            "there is no file in it, of those that Spark sees: names with _ or . first are hidden",
            "name the folder or the files of the history",
        )
    local = [Path(unquote(file).removeprefix("file://")) for file in files if file.startswith("file:")]
    odd = [file for file in local if ":" in file.name]
    if odd:
        old = odd[0]
        new = old.with_name(old.name.replace(":", "-"))
        loop = 'for file in *:*; do mv "$file" "$(echo "$file" | tr : -)"; done'
        command = shell_line("mv", str(old), str(new)) if path == old else f"cd {shell_line(str(old.parent))} && {loop}"
        raise HistoryUnreadable(
            source,
            f"Hadoop cannot open {str(old)!r}, since its name has a colon, nor any other such file",
            f"rename it: {command}",
        )


def _refuse_table(spark: SparkSession, source: str, files: Sequence[str]) -> None:
    """Refuse the folders of a table whose log tells which rows of which files count."""
    root = _ROOT.match(files[0])
    folders = {file.rsplit("/", up)[0] for file in map(unquote, files) for up in (1, 2, 3)}
    below = [folder[len(root[0]) :] for folder in folders if root is not None and folder.startswith(root[0])]
    if root is None or not below:
        return
    nearest = ",".join(escaped(folder).replace(",", r"\,") for folder in sorted(below, key=len)[:_FOLDERS])
    with suppress(PySparkException, Py4JJavaError, ValueError):  # there is none, or it may not be looked for
        (log, *_) = spark.read.text(f"{root[0]}{{{nearest}}}/{_TABLE}").inputFiles()
        table = next(name for marker, name in _TABLES.items() if f"/{marker}/" in log)
        raise HistoryUnreadable(
            source,
            f"it is a table of {table}, of which only its log tells the rows that count, and its files have others too",
            f"read it with --format {table.lower()} in a session that has the package of {table}, or write the table's "
            "rows as Parquet first. If none was ever deleted or changed, name its files: "
            + timewheel_command("plan", f"{source.rstrip('/')}/*.parquet"),
        )


def _looked(
    spark: SparkSession,
    source: str,
    files: Sequence[str],
    file_format: str | None,
    separator: str | None,
    encoding: str | None,
) -> Iterator[tuple[str, Written | None]]:
    """Yield how each file is written; None: it is empty."""
    jvm: Any = getattr(spark, "_jvm", None)  # a client of Spark Connect has none
    hadoop = None if jvm is None else _Hadoop(spark, jvm)

    def look(file: str) -> Written | None:
        kind = file_format or format_of_name(unquote(file))
        if hadoop is None or kind not in {None, "csv", "json"}:
            kind = kind or "parquet"
            return Written(kind, csv_options(separator, encoding) if kind == "csv" else ())
        name = unquote(file).removeprefix("file://")
        try:
            first, last = hadoop.ends(file)
        except Py4JJavaError as error:
            said = " ".join(str(error.java_exception.getMessage()).split())
            raise HistoryUnreadable(
                source, f"{name} cannot be read: {said}", "check that you may read it, and that it is whole"
            ) from None
        return _written(source, name, kind, first, last, separator, encoding)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="timewheel-files") as pool:
        yield from zip(files, pool.map(look, files), strict=True)


class _Hadoop:
    """Files by Hadoop's file systems in the driver's Java process."""

    def __init__(self, spark: SparkSession, jvm: Any) -> None:
        self._jvm = jvm
        session: Any = spark._jsparkSession  # noqa: SLF001
        self._settings = session.sessionState().newHadoopConf()
        self._streams = jvm.org.apache.spark.sql.execution.datasources.CodecStreams

    def ends(self, uri: str) -> tuple[bytes, bytes]:
        """Return the first bytes of a file, unpacked, and its last bytes; none if it is packed."""
        path = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(uri))
        stream = self._streams.createInputStream(self._settings, path)
        try:
            first = stream.readNBytes(FIRST_BYTES)
            if PurePath(unquote(uri)).suffix.lower() in _COMPRESSIONS:
                return first, b""
            if len(first) == FIRST_BYTES:
                stream.seek(max(path.getFileSystem(self._settings).getFileStatus(path).getLen() - LAST_BYTES, 0))
                return first, stream.readNBytes(LAST_BYTES)
            return first, first[-LAST_BYTES:]
        finally:
            stream.close()


def _written(
    source: str, name: str, kind: str | None, first: bytes, last: bytes, separator: str | None, encoding: str | None
) -> Written | None:
    for start, binary in _BINARY.items():
        if first.startswith(start) and kind is not None:
            raise HistoryUnreadable(source, f"{name} is no {kind}, by its first bytes", f"give --format {binary}")
        if first.startswith(start):
            return Written(binary)
    _refuse_packed(source, name, first)
    charset = encoding or encoding_of(first)
    _refuse_encoding(source, name, charset, _CHARSETS.keys())
    text = first.decode(charset, "replace").lstrip("\ufeff")
    if not text.strip():
        return None
    if kind == "json" or (kind is None and text.lstrip()[:1] in {"{", "["}):
        _refuse_encoding(source, name, charset, {"utf-8", "utf-8-sig"})
        return _json(source, name, text, last)
    header = next(line for line in text.splitlines() if line.strip())
    options = csv_options(separator, charset, text)
    fields = _fields(header, dict(options)["sep"])
    if len(fields) == 1:
        raise HistoryUnreadable(
            source,
            f"the first line of {name} names one column, {header[:80]!r}",
            "name the character between its columns with --separator, or leave the file out",
        )
    if sum(field[:1].isdigit() for field in fields) > 1:
        raise HistoryUnreadable(
            source,
            f"the first line of {name} is {header[:80]!r}, and no names of columns",
            "write the columns' names before it, in a line such as publish_ms,due_ms",
        )
    line = last.decode(charset, "replace").splitlines()[-1:] if charset in {"utf-8", "iso8859-1"} else []
    if line and not last.endswith((b"\n", b"\r")) and "multiLine" not in dict(options):
        _refuse_cut(source, name, is_cut=len(_fields(line[0], dict(options)["sep"])) < len(fields))
    return Written("csv", options, header.strip())


def encoding_of(first: bytes) -> str:
    """Return the encoding of a text, by its mark or its bytes; text that is not Unicode counts as Latin-1."""
    for mark, name in _MARKS:
        if first.startswith(mark):
            return name
    if 4 * first.count(0) > len(first):
        return "utf-16-be" if first[:1] == b"\0" else "utf-16-le"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(first)  # the last character may be cut
    except UnicodeDecodeError:
        return "iso8859-1"
    return "utf-8"


def csv_options(separator: str | None, charset: str | None, text: str = "") -> tuple[tuple[str, str], ...]:
    """Return Spark's options for CSV files that begin with a text."""
    lines = [line for line in text.splitlines() if line.strip()][:_LINES]

    def fits(one: str) -> tuple[bool, int]:
        widths = [len(_fields(line, one)) for line in lines] or [0]
        return widths[0] > 1 and len(set(widths)) == 1, widths[0]

    found = separator or max(SEPARATORS, key=fits)
    sep = {r"\t": "\t"}.get(found, found)
    rows = _rows(text, sep)
    options = {
        "header": "true",
        "sep": sep,
        "encoding": _CHARSETS[charset or "utf-8"],
        "ignoreLeadingWhiteSpace": "true",
        "ignoreTrailingWhiteSpace": "true",
        "enforceSchema": "false",  # refuses a file with other columns, rather than to read it by those of the first
        # A quote in quotes is written twice; by Spark itself \", by which others may end a field.
        "escape": "\\" if r"\"" in text and len(set(map(len, rows))) > 1 else '"',
    }
    if charset in _WIDE or any("\n" in field for row in rows for field in row):
        options["multiLine"] = "true"  # Spark cuts no such file into pieces
    return tuple(options.items())


def _rows(text: str, separator: str) -> list[list[str]]:
    """Return the rows of a text's beginning, without the last, which may be cut."""
    rows: list[list[str]] = []
    with suppress(csv.Error, TypeError):  # a null character, an endless field, a separator of several characters
        rows.extend(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    return rows[:-1]


def _fields(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator))
    except (csv.Error, TypeError):
        return line.split(separator)


def _refuse_encoding(source: str, name: str, charset: str, known: Collection[str]) -> None:
    if charset not in known:
        line = shell_line("iconv", "-f", charset, "-t", "utf-8", name)
        into = shell_line(_beside(name, f".utf-8{PurePath(name).suffix}"))
        raise HistoryUnreadable(
            source,
            f"{name} is written in {charset}, which Spark does not read there",
            f"convert it, and leave --encoding out: {line} > {into}",
        )


def _json(source: str, name: str, text: str, last: bytes) -> Written:
    is_array = text.lstrip()[:1] == "[" and not _is_json(text.lstrip().splitlines()[0])
    if last and not last.endswith((b"\n", b"\r")) and not is_array:
        line = last.rstrip().rpartition(b"\n")[2].decode(errors="replace")
        is_by_line = _is_json(text.lstrip().splitlines()[0])
        _refuse_cut(source, name, is_cut=is_by_line and b"\n" in last.strip() and not _is_json(line))
    return Written("json", (("multiLine", "true"),) if is_array else ())


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _refuse_cut(source: str, name: str, *, is_cut: bool) -> None:
    if is_cut:
        raise HistoryUnreadable(
            source,
            f"{name} ends within a row: it is cut",
            f"copy it again, or take the row away: {shell_line('sed', '-i', '$d', name)}",
        )


def _refuse_packed(source: str, name: str, first: bytes) -> None:
    if first[257:262] == b"ustar":
        into = str(PurePath(name).with_suffix(""))
        command = f"{shell_line('mkdir', into)} && {shell_line('tar', '-xf', name, '-C', into)}"
        raise HistoryUnreadable(source, f"{name} is an archive", f"unpack it: {command}")
    if b"[Content_Types].xml" in first:
        raise HistoryUnreadable(source, f"{name} is a workbook of a spreadsheet", "save its rows as CSV")
    for start, ending in _PACKED.items():
        if first.startswith(start):
            raise HistoryUnreadable(
                source,
                f"{name} is packed, and its name does not end with {ending}",
                f"name it so: {shell_line('mv', name, name + ending)}",
            )
    for start, (what, command) in _UNPACKED_BY.items():
        if first.startswith(start):
            into = shell_line(_beside(name, ""))
            raise HistoryUnreadable(
                source, f"{name} is packed by {what}", f"unpack it: {command} {shell_line(name)} > {into}"
            )


def _beside(name: str, ending: str) -> str:
    """Return a new name for what a file holds."""
    stem = str(PurePath(name).with_suffix(""))
    return stem + (ending or ("" if format_of_name(stem) else ".csv"))
