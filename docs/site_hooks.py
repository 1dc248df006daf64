"""What mkdocs does besides: README.md is the first page, pictures of results/ belong to the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: Any) -> Files:
    """Add the first page, and pictures that pages show from results/."""
    directory_urls = config.use_directory_urls
    files.append(File.generated(config, "index.md", content=_first_page()))
    for picture in sorted((ROOT / "results").rglob("*.png")):
        path = picture.relative_to(ROOT).as_posix()
        files.append(File(path, str(ROOT), config.site_dir, directory_urls))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Pictures of results/ lie beside the pages here; its other files are named, not linked."""
    named = re.sub(r"\[([^\]]+)\]\(\.\./(results/[^)]+\.(?:json|md))\)", _named, markdown)
    return named.replace("](../results/", "](results/")


def _named(link: re.Match[str]) -> str:
    return link[2] if link[1] == link[2] else f"{link[1]} ({link[2]})"


def _first_page() -> str:
    """README.md with links as seen from docs/; files outside it are named, not linked."""
    text = (ROOT / "README.md").read_text().replace("](docs/", "](")
    return re.sub(r"\[([^\]]+)\]\(([A-Z]+\.md|LICENSE)\)", r"\1", text)
