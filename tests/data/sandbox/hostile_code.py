"""Code that attacks its sandbox, by kind. An attack that fails returns `held`; one that works says what it did.

Attacks aim at a canary: a folder, sockets, a process, an environment variable. Each kind lists how it may end.
"""

# ruff: noqa: E501  (an attack is one line)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalewright.data.sandbox.types import SandboxJob, SandboxOutcome

ODD_VALUES = ("unicode garbage", "patches the runner", "returns a class with hostile methods")
"""Kinds that may return something else than `held`: their value is their own, and harmless."""
ANY_END = frozenset({"ok", "time", "memory", "processes", "output", "crash", "error", "exit", "value"})
PRELUDE = """
import ctypes, errno, os, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(15, MARK.encode(), 0, 0, 0)
def held(attempt, *arguments):
    try:
        attempt(*arguments)
    except (OSError, MemoryError, ValueError, RuntimeError) as error:
        return True
    return False
def put(path, data):
    os.write(os.open(path, os.O_WRONLY), data)
"""
FUNCTION = "\ndef attack(folder, port, socket_path, process, worker, secret, marker, home):\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One way to attack."""

    name: str
    body: str
    """Of the function `attack`; what it returns is `held`, or a sentence."""
    ends: frozenset[str] = frozenset({"ok"})
    tests: str = ""
    """Set: the body is an answer, and these are its tests, which it must not pass."""
    command: tuple[str, ...] = ()


def kind(name: str, body: str, *ends: str) -> Kind:
    return Kind(name=name, body=body, ends=frozenset(ends or ("ok",)))


def answer(name: str, body: str, tests: str = "assert add(2, 2) == 4") -> Kind:
    return Kind(name=name, body=body, tests=tests, ends=frozenset({"ok", "time", "crash"}))


