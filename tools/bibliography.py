"""The bibliography: docs/references.bib read, and its page."""

from __future__ import annotations

import re
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "docs" / "references.bib"
BIB_ENTRY = re.compile(r"^@(?P<type>\w+)\{(?P<key>[\w-]+),\n(?P<body>.*?)^\}", re.S | re.M)
BIB_FIELD = re.compile(r"^\s*(\w+)\s*=\s*\{(.*)\},?$", re.M)


def bibliography() -> dict[str, dict[str, str]]:
    text = FILE.read_text(encoding="utf-8")
    return {entry["key"]: dict(BIB_FIELD.findall(entry["body"])) for entry in BIB_ENTRY.finditer(text)}


def reference_line(key: str, fields: dict[str, str]) -> str:
    authors = fields["author"].strip("{}").replace(" and ", "; ").replace("; others", " et al.")
    venue = next((fields[k] for k in ("journal", "booktitle", "publisher", "institution") if k in fields), "")
    links = []
    if "eprint" in fields:
        links.append(f"[arXiv:{fields['eprint']}](https://arxiv.org/abs/{fields['eprint']})")
    if "doi" in fields:
        links.append(f"[doi:{fields['doi']}](https://doi.org/{fields['doi']})")
    if "url" in fields:
        links.append(f"[page]({fields['url']})")
    where = ". ".join(part for part in (venue.replace("--", "–"), ", ".join(links)) if part)
    return f'- <a id="{key}"></a>**{key}** {authors} ({fields["year"]}). *{fields["title"].strip("{}")}*. {where}\n'


def references_page(header: str) -> str:
    lines = "".join(reference_line(key, fields) for key, fields in sorted(bibliography().items()))
    return f"{header}\n# References\n\nThe same as BibTeX: [references.bib](references.bib).\n\n{lines}"
