"""`python -m deploy.dashboards`: write the dashboards as JSON to where the chart takes them from."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.dashboards.page import TANDEM

FOLDER = Path(__file__).parents[2] / "helm" / "tandem" / "files" / "dashboards"
FILES = {"tandem.json": TANDEM}


def text_of(name: str) -> str:
    """The text of one file, with a line for each panel and each variable, so that changes can be read."""
    board = FILES[name] | {"templating": None, "panels": None}
    lists = {
        "templating": ('{"list": [', FILES[name]["templating"]["list"], "]}"),
        "panels": ("[", FILES[name]["panels"], "]"),
    }
    text = json.dumps(board, indent=1)
    for key, (opening, items, closing) in lists.items():
        lines = ",\n".join(f"  {json.dumps(one, ensure_ascii=False)}" for one in items)
        text = text.replace(f'"{key}": null', f'"{key}": {opening}\n{lines}\n {closing}')
    return text + "\n"


def main() -> None:
    """All files are as the panels say."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (FOLDER / name).write_text(text_of(name), encoding="utf-8")


if __name__ == "__main__":
    main()
