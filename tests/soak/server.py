"""The server under test, and a line to it that a client may break in any way."""
import json
import os
import re
import signal
import socket
import ssl
import subprocess

HUNG_S = 180  # nothing that a test waits for takes so long, however slow the machine: what does is stuck

# A sanitizer's word in the log, or the process's own last one.
SANITIZER = re.compile(r"(Address|Leak|Thread)Sanitizer|runtime error:")
DEATH = re.compile(SANITIZER.pattern + "|terminate called|sluice: bug|sluice: signal")


class Server:
    """`sluice serve`, ready once constructed. Its log goes to a file: a pipe that nobody reads would stop it."""

    def __init__(self, binary, model, flags, log_path, faults="", tls=False):
        # What a crash records is printed from its signal's handler, which may allocate; an alarm ends what hangs in that.
        environment = dict(os.environ, SLUICE_FAULTS=faults, ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=1",
                           UBSAN_OPTIONS="print_stacktrace=1", TSAN_OPTIONS="second_deadlock_stack=1:report_signal_unsafe=0:allocator_may_return_null=1")
        if not faults:
            del environment["SLUICE_FAULTS"]
        self.log_path, self.tls = log_path, tls
        with open(log_path, "wb") as log:
            self.process = subprocess.Popen([str(binary), "serve", str(model), "--port", "0", *map(str, flags)], stdout=subprocess.PIPE, stderr=log,
                                            text=True, env=environment)
        line = self.process.stdout.readline()
        found = re.search(r"https?://127.0.0.1:(\d+)", line)
        if not found:
            self.process.wait(timeout=HUNG_S)
            raise RuntimeError(f"the server did not start: {self.log()[-2000:]}")
        self.port = int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def log(self):
        return self.log_path.read_text(errors="replace")

    def signal(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def ended(self):
        """The exit status; None: it did not end, and was killed."""
        try:
            return self.process.wait(timeout=HUNG_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None
        finally:
            self.process.stdout.close()


class Cut(Exception):
    """The connection ended before the answer did. `so_far`: (status or 0, body)."""

    def __init__(self, why, status=0, body=b""):
        super().__init__(why)
        self.status, self.body = status, body


class Malformed(Exception):
    """What came is no HTTP."""


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


class Line:
    """A connection. `small`: with little room for what comes, so that the server cannot send ahead."""

    def __init__(self, server, small=False):
        try:
            self.socket = socket.socket()
            self.socket.settimeout(HUNG_S)
            if small:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # pieces are sent as pieces
            self.socket.connect(("127.0.0.1", server.port))
            if server.tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                self.socket = context.wrap_socket(self.socket)
            self.file = self.socket.makefile("rb", buffering=256 if small else 8192)
        except TimeoutError:
            raise
        except OSError as e:  # ssl.SSLError is one
            self.socket.close()
            raise Cut(f"connect: {e}") from e

    def send(self, data):
        """False: it is closed on the other side; an answer may still have come before that."""
        try:
            self.socket.sendall(data)
            return True
        except TimeoutError:
            raise
        except OSError:
            return False

    def close(self, reset=False):
        try:
            if reset and not isinstance(self.socket, ssl.SSLSocket):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            self.file.close()
            self.socket.close()
        except OSError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -- Reading -----------------------------------------------------------------------------------------------------

    def read_line(self):
        line = self.file.readline(65536)
        if not line.endswith(b"\n"):
            raise Cut("in a line")
        return line.rstrip(b"\r\n").decode("latin-1")

    def _exactly(self, count):
        data = self.file.read(count)
        if len(data) < count:
            raise Cut("in a body", body=data)
        return data

    def answer(self, on_chunk=None):
        """The next answer. `on_chunk(body so far)` is called for each piece of one that is streamed."""
        status, body = 0, b""
        try:
            while True:
                first = self.read_line()
                if not re.fullmatch(r"HTTP/1\.1 \d{3} [ -~]*", first):
                    raise Malformed(f"no status line: {first[:200]!r}")
                code = int(first[9:12])
                headers = {}
                while line := self.read_line():
                    name, _, value = line.partition(": ")
                    headers[name.lower()] = value
                if code != 100:
                    break
            status = code
            if headers.get("transfer-encoding") == "chunked":
                while size := int(self.read_line(), 16):
                    try:
                        body += self._exactly(size)
                    except Cut as cut:
                        body += cut.body
                        raise
                    if self.read_line() != "":
                        raise Malformed("a chunk is longer than it says")
                    if on_chunk:
                        on_chunk(body)
                self.read_line()
            else:
                body = self._exactly(int(headers.get("content-length", 0)))
            return Answer(status, headers, body)
        except TimeoutError:
            raise
        except Cut as cut:
            raise Cut(str(cut), status, body or cut.body) from cut
        except ValueError as e:
            raise Malformed(f"a chunk's size: {e}") from e
        except OSError as e:
            raise Cut(str(e), status, body) from e


def request_bytes(path, body=None, name=None, **headers):
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "Host: soak", f"Content-Length: {len(data)}", "Content-Type: application/json"]
    lines += [f"X-Request-Id: {name}"] if name else []
    lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data
