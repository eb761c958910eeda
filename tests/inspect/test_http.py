"""Who is asked, with which credentials, how often: against brokers made up by the test."""

from __future__ import annotations

import gzip
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

from tests.support.manual_clock import LeapingClock
from timewheel.broker.admin.http import MAX_REDIRECTS, SWITCH_S, AdminHttp, Repeat, may_repeat
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable, OwnerUnreachable

ASKED = "http://asked:8080"
OWNER = "http://owner:8080"

Answer = httpx.Response | Exception


class Brokers:
    """Answers requests in order and remembers them; the last answer is given again and again."""

    def __init__(self, *answers: Answer) -> None:
        self._answers: Iterator[Answer] = iter(answers)
        self._last: Answer = answers[-1]
        self.requests: list[httpx.Request] = []
        self.clock = LeapingClock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = next(self._answers, self._last)
        if isinstance(answer, Exception):
            raise answer
        # One response object may be given several times; httpx binds it to its request.
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def http(self, url: str = ASKED, **options: Any) -> AdminHttp:
        return AdminHttp(url, transport=httpx.MockTransport(self), clock=self.clock, **options)

    @property
    def urls(self) -> list[str]:
        return [str(request.url) for request in self.requests]

    @property
    def credentials(self) -> list[str | None]:
        return [request.headers.get("Authorization") for request in self.requests]


def ok(value: Any = "ok") -> httpx.Response:
    return httpx.Response(200, json=value)


def redirect(location: str, status: int = 307) -> httpx.Response:
    return httpx.Response(status, headers={"Location": location})


def refusal(status: int, reason: str = "because") -> httpx.Response:
    return httpx.Response(status, json={"reason": reason})


# --- redirects


def test_a_redirect_is_followed_to_the_owner_with_authorization_method_body_and_query() -> None:
    brokers = Brokers(redirect(f"{OWNER}/admin/v2/persistent/a/b/c/messageTTL?messageTTL=0"), httpx.Response(204))
    brokers.http(token="t0ken").call("POST", "/persistent/a/b/c/messageTTL", query={"messageTTL": "0"}, body={"x": 1})
    assert brokers.urls == [
        f"{ASKED}/admin/v2/persistent/a/b/c/messageTTL?messageTTL=0",
        f"{OWNER}/admin/v2/persistent/a/b/c/messageTTL?messageTTL=0",
    ]
    assert brokers.credentials == ["Bearer t0ken"] * 2
    assert [(request.method, request.content) for request in brokers.requests] == [("POST", b'{"x": 1}')] * 2


@pytest.mark.parametrize(
    ("answer", "method", "said", "requests"),
    [
        (redirect(f"{OWNER}/admin/v2/x"), "GET", "more than 5 redirects, the last to http://owner:8080", 6),
        (httpx.Response(307), "GET", "no broker's address", 1),
        (redirect("https:///nowhere"), "GET", "no broker's address", 1),
        (redirect("http://owner:eighty/x"), "GET", "Invalid port: 'eighty'", 1),
        (redirect(f"{OWNER}/login", status=302), "POST", "does not keep POST", 1),  # it would become a read
    ],
)
def test_a_redirect_that_leads_nowhere_or_round_in_circles_is_an_error(
    answer: httpx.Response, method: str, said: str, requests: int
) -> None:
    brokers = Brokers(answer)
    with pytest.raises(AdminError, match=said):
        brokers.http(token="t0ken", retry_for_s=0).call(method, "/x")
    assert len(brokers.requests) == requests
    assert MAX_REDIRECTS == 5


# The first leads from https down to http.
@pytest.mark.parametrize(
    "location",
    ["http://owner:8080/admin/v2/x", "ftp://owner/x", "ws://owner:8080/admin/v2/x", "file:///etc/passwd",
     "https://somebody:secret@owner/x"],
)  # fmt: skip
def test_a_token_follows_no_redirect_that_is_not_to_a_broker_at_least_as_safe(location: str) -> None:
    brokers = Brokers(redirect(location))
    with pytest.raises(AdminError, match="redirect") as refused:
        brokers.http("https://asked:8443", token="t0ken").get("/x")
    assert refused.value.status == 307
    assert len(brokers.requests) == 1
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "location",
    [
        f"{OWNER}/admin/v2/persistent/a/b/other?force=false",
        f"{OWNER}/admin/v2/persistent/a/b/c",
        f"{OWNER}/admin/v2/persistent/a/b/c?force=true",
        f"{OWNER}/admin/v2/persistent/a/b/c?force=false&deleteSchema=true",
        f"{OWNER}/admin/v2/persistent/a/b/c%2F..?force=false",
        f"{OWNER}/steal?force=false",
    ],
)
def test_no_redirect_makes_another_call_of_it(location: str) -> None:
    brokers = Brokers(redirect(location))
    with pytest.raises(AdminError, match="to another call"):
        brokers.http(token="t0ken").call("DELETE", "/persistent/a/b/c", query={"force": "false"})
    assert len(brokers.requests) == 1