LOOPS = (
    kind("infinite loop", "while True: pass", "time"),
    kind(
        "sleep that ignores signals",
        "for n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(9)",
        "time",
    ),
    kind(
        "stops itself",
        "os.kill(os.getpid(), signal.SIGSTOP)\nsignal.raise_signal(signal.SIGSTOP)\nwhile True: time.sleep(1)",
        "time",
    ),
    kind(
        "stops its child and waits",
        "pid = os.fork()\nif not pid: os.kill(os.getpid(), signal.SIGSTOP)\nos.waitpid(pid, 0)",
        "time",
        "ok",
        "value",
    ),
    kind("regular expression without end", "import re\nre.match('(a+)+$', 'a' * 60 + 'b')", "time"),
    kind("a huge power", "return len(str(7 ** (10 ** 9)))", "time", "memory", "error"),
    kind(
        "deep recursion",
        "sys.setrecursionlimit(10**9)\ndef deeper(n): return deeper(n + 1) + 1\nreturn deeper(0)",
        "crash",
        "memory",
        "time",
        "error",
    ),
    kind("reads input for ever", "return 'held' if sys.stdin.read() == '' else 'read something'"),
)
PROCESSES = (
    kind("fork bomb", "while True:\n    try: os.fork()\n    except OSError: pass", "time", "memory"),
    kind("fork bomb that ends", "for _ in range(100): os.fork()", "processes", "time", "memory", "crash"),
    kind(
        "thread bomb",
        "threads = []\nwhile True:\n    threads.append(threading.Thread(target=time.sleep, args=(60,)))\n    threads[-1].start()",
        "processes",
        "memory",
    ),
    kind(
        "busy children", "for _ in range(5):\n    if not os.fork():\n        while True: pass\ntime.sleep(60)", "time"
    ),
    kind(
        "daemon by two forks",
        "if not os.fork():\n    os.setsid()\n    if not os.fork():\n        for n in range(1, 65):\n            try: signal.signal(n, signal.SIG_IGN)\n            except (OSError, ValueError): pass\n        time.sleep(600)\n    os._exit(0)\nos.wait()\nreturn 'held'",
    ),
    kind(
        "thread left running", "threading.Thread(target=time.sleep, args=(600,), daemon=False).start()\nreturn 'held'"
    ),
    kind("child left running", "if not os.fork():\n    while True: time.sleep(1)\nreturn 'held'"),
    kind(
        "child that keeps the pipes",
        "if not os.fork():\n    os.setsid()\n    while True: time.sleep(1)\nos._exit(0)",
        "crash",
    ),
    kind("exit hook", "import atexit\natexit.register(lambda: time.sleep(600))\nreturn 'held'"),
    kind("runs another program", "os.execv('/bin/sleep', ['sleep', '98765'])", "time"),
    kind("a shell in the background", "os.system('(sleep 98765 &) ; (setsid sleep 98765 &)')\nreturn 'held'"),
    kind(
        "vfork and exec",
        "import subprocess\nprocesses = [subprocess.Popen(['/bin/sleep', '98765'], start_new_session=True) for _ in range(3)]\nreturn 'held'",
    ),
)
MEMORY = (
    kind("allocates", "parts = []\nwhile True: parts.append(bytearray(1 << 24))", "memory", "time"),
    kind(
        "maps memory",
        "import mmap\nmaps = [mmap.mmap(-1, 1 << 26) for _ in range(1000)]\nfor one in maps: one.write(b'x' * (1 << 26))",
        "memory",
    ),
    kind(
        "children that allocate",
        "for _ in range(4):\n    if not os.fork():\n        parts = []\n        while True:\n            try: parts.append(bytearray(b'x' * (1 << 20)))\n            except MemoryError: time.sleep(60)\ntime.sleep(60)",
        "memory",
        "time",
    ),
    kind("memory as files", "return 'held' if held(os.memfd_create, 'x') else 'a file in memory'"),
    kind(
        "shared memory segments",
        "return 'held' if libc.shmget(0, 1 << 20, 0o1666) < 0 else 'a segment that outlives the job'",
    ),
    kind("a huge list as result", "return [0] * (1 << 22)", "output", "memory", "time"),
    kind("a huge text as result", "return 'x' * (1 << 24)", "output"),
)
OUTPUT = (
    kind("prints gigabytes", "while True: os.write(1, b'x' * 65536)", "output"),
    kind("prints gigabytes of errors", "while True: os.write(2, b'x' * 65536)", "output"),
    kind("floods the result", "while True: os.write(3, b'x' * 65536)", "output", "error"),
    kind(
        "writes to descriptors",
        "count = 0\nfor n in range(4, 4096):\n    try: os.write(n, b'{\"status\": \"ok\", \"value\": 1}'); count += 1\n    except OSError: pass\nreturn 'held' if not count else f'{count} descriptors'",
    ),
    kind("closes descriptors", "os.closerange(0, 4096)\nreturn 'held'", "crash", "exit"),
    kind(
        "unicode garbage",
        "os.write(1, bytes(range(256)) * 10); print('\\ud800'.encode('utf-8', 'surrogatepass'))\nreturn '\\ud800\\x00\\uffff'",
        "ok",
    ),
    kind("broken result", "os.write(3, b'{\"value\": [[[[')\nos._exit(0)", "crash"),
    kind("nested result", "os.write(3, b'[' * 50000)\nos._exit(0)", "crash"),
)
FILES = (
    kind(
        "writes outside",
        "escapes = [p for p in (f'{folder}/made', '/etc/made', '/usr/made', '/made', f'{home}/made', '/var/tmp/made', '/dev/shm/../../made') if not held(open, p, 'w')]\nreturn 'held' if not escapes else str(escapes)",
    ),
    kind("reads the user's files", "return 'held' if held(open, f'{folder}/kept') else open(f'{folder}/kept').read()"),
    kind("lists the user's folders", "return 'held' if held(os.listdir, folder) else str(os.listdir(folder))"),
    kind(
        "deletes files",
        "import shutil\nfor place in (folder, '/etc', '/usr/bin', home): shutil.rmtree(place, ignore_errors=True)\nreturn 'held' if os.path.exists('/usr/bin/env') else 'deleted'",
        "ok",
        "time",
    ),
    kind(
        "symbolic links",
        "os.symlink(folder, '/tmp/link')\nos.symlink('/proc/1/root', '/tmp/root')\nreturn 'held' if held(open, '/tmp/link/made', 'w') and held(open, f'/tmp/root{folder}/made', 'w') else 'wrote through a link'",
    ),
    kind(
        "hard links",
        "return 'held' if held(os.link, f'{folder}/kept', '/tmp/kept') and held(os.link, '/usr/bin/env', '/tmp/env') else 'linked'",
    ),
    kind("many files", "for n in range(10**6): open(f'/tmp/{n}', 'w').close()", "error", "time"),
    kind("fills its folder", "for n in range(1000): open(f'/tmp/{n}', 'wb').write(b'x' * 2**20)", "error"),
    kind(
        "one large file",
        "with open('/tmp/large', 'wb') as file:\n    while True: file.write(b'x' * 2**20)",
        "error",
        "output",
        "crash",
    ),
    kind(
        "sparse file",
        "return 'held' if held(os.truncate, os.open('/tmp/s', os.O_CREAT | os.O_WRONLY), 1 << 40) else 'a file of a terabyte'",
        "ok",
        "crash",
    ),
    kind(
        "mounts",
        "return 'held' if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) and libc.mount(None, b'/usr', None, 0x20, None) and libc.umount2(b'/tmp', 2) and libc.umount2(b'/proc', 2) else 'mounted'",
    ),
    kind("changes the root", "return 'held' if held(os.chroot, '/tmp') else 'chroot'"),
    kind(
        "breaks out by a descriptor",
        "count = 0\nfor n in range(3, 300):\n    try: os.fchdir(n); count += 1\n    except OSError: pass\nreturn 'held' if not count else 'a folder is open'",
    ),
    kind(
        "device files",
        "names = [n for n in os.listdir('/dev') if n not in ('null', 'zero', 'full', 'random', 'urandom', 'fd', 'shm')]\nreturn 'held' if not names and held(os.mknod, '/tmp/sda', 0o60666, os.makedev(8, 0)) and held(open, '/dev/nvidia0') and held(open, '/dev/mem') else str(names)",
    ),
    kind(
        "set-user-id file",
        "import shutil\nshutil.copy('/usr/bin/env', '/tmp/env')\ntry: os.chmod('/tmp/env', 0o6777)\nexcept OSError: pass\nreturn 'held' if os.spawnv(os.P_WAIT, '/tmp/env', ['env', 'sh', '-c', 'test $(id -u) != 0']) == 0 else 'root'",
        "ok",
    ),
)
NETWORK = (
    kind("connects", "return 'held' if held(lambda: socket.socket().connect(('127.0.0.1', port))) else 'connected'"),
    kind("listens", "return 'held' if held(lambda: socket.socket().bind(('0.0.0.0', 0))) else 'bound'"),
    kind(
        "sends datagrams",
        "return 'held' if held(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))) else 'sent'",
    ),
    kind(
        "unix socket",
        "def attempt():\n    s = socket.socket(socket.AF_UNIX); s.connect(socket_path)\nreturn 'held' if held(attempt) else 'connected'",
    ),
    kind(
        "abstract unix socket",
        "def attempt():\n    s = socket.socket(socket.AF_UNIX); s.connect('\\0' + marker)\nreturn 'held' if held(attempt) else 'connected'",
    ),
    kind(
        "raw and netlink sockets",
        "return 'held' if held(socket.socket, socket.AF_PACKET, socket.SOCK_RAW) and held(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW) else 'opened'",
    ),
    kind("names of the network", "return 'held' if held(socket.getaddrinfo, 'example.org', 80) else 'resolved'"),
    kind("io_uring", "return 'held' if libc.syscall(425, 8, ctypes.create_string_buffer(120)) < 0 else 'a ring'"),
)
SIGNALS = (
    kind(
        "kills others",
        "for pid in (process, worker, -worker):\n    try: os.kill(pid, 9); return f'killed {pid}'\n    except (ProcessLookupError, PermissionError): pass\nreturn 'held'",
    ),
    kind(
        "kills everything",
        "if not os.fork():\n    os.kill(-1, 9)\nos.waitpid(-1, 0)\nreturn 'held'",
        "ok",
        "crash",
        "time",
    ),
    kind(
        "kills its process group",
        "try: os.killpg(0, 9)\nexcept OSError: pass\nos.kill(0, 9)\nreturn 'held'",
        "ok",
        "crash",
    ),
    kind("kills its parent", "try: os.kill(os.getppid(), 9)\nexcept OSError: pass\nreturn 'held'", "ok", "crash"),
    kind("kills itself", "os.kill(os.getpid(), 9)\nctypes.string_at(0)", "crash"),
    kind(
        "traces others",
        "return 'held' if libc.ptrace(16, worker, 0, 0) < 0 and libc.ptrace(16, 1, 0, 0) < 0 and libc.ptrace(0, 0, 0, 0) < 0 else 'traced'",
    ),
    kind(
        "reads memory of others",
        "part = ctypes.create_string_buffer(64)\nreturn 'held' if libc.syscall(310, worker, part, 1, part, 1, 0) < 0 and held(open, f'/proc/{worker}/mem', 'rb') else 'read'",
    ),
    kind(
        "lists processes",
        "try: pids = [int(n) for n in os.listdir('/proc') if n.isdigit()]\nexcept OSError: pids = []\nreturn 'held' if process not in pids and worker not in pids and len(pids) < 3 else str(pids)",
    ),
)
RIGHTS = (
    kind(
        "reads the environment",
        "texts = [str(dict(os.environ))]\nfor pid in ('self', 1, os.getppid(), worker, process):\n    try: texts.append(open(f'/proc/{pid}/environ').read())\n    except OSError: pass\nreturn 'held' if not any(secret in t for t in texts) else 'the secret'",
    ),
    kind(
        "becomes root",
        "return 'held' if held(os.setuid, 0) and held(os.setgid, 0) and held(os.setgroups, [0]) else 'root'",
    ),
    kind(
        "raises its limits",
        "import resource\nreturn 'held' if held(resource.setrlimit, resource.RLIMIT_NPROC, (9999, 9999)) and held(resource.setrlimit, resource.RLIMIT_AS, (-1, -1)) and held(resource.setrlimit, resource.RLIMIT_CPU, (-1, -1)) else 'raised'",
    ),
    kind(
        "enters namespaces",
        "return 'held' if all(libc.unshare(f) < 0 for f in (0x10000000, 0x20000, 0x20000000, 0x40000000)) and libc.syscall(56, 0x10000011, 0, 0, 0, 0) < 0 else 'a namespace'",
    ),
    kind(
        "leaves its control group",
        "escapes = [p for p in ('/sys/fs/cgroup/cgroup.procs', '/sys/fs/cgroup/unified/cgroup.procs', '/sys/fs/cgroup/pids/tasks') if not held(put, p, b'0')]\nreturn 'held' if not escapes else str(escapes)",
    ),
    kind(
        "real-time priority",
        "return 'held' if held(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(10)) and held(os.nice, -10) else 'priority'",
    ),
    kind(
        "kernel doors",
        "return 'held' if all(libc.syscall(n, 0, 0, 0, 0, 0) < 0 for n in (321, 298, 323, 250, 169, 246, 175)) else 'opened'",
    ),
    kind(
        "changes kernel settings",
        "return 'held' if held(put, '/proc/sys/kernel/hostname', b'x') and held(put, '/proc/sysrq-trigger', b'b') and held(put, '/proc/self/oom_score_adj', b'-1000') else 'changed'",
    ),
    kind(
        "foreign system calls",
        "code = bytes([0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3])\nimport mmap\npage = mmap.mmap(-1, 4096, prot=7); page.write(code)\nctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()\nreturn 'another set of system calls'",
        "crash",
        "error",
    ),
)
CRASHES = (
    kind("segmentation fault", "ctypes.string_at(0)", "crash"),
    kind("abort", "os.abort()", "crash"),
    kind("raises SystemExit", "sys.exit(0)", "error"),
    kind("raises KeyboardInterrupt", "raise KeyboardInterrupt", "error"),
    kind("exits with success", "os._exit(0)", "crash"),
    kind(
        "exception with a hostile text",
        "class Odd(Exception):\n    def __str__(self): os._exit(0)\nraise Odd",
        "crash",
        "error",
    ),
    kind(
        "patches the runner",
        "import builtins, json\njson.dumps = lambda *a, **k: 'x'\nos.write = lambda *a: 1 / 0\nbuiltins.exec = None\nos._exit = lambda code: time.sleep(600)\nfor m in list(sys.modules.values()):\n    if 'sandbox' in getattr(m, '__name__', ''):\n        for n in list(vars(m)): setattr(m, n, None)\nreturn 'held'",
        *(ANY_END - {"ok"}),
        "ok",
    ),
    kind("returns no value", "return object()", "value"),
    kind(
        "returns a class with hostile methods",
        "class Odd(float):\n    def __float__(self): os._exit(0)\nreturn Odd(1)",
        "crash",
        "ok",
    ),
)
ANSWERS = (
    answer("ends with success before the tests", "import sys\nsys.exit(0)"),
    answer("exits with success in the tests", "import os\ndef add(a, b): os._exit(0)"),
    answer(
        "always equal",
        "class Equal:\n    def __eq__(self, other): return True\n    def __hash__(self): return 4\ndef add(a, b): return Equal()",
    ),
    answer(
        "an int that is always equal",
        "class Equal(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Equal(5)",
    ),
    answer(
        "replaces builtins",
        "import builtins\nbuiltins.abs = lambda x: 0\nabs = lambda x: 0\nbuiltins.AssertionError = SystemExit\ndef add(a, b): return 7",
        "assert abs(add(2, 2) - 4) < 1",
    ),
    answer(
        "replaces a module",
        "import math, sys\nmath.isclose = lambda *a, **k: True\nsys.modules['math'] = math\ndef add(a, b): return 7",
        "import math\nassert math.isclose(add(2, 2), 4)",
    ),
    answer(
        "lends a module",
        "class math:\n    isclose = staticmethod(lambda *a, **k: True)\ndef add(a, b): return 7",
        "assert math.isclose(add(2, 2), 4)",
    ),
    answer(
        "writes the result itself",
        "import os, json\nbody = json.dumps({'value': {'reward': 1.0, 'is_correct': True, 'why': ''}}).encode()\nfor n in range(256):\n    try: os.write(n, body)\n    except OSError: pass\nos._exit(0)",
    ),
    answer(
        "writes replies in advance",
        'import os, socket\nfor n in range(3, 16):\n    try: os.write(n, b\'{"value": ["list", ["add"]], "arguments": ["list", []]}\\n\' * 9)\n    except OSError: pass\ndef add(a, b): return 4.5',
    ),
    answer(
        "looks for the tests",
        r"""
import gc, re, sys
tests = re.compile(r'add\(2, \d\) == (\d)')
hits, frame = [], sys._getframe()
while frame:
    hits += tests.findall(str(frame.f_locals))
    frame = frame.f_back
for one in gc.get_objects():
    hits += tests.findall(str(list(one.values()))) if type(one) is dict else []
def add(a, b): return int(hits[0]) if hits else 5
""",
    ),
    answer(
        "scans its memory for the tests",
        r"""
import ctypes, re
hits = []
for line in open('/proc/self/maps'):
    first, last = (int(x, 16) for x in line.split()[0].split('-'))
    if 'rw' in line and '[' not in line.replace('[heap]', ''):
        hits += re.findall(rb'assert add\(2, \d\) == (\d)', ctypes.string_at(first, last - first))
def add(a, b): return int(hits[0]) if hits else 5
""",
    ),
    answer("loops in the tests", "def add(a, b):\n    while True: pass"),
    answer("never replies", "import os, time\ndef add(a, b):\n    os.closerange(0, 99)\n    time.sleep(60)"),
)
# fmt: off
COMMANDS = (
    Kind(name="command that loops", body="", command=("/bin/sh", "-c", "while :; do :; done"), ends=frozenset({"time"})),
    Kind(name="command that prints", body="", command=("/usr/bin/yes",), ends=frozenset({"output"})),
    Kind(name="command that leaves daemons", body="", command=("/bin/sh", "-c", "(setsid sleep 98765 &) ; sleep 98765 & echo held"), ends=frozenset({"ok", "exit"})),
    Kind(name="command that is not there", body="", command=("/no/such/program",), ends=frozenset({"refused"})),
    Kind(name="command that fails", body="", command=("/bin/false",), ends=frozenset({"exit"})),
)
# fmt: on
KINDS = (*LOOPS, *PROCESSES, *MEMORY, *OUTPUT, *FILES, *NETWORK, *SIGNALS, *RIGHTS, *CRASHES, *ANSWERS, *COMMANDS)


