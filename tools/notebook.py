"""Run the tutorial notebook, store what it shows, and write its page of the documentation.

    .venv/bin/python tools/notebook.py [--check]

The notebook in docs/ holds its outputs, so that it can be read without being run; `--check` runs it and fails when an
output is not the stored one.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
PAGE = ROOT / "docs" / "notebook.md"
KEPT_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(path: Path) -> Any:
    """The notebook after a run in an empty folder, without what differs from run to run."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        os.environ["SCALEWRIGHT_HOME"] = folder
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    notebook.metadata = KEPT_METADATA
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            for output in cell.outputs:
                output.pop("execution_count", None)
                if output.output_type == "execute_result":
                    output["execution_count"] = None
    return notebook


def page_of(notebook: Any) -> str:
    """The notebook as Markdown: text, code and tables; plots stand in the page itself."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            picture = output.get("data", {}).pop("image/png", None)
            if picture is not None:
                source = f"data:image/png;base64,{picture.strip()}"
                output.data["text/html"] = f'<img alt="plot" style="max-width:100%;" src="{source}">'
            if "text/html" in output.get("data", {}):  # a wide table scrolls, the page does not
                output.data["text/html"] = f'<div style="overflow-x:auto;">\n{output.data["text/html"]}\n</div>'
    text, _ = MarkdownExporter().from_notebook_node(notebook)
    note = "<!-- Made from notebook.ipynb by tools/notebook.py. -->"
    lines = "\n".join([note, *(line.rstrip() for line in text.splitlines())])
    return re.sub(r"\n{3,}", "\n\n", lines).strip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tutorial notebook and write its page.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if an output changed")
    args = parser.parse_args()
    fresh = executed(NOTEBOOK)
    stored_text = nbformat.writes(fresh) + "\n"
    page = page_of(nbformat.from_dict(fresh))
    stale = [path for path, text in ((NOTEBOOK, stored_text), (PAGE, page)) if read(path) != text]
    if args.check:
        for path in stale:
            print(f"stale: {path.relative_to(ROOT)}; write it with tools/notebook.py")
        return int(bool(stale))
    NOTEBOOK.write_text(stored_text, encoding="utf-8")
    PAGE.write_text(page, encoding="utf-8")
    return 0


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