@pytest.mark.parametrize(
    "path", ["/admin/v2/persistent/a/b/c%2B?force=false&authoritative=true", "/admin/v2/persistent/a/b/c+?force=false"]
)
def test_a_proxys_prefix_and_the_brokers_own_mark_are_no_other_call(path: str) -> None:
    brokers = Brokers(redirect(f"{OWNER}{path}"), httpx.Response(204))
    brokers.http(f"{ASKED}/proxy").call("DELETE", "/persistent/a/b/c%2B", query={"force": "false"})
    assert brokers.urls[-1] == f"{OWNER}{path}"


def test_a_redirect_from_http_up_to_https_is_followed() -> None:
    brokers = Brokers(redirect("https://owner:8443/admin/v2/x"), ok())
    assert brokers.http().get("/x") == "ok"


def test_after_the_owner_died_the_asked_broker_is_asked_again() -> None:
    brokers = Brokers(redirect(f"{OWNER}/admin/v2/x"), httpx.ConnectError("refused"), ok())
    assert brokers.http().get("/x") == "ok"
    assert brokers.urls == [f"{ASKED}/admin/v2/x", f"{OWNER}/admin/v2/x", f"{ASKED}/admin/v2/x"]


# --- tokens


@pytest.mark.parametrize(
    ("tokens", "answers", "calls", "sent"),
    [
        (None, [ok()], 1, [None]),
        # As from a file that ends with a newline; asked for before every request, so that it may be renewed.
        (["first\n", "second\n"], [ok()], 2, ["Bearer first", "Bearer second"]),
        (["old", "new", "newer"], [refusal(401), ok()], 1, ["Bearer old", "Bearer new"]),  # it ran out on the way
    ],
)
def test_the_token_of_now_is_sent(
    tokens: list[str] | None, answers: list[Answer], calls: int, sent: list[str | None]
) -> None:
    brokers, given = Brokers(*answers), iter(tokens or ())
    http = brokers.http(token=None if tokens is None else lambda: next(given))
    assert [http.get("/x") for _ in range(calls)] == ["ok"] * calls
    assert brokers.credentials == sent


@pytest.mark.parametrize("token", ["fixed", lambda: "fixed"])
def test_the_same_token_is_not_sent_again_after_401(token: str | Callable[[], str]) -> None:
    brokers = Brokers(refusal(401, "Authentication required"))
    with pytest.raises(AdminDenied, match="Authentication required"):
        brokers.http(token=token).get("/x")
    assert len(brokers.requests) == 1


def test_a_token_never_shows_in_an_error() -> None:
    refusals = [refusal(status) for status in (401, 403, 404, 418)]
    answers: list[Answer] = [*refusals, httpx.ConnectError("x"), redirect("ftp://x")]
    for answer in answers:
        with pytest.raises(AdminError) as failed:
            Brokers(answer).http(token="s3cret", retry_for_s=0).get("/x")
        assert "s3cret" not in str(failed.value)


@pytest.mark.parametrize(
    "url",
    ["broker:8080", "pulsar://broker:6650", "http://", "http://u:p@broker:8080", "",
     "http://one:8080,", "http://one:8080,u:p@two:8080"],
)  # fmt: skip
def test_what_is_no_admin_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="admin URL"):
        AdminHttp(url)


def test_a_path_of_a_proxy_is_kept() -> None:
    brokers = Brokers(ok())
    brokers.http("https://gateway/pulsar/").get("/brokers/version")
    assert brokers.urls == ["https://gateway/pulsar/admin/v2/brokers/version"]


# --- repeating

NOT_SENT = AdminUnreachable("GET /x", "refused", sent=False)
NO_ANSWER = AdminUnreachable("GET /x", "timed out", sent=True)


def failed(status: int) -> AdminError:
    return AdminError(status, "GET /x", "because")


