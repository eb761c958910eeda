"""Renders the screen of a terminal after a program has moved its cursor."""

from __future__ import annotations

import re

_STEP = re.compile(
    r"\x1b\[(?P<count>\??\d*(?:;\d+)*)(?P<do>[A-Za-z])|(?P<line>\n)|(?P<begin>\r)|(?P<text>[^\x1b\r\n]+)"
)


def lines_of(written: str) -> list[str]:
    """Return the lines of the screen, without empty lines at the end; only moves and deletions of the cursor are
    interpreted.
    """
    lines, row, column = [""], 0, 0
    for step in _STEP.finditer(written):
        if step["text"]:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + step["text"] + line[column + len(step["text"]) :]
            column += len(step["text"])
        elif step["line"]:
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif step["begin"]:
            column = 0
        elif step["do"] == "A":
            row = max(row - int(step["count"] or 1), 0)
        elif step["do"] == "K":
            lines[row] = "" if step["count"] == "2" else lines[row][:column]
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]
