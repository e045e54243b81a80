"""One place renames onto a path that a user gives, and nothing that is loaded can execute code."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "scalewright"
RENAMES = {
    "records/documents.py": "writes every file that a user names",
    "data/whole.py": "a folder: the system refuses to rename it onto anything but an empty folder",
    "data/text/execution/work_files.py": "files in a folder that a run of a pipeline holds",
    "data/squashfs.py": "an image whose name was free, under the lock of that name",
    "data/copying.py": "a folder that it made itself gets another name before it is deleted",
    "run/checkpoint_files.py": "folders in a run directory",
    "run/weight_sync/files.py": "files of weights in a folder of a run directory",
    "lab/daemon.py": "a file in the state folder of a practice cluster",
}
LOADERS = {
    "run/checkpoint_metadata.py": "knows the few names that a checkpoint needs and calls none of them",
    "data/sandbox/job_process.py": "runs code that may be hostile, after its process gave up all rights",
    "data/sandbox/answer_calls.py": "likewise: an answer and its tests, each in a process of its own",
}


RENAMING = re.compile(r"replace|rename|move")
LOADING = re.compile(r"load|pickle|shelve|\beval\(|\bexec\(|FileSystemReader")


def calls(text: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))


def is_rename(call: ast.Call) -> bool:
    """`os.replace`, `os.rename`, `shutil.move` and the methods of a path; a string's `replace` has two arguments."""
    if not isinstance(call.func, ast.Attribute):
        return False
    owner, name = ast.unparse(call.func.value), call.func.attr
    return name in ("rename", "renames") or (owner, name) == ("shutil", "move") or (
        name == "replace" and (owner == "os" or (len(call.args) == 1 and not call.keywords))
    )  # fmt: skip


def is_unsafe_load(call: ast.Call) -> bool:
    """Whatever may run what a file says."""
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    match ast.unparse(call.func).rsplit(".", 1):
        case ["eval" | "exec"]:
            return True
        case ["torch", "load"]:
            return options.get("weights_only") != "True"
        case ["np" | "numpy", "load"]:
            return options.get("allow_pickle") != "False"
        case ["yaml" | "marshal", "load" | "loads"] | ["shelve", "open"]:
            return True
        case [owner, _]:
            return owner.endswith(("pickle", "Unpickler(file)"))
        case [name]:
            return name.endswith(("Unpickler", "FileSystemReader"))
    return False


def files_with(is_hit: Callable[[ast.Call], bool], words: re.Pattern[str]) -> set[str]:
    """Files with such a call; only those that hold one of the words are parsed, because parsing is slow."""
    texts = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    return {name for name, text in texts.items() if words.search(text) and any(map(is_hit, calls(text)))}


def test_only_one_place_renames_onto_a_users_path() -> None:
    assert files_with(is_rename, RENAMING) == set(RENAMES)


def test_nothing_that_is_loaded_can_execute_code() -> None:
    assert files_with(is_unsafe_load, LOADING) == set(LOADERS)