@pytest.mark.parametrize(
    ("error", "repeated_for"),
    [
        (NOT_SENT, {Repeat.READ, Repeat.WRITE, Repeat.NEVER}),
        (OwnerUnreachable("GET /x", "refused", sent=False), {Repeat.READ, Repeat.WRITE, Repeat.NEVER}),
        (OwnerUnreachable("GET /x", "timed out", sent=True), {Repeat.READ, Repeat.WRITE}),
        (failed(429), {Repeat.READ, Repeat.WRITE, Repeat.NEVER}),
        (NO_ANSWER, {Repeat.READ, Repeat.WRITE}),
        (AdminUnreachable("GET /x", "no HTTP", sent=False, wrong_url=True), set()),
        (AdminUnreachable("GET /x", "no HTTP", sent=True, wrong_url=True), set()),
        (failed(502), {Repeat.READ, Repeat.WRITE}),
        (failed(503), {Repeat.READ, Repeat.WRITE}),
        (failed(504), {Repeat.READ, Repeat.WRITE}),
        (failed(500), {Repeat.READ}),
        *((failed(status), set()) for status in (307, 400, 404, 405, 406, 409, 412, 422, 501)),
        (AdminDenied(401, "GET /x", "because"), set()),
        (AdminDenied(403, "GET /x", "because"), set()),
        (AdminMissing(404, "GET /x", "because"), set()),
        (ValueError("a bug is not tried again"), set()),
    ],
)
def test_the_table_of_what_is_repeated(error: Exception, repeated_for: set[Repeat]) -> None:
    assert {repeat for repeat in Repeat if may_repeat(repeat, error)} == repeated_for


@pytest.mark.parametrize(
    ("failure", "calls"),
    [
        (refusal(503), {"GET": 2, "PUT": 2, "skip": 1}),
        (refusal(500), {"GET": 2, "PUT": 1, "skip": 1}),
        (refusal(412), {"GET": 1, "PUT": 1, "skip": 1}),
        (httpx.ConnectError("refused"), {"GET": 2, "PUT": 2, "skip": 2}),
        (httpx.ConnectTimeout("slow"), {"GET": 2, "PUT": 2, "skip": 2}),
        (httpx.ReadTimeout("slow"), {"GET": 2, "PUT": 2, "skip": 1}),
        (httpx.RemoteProtocolError("closed"), {"GET": 2, "PUT": 2, "skip": 1}),
    ],
)
def test_calls_are_repeated_as_the_table_says(failure: Answer, calls: dict[str, int]) -> None:
    made: dict[str, int] = {}
    for kind in calls:
        brokers = Brokers(failure, ok())
        repeat = Repeat.NEVER if kind == "skip" else None
        try:
            brokers.http().call("POST" if kind == "skip" else kind, "/x", repeat=repeat)
        except AdminError:
            assert len(brokers.requests) == 1
        made[kind] = len(brokers.requests)

    assert made == calls


def test_repeating_goes_on_for_the_clocks_time_and_no_attempt_begins_after_it() -> None:
    for retry_for_s, waited_ms in ((0, range(1)), (20, range(18_000, 20_000))):
        brokers = Brokers(refusal(503, "Namespace bundle is being unloaded"))
        with pytest.raises(AdminError, match="Namespace bundle is being unloaded") as failed:
            brokers.http(retry_for_s=retry_for_s).get("/x")
        assert failed.value.status == 503
        # The longest pause is 2 s, so that the last attempt begins within the last 2 of 20 s.
        assert sum(brokers.clock.waits_ms) in waited_ms
        assert all(0 < pause_ms <= 2_000 for pause_ms in brokers.clock.waits_ms)
        assert len(brokers.requests) >= max(1, retry_for_s / 2)


@pytest.mark.parametrize("copied", ["", "/", "/admin", "/admin/", "/admin/v2", "/admin/v2/", "/admin/v2/clusters"])
@pytest.mark.parametrize("prefix", ["", "/proxy"])
def test_a_url_that_was_copied_with_the_path_of_the_admin_api_is_cut(copied: str, prefix: str) -> None:
    brokers = Brokers(ok())
    brokers.http(f"{ASKED}{prefix}{copied}").get("/x")
    assert brokers.urls == [f"{ASKED}{prefix}/admin/v2/x"]


