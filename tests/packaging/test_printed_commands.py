"""Every line for `timewheel` that an error, a finding or an answer prints is one that the command line takes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

import pytest

from tests.support.checkout import ROOT
from tests.support.tables import commands

FOLDERS = ("timewheel", "producers", "consumers", "spark_planner")
COMMANDS = dict(commands())
_NAMED = re.compile(rf"timewheel ((?:{'|'.join({name.split()[1] for name in COMMANDS})})\b[^`;,():\n]*)")
_PLACEHOLDER = re.compile(r"[A-Z]{2}[A-Z-]*|.*VALUE.*|[\w-]+\.(toml|parquet|html)")
"""What may stand for an argument: a value that is put in, the name of an argument, a file that the line makes."""
ONLY_NAMED = {
    ("timewheel/cli/demo.py", "timewheel demo"): "a title",
    ("timewheel/demo/report.py", "timewheel demo"): "a title",
    ("timewheel/cli/plan_check.py", "timewheel profile"): "needs no argument",
    ("timewheel/cli/planning.py", "timewheel survey"): "what made a folder, in help",
    ("timewheel/cli/plan_check.py", "timewheel survey"): "what made a folder, in help",
    ("timewheel/cli/planning.py", "timewheel sample"): "what made a file, in help",
    ("timewheel/cli/plan.py", "timewheel predict"): "with the history itself, whose name is not known here",
    ("timewheel/cli/sources.py", "timewheel plan check"): "another command, which knows more",
    ("timewheel/core/plan.py", "timewheel shadow run"): "why the plan is refused",
    ("timewheel/inspect/doctor/verdict.py", "timewheel doctor"): "a title",
    ("spark_planner/results/facts.py", "timewheel plan"): "with the history itself, whose name is not known here",
    ("spark_planner/results/report_page.py", "timewheel plan"): "a title",
}
"""Commands that are named where nobody is asked to type them, with the reason."""


def texts(path: str) -> Iterator[str]:
    """All texts of a module but its doc strings; what is put into one is VALUE."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    passed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    passed |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "timewheel_command":
            yield " ".join(["timewheel", *(word for one in node.args for word in _words_of(one))])
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield node.value


def _words_of(argument: ast.expr) -> list[str]:
    """Words that an argument of `timewheel_command` stands for; more options that are handed on are not known here."""
    if isinstance(argument, ast.Starred):
        return []
    return [str(argument.value)] if isinstance(argument, ast.Constant) else ["VALUE"]


def printed() -> Iterator[tuple[str, str]]:
    """Each mention of a command: the module, and the text from its name on."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).resolve().rglob("*.py")):
            if path.is_relative_to(ROOT / folder):
                name = str(path.relative_to(ROOT))
                yield from ((name, f"timewheel {found[1]}") for text in texts(name) for found in _NAMED.finditer(text))


def command_of(words: list[str]) -> str:
    return max((name for name in COMMANDS if words[: len(name.split())] == name.split()), key=len, default="")


def problem_of(line: str) -> str | None:
    """What the command line would refuse of a line, which may be followed by words of its sentence; None: nothing."""
    words = shlex.split(line.rstrip(".'\""))
    name = command_of(words)
    if not name:
        return "no command"
    options = {option: one for one in COMMANDS[name].params for option in [*one.opts, *one.secondary_opts]}
    given, arguments = set(), 0
    rest = iter(words[len(name.split()) :])
    for word in rest:
        if word.startswith("-"):
            if word not in options:
                return f"no option {word}"
            given.add(options[word].name)
            if not options[word].is_flag:
                value = next(rest, "")
                if not _PLACEHOLDER.fullmatch(value):
                    return f"{word} {value} is no value"
        elif _PLACEHOLDER.fullmatch(word):
            arguments += 1
        else:
            break  # the sentence goes on
    needed = sum(one.required for one in COMMANDS[name].params if one.param_type_name == "argument")
    if name == "timewheel plan" and "stored" in given:
        needed = 1  # --from is in the history's place
        arguments += 1
    if lacking := [one.opts[0] for one in COMMANDS[name].params
                   if one.required and one.param_type_name == "option" and one.name not in given]:  # fmt: skip
        return f"{lacking[0]} is required"
    return None if arguments >= needed else f"{arguments} arguments, {needed} are needed"


PRINTED = sorted(set(printed()))


@pytest.mark.parametrize(
    ("path", "line"), [one for one in PRINTED if (one[0], command_of(one[1].split())) not in ONLY_NAMED]
)
def test_a_printed_line_is_taken(path: str, line: str) -> None:
    assert problem_of(line) is None, path


def test_what_is_only_named_is_there() -> None:
    assert {(path, command_of(line.split())) for path, line in PRINTED} >= ONLY_NAMED.keys()
    assert len(PRINTED) > 60


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("timewheel topics ensure VALUE --dry-run lists all", None),
        ("timewheel topics ensure makes it", "0 arguments, 1 are needed"),
        ("timewheel dead-letters list.", "0 arguments, 1 are needed"),
        ("timewheel topics ensure PLAN --grown", "no option --grown"),
        ("timewheel sample VALUE", "-o is required"),
        ("timewheel plan --from VALUE", None),
        ("timewheel relay run PLAN", None),
    ],
)
def test_what_the_command_line_would_refuse_is_found(line: str, problem: str | None) -> None:
    assert problem_of(line) == problem
