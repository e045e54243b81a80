"""Nothing that is read can execute: no reader unpickles, evaluates or imports what a file names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "scalewright"
EXECUTING = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open", "yaml.load",
    "yaml.unsafe_load", "joblib.load", "dill.load", "cloudpickle.load", "eval", "exec", "builtins.eval",
    "builtins.exec",
    "runpy.run_path", "torch.jit.load", "torch.hub.load", "os.system", "os.popen",
}  # fmt: skip
"""Calls that run what they are given."""
NEEDS = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
}
"""Calls that are safe only with a certain value."""
OUR_OWN = {
    ("data/sandbox", "exec"): "programs to be judged run in the sandbox, which is confined",
}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def problems(path: Path) -> Iterator[str]:
    name = path.relative_to(SOURCE).as_posix()
    for function, call in calls(path):
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        is_ours = any(name.startswith(folder) and function == called for folder, called in OUR_OWN)
        if function in EXECUTING and not is_ours:
            yield f"{name}:{call.lineno}: {function}"
        if function in NEEDS:
            option, value = NEEDS[function]
            if not (isinstance(given.get(option), ast.Constant) and given[option].value is value):
                yield f"{name}:{call.lineno}: {function} without {option}={value}"
        shell = given.get("shell")
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            yield f"{name}:{call.lineno}: {function} with a shell"


def test_no_reader_executes_what_it_reads() -> None:
    assert [problem for path in sorted(SOURCE.rglob("*.py")) for problem in problems(path)] == []


def test_the_search_sees_what_it_looks_for(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "reader.py"
    path.write_text("pickle.load(f)\nnp.load(p)\ntorch.load(p, weights_only=False)\nrun(c, shell=True)\neval('1')\n")
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    assert len(list(problems(path))) == 5
