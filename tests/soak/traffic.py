"""Clients of every kind, well and badly behaved. Each looks at every byte that it gets: it is the right answer, the
beginning of it with a word on what went wrong, or an error that this round's faults or the client itself excuse."""
import json
import random
import threading

from asked import Streamed, pieces, whole
from server import HUNG_S, Cut, Line, Malformed, request_bytes


class Wrong(Exception):
    """What no client may see."""


class Tally:
    def __init__(self):
        self.lock, self.counts, self.wrong = threading.Lock(), {}, []

    def add(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def blame(self, what):
        with self.lock:
            self.wrong.append(what)


class Course:
    """How far the clients of a round are."""

    def __init__(self, clients):
        self.moved, self.begun, self.running = threading.Condition(), 0, clients

    def request_begins(self):
        with self.moved:
            self.begun += 1
            self.moved.notify_all()

    def client_ends(self):
        with self.moved:
            self.running -= 1
            self.moved.notify_all()

    def wait_for(self, requests):
        """Until so many have begun, or no client is left to begin them."""
        with self.moved:
            self.moved.wait_for(lambda: self.begun >= requests or self.running == 0, timeout=5 * HUNG_S)


class Client(threading.Thread):
    """Makes `count` requests out of `asked`, one behaviour after another, as `seed` has it. `excused`: what this round's
    answers may be beside right (see soak.Round)."""

    def __init__(self, server, asked, excused, tally, seed, count, ending, course):
        super().__init__(daemon=True)
        self.server, self.asked, self.excused, self.tally = server, asked, excused, tally
        self.seed, self.count, self.number, self.course = seed, count, 0, course
        self.ending = ending  # set before the server is told to stop
        self.label = f"{seed & 0xffffff:06x}"

    def run(self):
        try:
            self._behave()
        finally:
            self.course.client_ends()

    def _behave(self):
        for turn in range(self.count):
            # Of this turn alone: what one that was cut has not drawn moves none behind it.
            self.rng = random.Random(f"{self.seed}/{turn}")
            if self.ending.is_set() and not self._is_there():
                return
            behaviour = self.rng.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))[0]
            try:
                behaviour(self)
            except Cut as cut:
                if not self.may_be_cut():
                    self.tally.blame(f"{behaviour.__name__}: the connection broke: {cut}")
                self.tally.add("cut")
            except TimeoutError:
                self.tally.blame(f"{behaviour.__name__}: stuck: nothing came")
            except OSError as e:
                if not self.may_be_cut():
                    self.tally.blame(f"{behaviour.__name__}: the connection broke: {e}")
                self.tally.add("cut")
            except (Wrong, Malformed, AssertionError, KeyError, ValueError, TypeError) as e:
                self.tally.blame(f"{behaviour.__name__}: {type(e).__name__}: {e}")

    def _is_there(self):
        try:
            Line(self.server).close()
            return True
        except Cut:
            return False

    def may_be_cut(self):
        return self.excused.cut or self.ending.is_set()

    def next_name(self, odd_too=True):
        """An id of its own; where the round spoils answers, some are those that are spoilt."""
        self.number += 1
        self.course.request_begins()
        odd = odd_too and self.excused.odd and self.rng.random() < 0.2
        return f"{'odd' if odd else 'req'}-{self.label}-{self.number}"

    def pick(self, streamed=None):
        while True:
            asked = self.rng.choice(self.asked)
            if streamed is None or asked.streamed == streamed:
                return asked

    # -- What an answer may be ---------------------------------------------------------------------------------------

    def excused_now(self, name="", more=()):
        """Statuses of errors that are no fault now, of the request `name`."""
        statuses = self.excused.statuses | set(more) | ({503} if self.ending.is_set() else set()) | ({500} if name.startswith("odd") else set())
        return statuses | ({529} if statuses & {429, 503} else set())  # so Anthropic's API says both

    def check_error(self, answer, name="", more=()):
        if answer.status not in self.excused_now(name, more):
            raise Wrong(f"{name}: status {answer.status}: {answer.body[:300]!r}")
        said = answer.json()
        if not (said.get("error") or {}).get("message") and not said.get("reason"):
            raise Wrong(f"{name}: status {answer.status} without a message: {answer.body[:300]!r}")
        self.tally.add(str(answer.status))

    def check(self, asked, name, answer, streaming, more=()):
        if answer.headers.get("x-request-id") != name and answer.status != 408:  # whose head has not been read
            raise Wrong(f"the answer to {name} is that to {answer.headers.get('x-request-id')}")
        if answer.status != 200:
            return self.check_error(answer, name, more)
        if streaming:
            return self.check_stream(asked, name, answer.body, complete=True, more=more)
        if not self.loosely(name) and whole(asked.path, answer.json()) != asked.right:
            raise Wrong(f"{name} {asked}: got {answer.body[:600]!r}, not {json.dumps(asked.right)[:600]}")
        if asked.is_generation():
            self.tally.add("completed")

    def loosely(self, name):
        return not self.excused.exact or name.startswith("odd")

    def check_stream(self, asked, name, body, complete, more=()):
        text = body.decode() if complete else body[:body.rfind(b"\n\n") + 2].decode()
        right = pieces(asked.path, asked.right)
        got = Streamed(asked.path, len(right), text)
        if got.error:
            if not {500, 503, 504} & self.excused_now(name, more):
                raise Wrong(f"{name} {asked}: an error in a stream: {got.error}")
            if not got.error.get("message"):
                raise Wrong(f"{name}: an error without a message: {got.error}")
            if got.over and asked.path != "/v1/responses":
                raise Wrong(f"{name}: a stream that failed says that it is complete")
            self.tally.add("stream failed")
        elif complete and not got.over:
            raise Wrong(f"{name} {asked}: a stream ends without its last event: {text[-300:]}")
        if not self.loosely(name):
            if complete and not got.error and not got.equals(right):
                raise Wrong(f"{name} {asked}: streamed {got.parts}, not {right}")
            if not got.begins(right):
                raise Wrong(f"{name} {asked}: streamed {got.parts}, which is no beginning of {right}")
        if complete and not got.error:
            self.tally.add("completed")

    def cut_stream(self, asked, name, cut, more=()):
        """What came before the end, which was the client's doing or is excused elsewhere."""
        if cut.status == 200:
            self.check_stream(asked, name, cut.body, complete=False, more=more)
        # Behind an error in a stream the server closes.
        if b'"error":{' not in cut.body.replace(b" ", b"") and not self.may_be_cut():
            raise cut

    def ask(self, line, asked, streaming=False, on_chunk=None, more=(), **headers):
        """One request and its answer on a line that stays open: whether it does."""
        name = self.next_name()
        body = dict(asked.body, stream=True) if streaming else asked.body
        line.send(request_bytes(asked.path, body, name, **headers))
        try:
            answer = line.answer(on_chunk)
        except Cut as cut:
            if streaming:
                self.cut_stream(asked, name, cut, more)
            elif not self.may_be_cut():
                raise
            self.tally.add("cut")
            return False
        self.check(asked, name, answer, streaming, more)
        return answer.headers.get("connection") != "close"

    # -- How clients behave ------------------------------------------------------------------------------------------

    def asks(self):
        with Line(self.server) as line:
            self.ask(line, self.pick())

    def streams(self):
        with Line(self.server) as line:
            self.ask(line, self.pick(True), streaming=True)

    def keeps_the_connection(self):
        """As long as the server does; then it goes on with another."""
        left = 4
        while left > 0:
            with Line(self.server) as line:
                stays = True
                while stays and left > 0:
                    asked, left = self.pick(), left - 1
                    stays = self.ask(line, asked, streaming=asked.streamed and self.rng.random() < 0.5)

    def sends_ahead(self):
        """Several requests before the first answer, which come in their order."""
        batch = [(self.pick(), self.next_name()) for _ in range(3)]
        with Line(self.server) as line:
            line.send(b"".join(request_bytes(asked.path, asked.body, name) for asked, name in batch))
            for asked, name in batch:
                answer = line.answer()
                self.check(asked, name, answer, False)
                if answer.headers.get("connection") == "close":
                    return

    def sends_in_pieces(self):
        asked, name = self.pick(), self.next_name()
        data = request_bytes(asked.path, asked.body, name)
        cuts = [0, *sorted(self.rng.sample(range(1, len(data)), 12)), len(data)]
        with Line(self.server) as line:
            for begin, end in zip(cuts, cuts[1:]):
                line.send(data[begin:end])
            self.check(asked, name, line.answer(), False)

    def reads_slowly(self):
        """A few bytes at a time; the answer is longer than the buffers between."""
        with Line(self.server, small=True) as line:
            self.ask(line, self.pick(True), streaming=True, on_chunk=lambda _: threading.Event().wait(0.005))

    def waits_to_be_told(self):
        asked, name = self.pick(), self.next_name()
        head, _, body = request_bytes(asked.path, asked.body, name, Expect="100-continue").partition(b"\r\n\r\n")
        with Line(self.server) as line:
            line.send(head + b"\r\n\r\n")
            first = line.read_line()
            if not first.startswith("HTTP/1.1 100"):
                raise Wrong(f"told {first!r} instead of 100")
            line.read_line()
            line.send(body)
            self.check(asked, name, line.answer(), False)

    def leaves(self):
        """In the middle of an answer, politely or with a reset."""
        asked, chunks = self.pick(True), self.rng.choice([0, 1, 2, 5])
        with Line(self.server) as line:
            line.send(request_bytes(asked.path, dict(asked.body, stream=True), self.next_name(False)))
            try:
                for _ in range(chunks):
                    line.file.readline()
            except OSError:
                pass
            line.close(reset=self.rng.random() < 0.5)
        self.tally.add("left")

    def closes_its_side(self):
        """Which counts as leaving: what comes is a beginning, then the end."""
        if self.server.tls:
            return self.leaves()
        asked, name = self.pick(True), self.next_name()
        with Line(self.server) as line:
            line.send(request_bytes(asked.path, dict(asked.body, stream=True), name))
            try:
                line.socket.shutdown(1)
                self.check(asked, name, line.answer(), True)
            except OSError:
                pass
            except Cut as cut:
                if cut.status == 200:
                    self.check_stream(asked, name, cut.body, complete=False)
                self.tally.add("left")

    def breaks_off(self):
        """In the middle of a request."""
        asked = self.pick()
        data = request_bytes(asked.path, asked.body, self.next_name(False))
        with Line(self.server) as line:
            line.send(data[:self.rng.randrange(len(data))])
            line.close(reset=self.rng.random() < 0.5)
        self.tally.add("left")

    def says_nothing(self):
        with Line(self.server):
            self.asks()

    def talks_nonsense(self):
        asked = self.pick(True)
        body = json.dumps(asked.body).encode()
        nonsense = self.rng.choice([
            request_bytes(asked.path, body[:self.rng.randrange(len(body))]), request_bytes(asked.path, b"\xff" + body), request_bytes(asked.path, b"[]"),
            request_bytes(asked.path, {**asked.body, "temperature": "hot"}), request_bytes(asked.path, {**asked.body, "model": "no-such-model"}),
            request_bytes("/v1/nowhere", {}), b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", request_bytes(asked.path, asked.body, x_request_timeout_ms="soon"),
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])
        with Line(self.server) as line:
            line.send(nonsense)
            answer = line.answer()
        if answer.status not in (400, 404, 405, 505):
            self.check_error(answer)
        elif not answer.json()["error"]["message"]:
            raise Wrong(f"an error without a message: {answer.body!r}")
        self.tally.add("refused")

    def is_in_a_hurry(self):
        with Line(self.server) as line:
            self.ask(line, self.pick(True), streaming=self.rng.random() < 0.5, more=(504,), X_Request_Timeout_Ms=self.rng.choice([1, 5, 20, 100]),
                     X_Priority=self.rng.choice(["interactive", "standard", "batch"]))

    def looks_around(self):
        path = self.rng.choice(["/metrics", "/v1/requests?recent=20", "/v1/requests/attribution", "/v1/diagnosis", "/openapi.json", "/", "/routes", "/ready",
                                "/health", "/v1/models"])
        with Line(self.server) as line:
            line.send(request_bytes(path))
            answer = line.answer()
            if answer.status != 200:
                self.check_error(answer)

    def listens(self):
        """To the live numbers, and leaves."""
        with Line(self.server) as line:
            line.send(request_bytes("/v1/live"))
            first = line.read_line()
            if int(first.split()[1]) not in {200} | self.excused_now():
                raise Wrong(f"live: {first!r}")

    def stores(self):
        """A response is kept as it was told, then forgotten."""
        asked = next((a for a in self.rng.sample(self.asked, len(self.asked)) if a.path == "/v1/responses"), None)
        if not asked:
            return
        with Line(self.server) as line:
            line.send(request_bytes(asked.path, {**asked.body, "store": True}, self.next_name(False)))
            told = line.answer()
            if told.status != 200:
                return self.check_error(told)
            self.tally.add("completed")
            where = "/v1/responses/" + told.json()["id"]
            line.send(request_bytes(where))
            kept = line.answer()
            if kept.status != 200:
                return self.check_error(kept)
            if kept.json()["output"] != told.json()["output"]:
                raise Wrong(f"stored {kept.body[:300]!r}, told {told.body[:300]!r}")
            line.send(request_bytes(where).replace(b"GET", b"DELETE", 1))
            gone = line.answer()
            if gone.status != 200:
                self.check_error(gone)


BEHAVIOURS = {Client.asks: 20, Client.streams: 25, Client.keeps_the_connection: 6, Client.sends_ahead: 4, Client.sends_in_pieces: 4,
              Client.reads_slowly: 5, Client.waits_to_be_told: 3, Client.leaves: 8, Client.closes_its_side: 4, Client.breaks_off: 5,
              Client.says_nothing: 2, Client.talks_nonsense: 6, Client.is_in_a_hurry: 6, Client.looks_around: 6, Client.listens: 2, Client.stores: 2}
