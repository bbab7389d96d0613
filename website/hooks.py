"""What MkDocs calls while it builds the site: see mkdocs.yml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import api, boxes, commands, links


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages that are made here: from the code, and of files outside docs/ that pages link to."""
    made = {"reference/api.md": api.page(), "reference/commands.md": commands.page()}
    if bare := api.undocumented(made["reference/api.md"]):
        raise PluginError(f"no docstring: {', '.join(bare)}")
    made |= links.pages({file.src_uri: file.content_string for file in files.documentation_pages()})
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return boxes.admonitions(links.on_the_site(markdown, page.file.src_uri, dict(named(config.nav))))


def named(nav: Any) -> Iterator[tuple[str, str]]:
    """Each page of the nav, and the name that it has there."""
    for entry in nav:
        for name, below in entry.items() if isinstance(entry, dict) else ():
            if isinstance(below, str):
                yield below, name
            else:
                yield from named(below)