def test_nobody_listens_and_no_answer_are_told_apart() -> None:
    with pytest.raises(AdminUnreachable, match="no connection to http://asked:8080") as not_sent:
        Brokers(httpx.ConnectError("refused")).http(retry_for_s=0).get("/x")
    with pytest.raises(ConnectionError, match="gave no answer: ReadTimeout") as unknown:
        Brokers(httpx.ReadTimeout("slow")).http(retry_for_s=0).get("/x")
    assert not_sent.value.sent is False
    assert unknown.value.sent is True  # type: ignore[attr-defined]
    assert not_sent.value.status is None


def test_an_answer_that_cannot_be_read_is_no_missing_broker_and_not_asked_for_again() -> None:
    brokers = Brokers(httpx.RemoteProtocolError("illegal header line: bytearray(b'X-Pulsar-PROPERTY-a b: c')"))
    with pytest.raises(AdminError, match="keys with a space or an accent cannot be read") as unreadable:
        brokers.http().get("/x")
    assert not isinstance(unreadable.value, AdminUnreachable)
    assert (unreadable.value.status, len(brokers.requests)) == (200, 1)


# --- making and removing


def test_making_what_is_there_and_removing_what_is_not_is_no_error() -> None:
    assert Brokers(httpx.Response(204)).http().make("/tenants/acme") is True
    assert Brokers(refusal(409)).http().make("/tenants/acme") is False
    assert Brokers(httpx.ReadTimeout("lost"), refusal(409)).http().make("/a", body=4) is False, "perhaps by ourselves"
    assert Brokers(httpx.Response(204)).http().remove("/tenants/acme") is True
    assert Brokers(refusal(404)).http().remove("/tenants/acme") is False


def test_other_refusals_of_making_and_removing_are_raised() -> None:
    with pytest.raises(AdminMissing, match="Tenant does not exist"):
        Brokers(refusal(404, "Tenant does not exist")).http().make("/namespaces/no/such")
    with pytest.raises(AdminError, match="still has active namespaces"):
        Brokers(refusal(409, "The tenant still has active namespaces")).http().remove("/tenants/acme")


def test_a_login_page_is_not_taken_for_an_answer() -> None:
    with pytest.raises(AdminError, match="no JSON; is the admin URL that of a broker"):
        Brokers(httpx.Response(200, html="<html>log in</html>")).http().get("/tenants")


# --- sizes


