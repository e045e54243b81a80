"""The class `Script`: a job script as rules see it, with what Slurm reads, what the shell runs, and derived numbers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath

from scalewright import units
from scalewright.errors import ConfigError
from scalewright.lint.header.directives import Directive, Header, read_header
from scalewright.lint.shell.launches import CONTAINERS, Launch, launches_of
from scalewright.lint.shell.syntax import Assignment, Body, Command, Comment, Heredoc, Trap, Word
from scalewright.lint.shell.walk import read_body
from scalewright.lint.shell.words import resolve
from scalewright.lint.template import is_template, mask_template
from scalewright.sites.walltime import parse_walltime_s

BYTE_ORDER_MARK = "\ufeff"
SHELL_NAMES = ("bash", "sh", "zsh", "dash", "ksh")
_PLACEHOLDER = re.compile(
    r"\{\{|\{[A-Za-z_]\w*\}|\$|`|<[A-Za-z_ -]+>|%%|@[A-Z_]+@|\b__[A-Z][A-Z0-9_]*__\b|\bX{3,}\b|YOUR_|your_"
)
_GPU_COUNT = re.compile(r"^(?:gpu:)?(?:[A-Za-z_][\w.-]*[:=])?(\d+)(?:\(.*\))?$")
_NUMBER = re.compile(r"^(\d+)(?:-\d+)?$")
_MAX_SOURCED_BYTES = 256 * units.KIB
_EMPTY = Body(
    commands=(), assignments=(), heredocs=(), comments=(), functions={}, variables={}, sourced=(), error_at=None
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Script:
    """One script. Lines and columns count from 1; offsets index `text`."""

    path: str
    text: str
    masked: str
    """`text` with the placeholders of a template replaced by inert words of the same length."""
    starts: tuple[int, ...]
    """Offset of each line."""
    lines: tuple[str, ...]
    """Lines without their ends."""
    header: Header
    body: Body
    overrides: Mapping[str, str | None]
    """Options from the environment (SBATCH_*) and the command line; they override the header."""
    is_template: bool
    is_shell: bool
    """False: another interpreter runs it, and only its header was read."""
    made_folders: tuple[str, ...] = ()
    """Folders that exist when it is submitted, because the script that writes it makes them."""

    # -- the header ------------------------------------------------------------------------------------------------

    @property
    def directives(self) -> tuple[Directive, ...]:
        return self.header.directives

    @cached_property
    def _effective(self) -> dict[str, Directive]:
        return {d.name: d for d in self.directives if d.is_effective and d.component == 0}

    @property
    def shebang(self) -> str:
        first = self.lines[0].removeprefix(BYTE_ORDER_MARK) if self.lines else ""
        return first if first.startswith("#!") else ""

    @cached_property
    def has_header(self) -> bool:
        """Whether it has any directive, effective or not."""
        return bool(self.directives)

    def directive(self, *names: str) -> Directive | None:
        """The effective directive of the first of these options that has one."""
        return next((self._effective[name] for name in names if name in self._effective), None)

    def has(self, *names: str) -> bool:
        """Whether any of these options is set, in the header or by an override."""
        return any(name in self.overrides or name in self._effective for name in names)

    def value(self, name: str) -> str | None:
        """Value that Slurm will use; None: the option is not set, or has no value."""
        if name in self.overrides:
            return self.overrides[name]
        directive = self._effective.get(name)
        return directive.value if directive else None

    def is_placeholder(self, name: str) -> bool:
        """Whether the option's value is filled in later: Jinja, `{name}`, `<name>`, `$NAME`."""
        value = self.value(name)
        return value is not None and _PLACEHOLDER.search(value) is not None

    def number(self, name: str) -> int | None:
        """Value as a whole number; of a range such as `2-4` the smaller; None: not set or unknown."""
        value = self.value(name)
        match = _NUMBER.match(value.strip()) if value else None
        return int(match.group(1)) if match and len(match.group(1)) < 10 else None

    @cached_property
    def time_s(self) -> int | None:
        """Time limit in seconds; None: not set, unlimited or unknown."""
        try:
            return parse_walltime_s(self.value("time") or "")
        except ConfigError:
            return None

    @cached_property
    def num_nodes(self) -> int | None:
        """Nodes of the job; 1 if neither nodes nor tasks are requested; None: unknown."""
        if self.has("nodes"):
            return self.number("nodes")
        tasks, per_node = self.number("ntasks"), self.number("ntasks-per-node")
        if self.has("ntasks"):
            return None if tasks is None or (tasks > 1 and not per_node) else -(-tasks // (per_node or 1))
        return 1 if not self.header.num_components > 1 else None

    @property
    def is_multi_node(self) -> bool:
        """Whether it runs on several nodes for certain."""
        return (self.num_nodes or 1) > 1

    @cached_property
    def gpus_per_node(self) -> int | None:
        """GPUs of each node; None: none requested, or their number is unknown."""
        for name in ("gpus-per-node", "gres"):
            count = _gpu_count(self.value(name), is_gres=name == "gres")
            if count is not None:
                return count
        nodes = self.num_nodes
        total = _gpu_count(self.value("gpus"))
        if total is not None:
            return total // nodes if nodes and total % nodes == 0 else None
        per_task, tasks = _gpu_count(self.value("gpus-per-task")), self.num_tasks
        if per_task is not None and tasks is not None and nodes and tasks % nodes == 0:
            return per_task * tasks // nodes
        return None

    @cached_property
    def num_gpus(self) -> int | None:
        """GPUs of the whole job; None: unknown."""
        total = _gpu_count(self.value("gpus"))
        if total is not None:
            return total
        per_node, nodes = self.gpus_per_node, self.num_nodes
        return per_node * nodes if per_node is not None and nodes is not None else None

    @cached_property
    def asks_for_gpus(self) -> bool:
        """Whether any option requests GPUs, even if their number is unknown."""
        names = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
        if any(self.has(name) and _gpu_count(self.value(name)) != 0 for name in names):
            return True
        gres = self.value("gres") or ""
        return ("gpu" in gres and _gpu_count(gres, is_gres=True) != 0) or "gpu" in (self.value("tres-per-task") or "")

    @cached_property
    def tasks_per_node(self) -> int | None:
        """Tasks on each node; 1 if no option sets them; None: unknown."""
        per_node = self.number("ntasks-per-node")
        if per_node is not None:
            return per_node
        tasks, nodes = self.number("ntasks"), self.num_nodes
        if tasks is not None and nodes and tasks % nodes == 0:
            return tasks // nodes
        return None if self.has("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket") else 1

    @cached_property
    def num_tasks(self) -> int | None:
        """Tasks of the whole job; None: unknown."""
        tasks = self.number("ntasks")
        if tasks is not None:
            return tasks
        per_node, nodes = self.tasks_per_node, self.num_nodes
        return per_node * nodes if per_node is not None and nodes is not None else None

    # -- the body --------------------------------------------------------------------------------------------------

    @property
    def commands(self) -> tuple[Command, ...]:
        return self.body.commands

    @property
    def sourced(self) -> tuple[str, ...]:
        """Files that the script sources and that were read; their commands are among `commands`, with an origin."""
        return self.body.sourced

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        return self.body.assignments

    @property
    def heredocs(self) -> tuple[Heredoc, ...]:
        return self.body.heredocs

    @property
    def comments(self) -> tuple[Comment, ...]:
        return self.body.comments

    @cached_property
    def exports(self) -> dict[str, Assignment]:
        """Last assignment of each exported variable."""
        return {a.name: a for a in self.assignments if a.is_exported}

    @cached_property
    def traps(self) -> tuple[Trap, ...]:
        return tuple(trap for command in self.commands if (trap := _trap(command)) is not None)

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """Every program that starts another, in the order of the text; the outermost of a chain comes first."""
        return tuple(launch for chain in self._chains.values() for launch in chain)

    @cached_property
    def _chains(self) -> dict[int, tuple[Launch, ...]]:
        """The launches of each command, by the command's identity."""
        return {id(command): tuple(launches_of(command)) for command in self.commands}

    def chain(self, command: Command) -> tuple[Launch, ...]:
        """The launches in a command of the script, outermost first."""
        return self._chains[id(command)]

    @cached_property
    def containers(self) -> tuple[Launch, ...]:
        return tuple(launch for launch in self.launches if launch.tool in CONTAINERS)

    @cached_property
    def _launches_by_tool(self) -> dict[str, list[Launch]]:
        by_tool: dict[str, list[Launch]] = {}
        for launch in self.launches:
            by_tool.setdefault(launch.tool, []).append(launch)
        return by_tool

    @cached_property
    def _commands_by_name(self) -> dict[str, list[Command]]:
        by_name: dict[str, list[Command]] = {}
        for command in self.commands:
            by_name.setdefault(command.name, []).append(command)
        return by_name

    def launched(self, *tools: str) -> tuple[Launch, ...]:
        """Launches of these tools, in the order of the text."""
        launches = [launch for tool in dict.fromkeys(tools) for launch in self._launches_by_tool.get(tool, ())]
        return tuple(sorted(launches, key=lambda launch: launch.start) if len(tools) > 1 else launches)

    def called(self, *names: str) -> tuple[Command, ...]:
        """Commands of these names, in the order of the text."""
        commands = [command for name in dict.fromkeys(names) for command in self._commands_by_name.get(name, ())]
        return tuple(sorted(commands, key=lambda command: command.start) if len(names) > 1 else commands)

    @cached_property
    def shell_options(self) -> frozenset[str]:
        """Options that `set` and the shebang turn on: `errexit`, `nounset`, `pipefail`, `xtrace`."""
        short = {"e": "errexit", "u": "nounset", "x": "xtrace"}
        options = {short[c] for c in "".join(re.findall(r"\s-([a-z]+)", self.shebang)) if c in short}
        for command in self.called("set"):
            for word in command.texts[1:]:
                if re.fullmatch(r"-[A-Za-z]+", word):
                    options |= {short[c] for c in word[1:] if c in short}
                elif word in ("errexit", "nounset", "pipefail", "xtrace"):
                    options.add(word)
        return frozenset(options)

    def setting(self, name: str) -> Word | None:
        """Last value of an environment variable: exported, assigned, or set before a command; None: not set."""
        assigned = next((a.value for a in reversed(self.assignments) if a.name == name), None)
        if assigned is not None:
            return assigned
        return next((word for c in reversed(self.commands) for key, word in c.environment if key == name), None)

    def resolve(self, text: str) -> str:
        """`text` with the values of variables that the script sets for certain; others stay as written."""
        return resolve(text, self.body.variables) if "$" in text else text

    # -- places ----------------------------------------------------------------------------------------------------

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset."""
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def line_end(self, line: int) -> int:
        """Offset after a line and its line end, where another line can be inserted."""
        return self.starts[line] if line < len(self.starts) else len(self.text)

    @property
    def newline(self) -> str:
        """Line end of the script."""
        return "\r\n" if "\r\n" in self.text else "\n"

    def code_lines(self) -> Iterator[tuple[int, str]]:
        """Number and text of each line of the body, without heredocs and lines that are only a comment."""
        inside = {n for doc in self.heredocs for n in range(doc.line, self.place(max(doc.start, doc.end - 1))[0] + 1)}
        for number, line in enumerate(self.lines, start=1):
            if number >= self.header.end_line and number not in inside and not line.lstrip().startswith("#"):
                yield number, line


def _gpu_count(value: str | None, *, is_gres: bool = False) -> int | None:
    """GPUs in a value such as `4`, `a100:4` or `gpu:a100:4`; None: no value, or unknown."""
    if value is None or _PLACEHOLDER.search(value):
        return None
    items = [item for item in value.split(",") if not is_gres or item.strip().startswith("gpu")]
    if is_gres and [
        item for item in items if item.strip() == "gpu" or re.fullmatch(r"gpu:[A-Za-z][\w.-]*", item.strip())
    ]:
        return 1
    counts = [_GPU_COUNT.match(item.strip()) for item in items]
    return sum(int(match.group(1)[:9]) for match in counts if match) if counts and all(counts) else None


def _trap(command: Command) -> Trap | None:
    if command.name != "trap" or len(command.words) < 3 or command.words[1].text in ("-l", "-p"):
        return None
    words = command.words[2:] if command.words[1].text == "--" else command.words[1:]
    if len(words) < 2:
        return None
    signals = tuple(word.text.upper().removeprefix("SIG") for word in words[1:])
    numbered = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "0": "EXIT", "1": "HUP"}
    return Trap(action=words[0].text, signals=tuple(numbered.get(s, s) for s in signals), command=command)


def line_table(text: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Offset and text of each line; only a line feed ends a line, as in Slurm and the shell."""
    pieces = text.split("\n")
    if pieces[-1] == "" and len(pieces) > 1:
        pieces.pop()
    starts = []
    offset = 0
    for piece in pieces:
        starts.append(offset)
        offset += len(piece) + 1
    return tuple(starts), tuple(piece.removesuffix("\r") for piece in pieces)


def interpreter(first_line: str) -> str:
    """Base name of the interpreter in the shebang; empty: there is none."""
    first_line = first_line.removeprefix(BYTE_ORDER_MARK)
    if not first_line.startswith("#!"):
        return ""
    words = first_line[2:].split()
    if not words:
        return ""
    name = PurePosixPath(words[0]).name
    if name != "env":
        return name
    programs = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return PurePosixPath(programs[0]).name if programs else ""


def parse_script(
    text: str, path: str = "-", overrides: Mapping[str, str | None] | None = None, folder: Path | None = None
) -> Script:
    """The script in `text`. Sourced files are read from `folder`; None: they are not read. Needs the extra `lint`."""
    starts, lines = line_table(text)
    template = is_template(text, path)
    masked = mask_template(text) if template else text
    masked_lines = line_table(masked)[1] if template else lines
    if text.startswith(BYTE_ORDER_MARK):
        masked_lines = (f"#{masked_lines[0][1:]}", *masked_lines[1:])  # as if the mark were not there
    header = read_header(lines, masked_lines, starts)
    is_shell = interpreter(lines[0] if lines else "") in ("", *SHELL_NAMES)
    body = read_body(text, masked, starts, partial(_sourced_text, folder)) if is_shell else _EMPTY
    directives = tuple(d for d in header.directives if _belongs_to_script(d, header, body, starts))
    header = replace(header, directives=directives)
    return Script(
        path=path,
        text=text,
        masked=masked,
        starts=starts,
        lines=lines,
        header=header,
        body=body,
        overrides=dict(overrides or {}),
        is_template=template,
        is_shell=is_shell,
    )


def _sourced_text(folder: Path | None, name: str) -> str | None:
    """Text of a file that a script sources; None: it is missing, large or binary, or its name has variables."""
    if folder is None or not name or "$" in name or "~" in name:
        return None
    path = folder / name
    try:
        if not path.is_file() or path.stat().st_size > _MAX_SOURCED_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError):
        return None
    return None if "\0" in text else text


def _belongs_to_script(directive: Directive, header: Header, body: Body, starts: tuple[int, ...]) -> bool:
    """Whether a directive is meant for this script, and not part of a heredoc that writes another script."""
    if directive.line < header.end_line:
        return True
    offset = starts[directive.line - 1]
    if directive.raw.lstrip().startswith("#"):
        return any(comment.line == directive.line for comment in body.comments)
    return not any(doc.start <= offset < doc.end for doc in body.heredocs)