def job_of(chosen: Kind, canary: Mapping[str, Any], *, number: int = 0) -> SandboxJob:
    """The attack as a job."""
    name = f"{chosen.name} {number}"
    if chosen.command:
        return SandboxJob(id=name, command=chosen.command)
    if chosen.tests:
        return SandboxJob(id=name, source=chosen.body, tests=chosen.tests)
    lines = "".join(f"    {line}\n" for line in chosen.body.split("\n"))
    source = f"MARK = {canary['marker'][:15]!r}\n{PRELUDE}{FUNCTION}{lines}"
    return SandboxJob(id=name, source=source, function="attack", arguments=dict(canary))


def benign_job(number: int) -> SandboxJob:
    """Work that must not suffer from its neighbours."""
    source = "import math\ndef square(x):\n    assert math.isfinite(x)\n    return x * x\n"
    return SandboxJob(id=f"benign {number}", source=source, function="square", arguments={"x": number})


def problem_of(chosen: Kind, outcome: SandboxOutcome) -> str:
    """What is wrong with the end of an attack; empty where it was held."""
    if outcome.status not in chosen.ends | {"time"}:  # a busy machine may be too slow for an attack
        return f"{chosen.name}: ended with {outcome.status} {outcome.why} {outcome.stderr_tail[-200:]}"
    if not outcome.is_ok or chosen.name in ODD_VALUES:
        return ""
    if chosen.tests:
        return f"{chosen.name}: passes its tests" if outcome.value["reward"] else ""
    return "" if str(outcome.value).strip() == "held" else f"{chosen.name}: {outcome.value!r:.200}"