class Endless(httpx.SyncByteStream):
    """An answer that ends when nobody reads on."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Iterator[bytes]:
        while self.given < 100_000:  # a gigabyte: a control that reads it whole shall end
            self.given += 1
            yield bytes(10_000)


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_without_end_is_refused_at_its_bound_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr("timewheel.broker.admin.http.MAX_ANSWER_BYTES", 1_000_000)
    answers = [Endless(), Endless()]
    given = iter(answers)
    transport = httpx.MockTransport(lambda _: httpx.Response(status, stream=next(given)))
    http = AdminHttp(ASKED, transport=transport, clock=LeapingClock())
    with pytest.raises(AdminError, match=r"larger than 1,000,000 bytes"):
        http.get("/persistent/a/b/c/stats")
    assert [answer.given for answer in answers] == [101, 0]


def test_what_is_compressed_counts_as_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timewheel.broker.admin.http.MAX_ANSWER_BYTES", 1_000_000)

    def http(size: int) -> AdminHttp:
        packed = httpx.ByteStream(gzip.compress(b'"' + b"x" * size + b'"'))
        headers = {"Content-Encoding": "gzip"}
        transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=packed))
        return AdminHttp(ASKED, transport=transport, clock=LeapingClock())

    assert http(10_000).get("/clusters") == "x" * 10_000
    with pytest.raises(AdminError, match="larger than"):
        http(2_000_000).get("/clusters")


# --- several hosts

ONE, TWO, THREE = (f"http://{name}:8080" for name in ("one", "two", "three"))
SEVERAL = "http://one:8080,two:8080,three:8080"
X = "/admin/v2/x"
REFUSED, SILENT = httpx.ConnectError("refused"), httpx.ReadTimeout("silent")


class Cluster:
    """Answers by host; hosts without an answer of their own are well."""

    def __init__(self, **answers: Answer) -> None:
        self.answers: Mapping[str, Answer] = answers
        self.asked: list[str] = []
        self.credentials: set[str | None] = set()
        self.clock = LeapingClock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.host)
        self.credentials.add(request.headers.get("Authorization"))
        answer = self.answers.get(request.url.host, ok())
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def http(self, url: str = SEVERAL, **options: Any) -> AdminHttp:
        return AdminHttp(url, transport=httpx.MockTransport(self), clock=self.clock, **options)


@pytest.mark.parametrize("failure", [REFUSED, SILENT, httpx.RemoteProtocolError("closed")])
def test_the_next_host_is_asked_at_once_and_the_one_that_failed_is_remembered(failure: Exception) -> None:
    cluster = Cluster(one=failure)
    http = cluster.http(token="t0ken", retry_for_s=0)
    assert [http.get("/x") for _ in range(3)] == ["ok"] * 3
    assert cluster.asked == ["one", "two", "two", "two"]
    assert cluster.clock.waits_ms == []
    assert cluster.credentials == {"Bearer t0ken"}


def test_a_host_that_is_back_is_asked_when_the_present_one_fails() -> None:
    cluster = Cluster(one=REFUSED)
    http = cluster.http()
    http.get("/x")
    cluster.answers = {"two": REFUSED, "three": REFUSED}
    assert http.get("/x") == "ok"
    assert cluster.asked == ["one", "two", "two", "three", "one"]


@pytest.mark.parametrize(
    ("failure", "repeat", "asked"),
    [
        (REFUSED, Repeat.READ, ["one", "two"]),
        (REFUSED, Repeat.WRITE, ["one", "two"]),
        (REFUSED, Repeat.NEVER, ["one", "two"]),  # nothing was sent
        (SILENT, Repeat.READ, ["one", "two"]),
        (SILENT, Repeat.WRITE, ["one", "two"]),
        (SILENT, Repeat.NEVER, ["one"]),  # it may have had its effect
        (refusal(503), Repeat.WRITE, ["one", "two"]),
        (refusal(500), Repeat.READ, ["one", "two"]),
        (refusal(500), Repeat.WRITE, ["one"]),
        (refusal(404), Repeat.READ, ["one"]),
    ],
)
def test_another_host_gets_a_call_only_if_a_second_call_is_harmless(
    failure: Answer, repeat: Repeat, asked: list[str]
) -> None:
    cluster = Cluster(one=failure)
    with suppress(AdminError):
        cluster.http().call("POST", "/x", repeat=repeat)
    assert cluster.asked == asked


def test_if_no_host_answers_the_error_names_all_of_them() -> None:
    cluster = Cluster(one=REFUSED, two=SILENT, three=REFUSED)
    with pytest.raises(AdminUnreachable) as failed:
        cluster.http(retry_for_s=0).get("/x")
    assert cluster.asked == ["one", "two", "three"]
    assert all(url in str(failed.value) for url in (ONE, TWO, THREE))
    assert failed.value.sent


def test_a_silent_owner_is_no_silent_cluster_and_no_other_host_is_asked() -> None:
    cluster = Cluster(one=redirect(f"{OWNER}{X}"), owner=SILENT)
    with pytest.raises(OwnerUnreachable, match=f"{OWNER} gave no answer.*; {ONE} redirected there") as failed:
        cluster.http(retry_for_s=0).get("/x")
    assert not isinstance(failed.value, AdminUnreachable)
    assert cluster.asked == ["one", "owner"]


@contextmanager
def listening(*, answer: bytes, after_s: float = 0.0, to: bytes = b"") -> Iterator[int]:
    """Listen at a port: a call that has `to` in it gets an answer, after a time; an empty answer is silence."""
    ended = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while line := self.rfile.readline():
                head = [line, *iter(self.rfile.readline, b"\r\n")]
                ended.wait(after_s if to in line else 0)
                if not answer or not head:
                    ended.wait()
                    return
                self.wfile.write(answer)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            ended.set()
            server.shutdown()


OK_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"ok"'


def test_a_frozen_host_is_left_within_two_seconds_and_a_slow_one_is_waited_for() -> None:
    slow_s = 3 * SWITCH_S
    with listening(answer=b"") as frozen, listening(answer=OK_ANSWER, after_s=slow_s, to=b"/slow") as slow:
        http = AdminHttp(f"http://127.0.0.1:{frozen},127.0.0.1:{slow}", retry_for_s=0)
        began = time.monotonic()
        assert http.get("/x") == "ok"
        left = time.monotonic()
        assert http.call("POST", "/slow", repeat=Repeat.NEVER).text == '"ok"'
        ended = time.monotonic()
        http.close()
    assert 2 * SWITCH_S <= left - began < 10 * SWITCH_S
    assert slow_s <= ended - left < 10 * SWITCH_S
