"""Commands of `timewheel`, each in a process of its own, as a user runs them: `timewheel("gaps", topic)`.

A process that has loaded all modules, and has no threads, forks for each command. To load them takes a second of the
processor, which hundreds of commands of the tests would spend again.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import typer.main

NOT_LOADED = ("__main__", "demo", "spark_planner", "testing", "watch", "_report")
"""Parts that are large, or start something when they are loaded."""
LOADED_LATE = ("encodings.idna", "h11", "httpcore", "certifi", "pydantic.type_adapter")
"""What libraries load at the first request."""


def timewheel(
    *words: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    entered: str = "",
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end.

    Args:
        words: Behind ``timewheel``.
        env: All of its variables; None: those of this process.
        timeout: In seconds; it is killed then, and `subprocess.TimeoutExpired` raised.
    """
    arguments = list(map(str, words))
    if runs_here.get():
        return _run_here(arguments, cwd, env, entered)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as connection:
        for name, text in (("in", entered), ("out", ""), ("err", "")):
            Path(folder, name).write_text(text, encoding="utf-8")
        connection.settimeout(timeout)
        connection.connect(_server(os.getpid()))
        with connection.makefile("rw") as stream:
            variables = dict(os.environ if env is None else env)
            asked = {"words": arguments, "cwd": str(cwd or Path.cwd()), "env": variables, "folder": folder}
            stream.write(f"{json.dumps(asked)}\n")
            stream.flush()
            pid = int(stream.readline())
            try:
                status = int(stream.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["timewheel", *arguments], timeout) from None
        out, err = (Path(folder, name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
    return subprocess.CompletedProcess(["timewheel", *arguments], status, out, err)


_built = functools.cache(typer.main.get_command)
"""Makes the commands of all parts once; to make them takes longer than to run most."""

runs_here: ContextVar[bool] = ContextVar("runs_here", default=False)
"""Whether commands run on the caller's own thread: in a virtual time, into which no other process comes."""


def _run_here(
    arguments: list[str], cwd: Path | None, env: Mapping[str, str] | None, entered: str
) -> subprocess.CompletedProcess[str]:
    from timewheel.cli.app import main

    out, err, status = io.StringIO(), io.StringIO(), 0
    with (
        redirect_stdout(out), redirect_stderr(err), chdir(cwd or Path.cwd()),
        mock.patch.dict(os.environ, os.environ if env is None else env, clear=True),
        mock.patch.object(sys, "argv", ["__main__.py", *arguments]),
        mock.patch.object(sys, "stdin", io.StringIO(entered)),
        mock.patch.object(sys.modules["__main__"], "__package__", "timewheel"),
        mock.patch.object(typer.main, "get_command", _built),
    ):  # fmt: skip
        try:
            main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return subprocess.CompletedProcess(["timewheel", *arguments], status, out.getvalue(), err.getvalue())


def well(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """A command that has ended with status 0."""
    assert done.returncode == 0, f"{done.args}\n{done.stdout}{done.stderr}"
    return done


_starting = threading.Lock()


def _server(owner: int) -> str:
    with _starting:
        return _started(owner)


@functools.cache
def _started(owner: int) -> str:
    """Start the process that forks, and return its address; it ends with its owner."""
    del owner  # a fork of this process has another one
    folder = tempfile.TemporaryDirectory()
    address = str(Path(folder.name, "server"))
    server = subprocess.Popen([sys.executable, "-m", __name__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None

    def end() -> None:
        server.stdin.close()  # type: ignore[union-attr]
        server.wait(30)
        server.stdout.close()  # type: ignore[union-attr]
        folder.cleanup()

    atexit.register(end)
    assert server.stdout.readline() == b"ready\n"
    return address


def _load_all() -> None:
    import timewheel as package

    own = (found.name for found in pkgutil.walk_packages(package.__path__, "timewheel.", onerror=lambda _: None))
    for name in (*own, *LOADED_LATE):
        if not any(part in NOT_LOADED for part in name.split(".")):
            with suppress(ImportError):
                importlib.import_module(name)
    from timewheel.broker.admin import AdminClient
    from timewheel.cli.app import app

    AdminClient("http://localhost").close()  # reads the authorities
    typer.main.get_command = _built
    _built(app)


def _serve(address: str) -> None:
    _load_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are waited for by the kernel
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:  # until the owner has ended
            connection, _ = listening.accept()
            if not os.fork():
                listening.close()
                _answer(connection)
            connection.close()


def _answer(connection: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection.makefile("rw") as stream:
        asked = json.loads(stream.readline())
        pid = os.fork()
        if not pid:
            _run(asked)
        stream.write(f"{pid}\n")
        stream.flush()
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):
            stream.write(f"{os.waitstatus_to_exitcode(status)}\n")
            stream.flush()
    os._exit(0)


def _run(asked: dict[str, Any]) -> NoReturn:
    folder = asked["folder"]
    for number, name, flags in ((0, "in", os.O_RDONLY), (1, "out", os.O_WRONLY), (2, "err", os.O_WRONLY)):
        os.dup2(os.open(f"{folder}/{name}", flags | (os.O_APPEND if number else 0)), number)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = ["__main__.py", *asked["words"]]
    sys.modules["__main__"].__package__ = "timewheel"  # which usage errors name
    status: object = 1
    try:
        from timewheel.cli.app import main

        main()
    except SystemExit as ended:
        status = ended.code
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else int(status is not None))


if __name__ == "__main__":
    _serve(sys.argv[1])
