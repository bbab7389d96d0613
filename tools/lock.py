"""Writes the lock files: what is installed for each purpose, with exact versions and the hashes of their files.

``make lock`` runs it with the pip of ``.venv``, and with that pip's own settings: it asks the package index that pip
asks. What is locked already keeps its version, unless ``pyproject.toml`` does not take it any more, or ``--upgrade`` is
given. So it may be run at any time, also over the conflict that two branches have left in a lock file.

Of a version all files that the index has are locked, so that every platform finds its own.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pip._internal.commands import create_command
from pip._internal.index.collector import parse_links
from pip._internal.index.package_finder import PackageFinder
from pip._internal.models.link import Link
from pip._internal.utils.packaging import get_requirement
from pip._vendor.packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from pip._vendor.packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.MULTILINE)
# What builds the packages that come as source, and this one itself. Without it pip would fetch these unseen.
BUILDERS = ("setuptools", "wheel", "hatchling>=1.27", "editables")

# The newest PySpark that all peers are built for.
PEERS = (".", "pyspark==4.2.0", "pandas>=2.2,<3", "confluent-kafka>=2.11", "moto[server,s3]>=5.1", "urllib3>=2")


@dataclass(frozen=True)
class Lock:
    file: str
    purpose: str
    wanted: tuple[str, ...]
    needs: str = ""  # a program without which pip cannot look into one of them; then the file stays as it is
    apart: bool = False  # in an environment of its own, with versions that others need not have


LOCKS = (
    Lock("requirements-build.lock", "What builds packages from source: installed first, for all others.", BUILDERS),
    Lock("requirements-demo.lock", "What make demo installs: .[spark] and what it needs.", (".[spark]",)),
    Lock("requirements.lock", "What make setup installs: .[dev] and what it needs.", (".[dev]",)),
    Lock("requirements-fuzz.lock", "What make fuzz installs beside .[dev].", (".[fuzz]",)),
    Lock("requirements-kerberos.lock", "What make kerberos installs beside .[dev].", (".[gssapi]",), "krb5-config"),
    Lock("requirements-audit.lock", "What make audit installs, apart from everything else.", ("pip-audit>=2.9",)),
    Lock("requirements-peers.lock", "What make bench-peers installs, apart from everything else.", PEERS, apart=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions of everything")
    known = {} if parser.parse_args().upgrade else locked()
    finder = package_finder()
    for lock in LOCKS:
        if lock.needs and shutil.which(lock.needs) is None:
            print(f"{lock.file} stays as it is: there is no {lock.needs} here, as of Debian's libkrb5-dev")
            continue
        found = resolve(lock.wanted, apart(lock, known) if lock.apart else known)
        if not lock.apart:
            known.update(found)  # these agree
        with ThreadPoolExecutor(8) as pool:
            hashes = dict(zip(found, pool.map(lambda each: file_hashes(finder, *each), found.items()), strict=True))
        (ROOT / lock.file).write_text(spelled(lock, found, hashes))
        print(f"{lock.file}: {len(found)} packages, {sum(map(len, hashes.values()))} files")


def locked() -> dict[str, str]:
    """What those that agree have."""
    return {name: version for lock in LOCKS if not lock.apart for name, version in pinned(lock).items()}


def pinned(lock: Lock) -> dict[str, str]:
    file = ROOT / lock.file
    return {canonicalize_name(n): version for n, version in PINNED.findall(file.read_text())} if file.exists() else {}


def apart(lock: Lock, known: dict[str, str]) -> dict[str, str]:
    """As the others have it, but for what the lock has had before, and must have."""
    wanted = [get_requirement(text) for text in lock.wanted if text != "."]
    kept = {**known, **pinned(lock)}
    refused = {
        canonicalize_name(each.name) for each in wanted if each.name in kept and kept[each.name] not in each.specifier
    }
    return {name: version for name, version in kept.items() if name not in refused}


def resolve(wanted: tuple[str, ...], known: dict[str, str]) -> dict[str, str]:
    """Versions by name: what pip would install into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        keep, report = Path(folder, "keep.txt"), Path(folder, "report.json")
        keep.write_text("".join(f"{name}=={version}\n" for name, version in known.items() if allowed(name, version)))
        options = ("--quiet", "--dry-run", "--ignore-installed", "--report", str(report), "-c", str(keep))
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *wanted], cwd=ROOT, check=True)
        installed = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    found = {canonicalize_name(each["name"]): each["version"] for each in installed}
    found.pop("pyspark-ledger", None)
    return dict(sorted(found.items()))


def allowed(name: str, version: str) -> bool:
    """Whether pyproject.toml still takes this version."""
    return all(each.specifier.contains(version, prereleases=True) for each in REQUIREMENTS if each.name == name)


def requirements() -> list[object]:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    found = [get_requirement(text) for text in texts]
    for each in found:
        each.name = canonicalize_name(each.name)
    return found


def package_finder() -> PackageFinder:
    """As pip download would make it here: with its index, its certificates, its proxy."""
    command = create_command("download")
    options, _ = command.parse_args([])
    return command._build_package_finder(options, command._build_session(options))


def file_hashes(finder: PackageFinder, name: str, version: str) -> list[str]:
    """SHA-256 of every file of a version."""
    found = set()
    for index in finder.search_scope.get_index_urls_locations(name):
        page = finder._link_collector.fetch_response(Link(index))
        for link in parse_links(page) if page else ():
            if link.hash_name == "sha256" and version_of(link.filename) == Version(version):
                found.add(link.hash)
    if not found:
        raise SystemExit(f"the package index names no file of {name} {version} with a SHA-256")
    return sorted(found)


def version_of(filename: str) -> Version | None:
    parse = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
    try:
        return parse(filename)[1]
    except ValueError:  # of a kind that pip does not take
        return None


def spelled(lock: Lock, found: dict[str, str], hashes: dict[str, list[str]]) -> str:
    lines = [f"# {lock.purpose} Written by make lock: do not edit."]
    for name, version in found.items():
        lines.append(f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{each}" for each in hashes[name]))
    return "\n".join(lines) + "\n"


REQUIREMENTS = requirements()

if __name__ == "__main__":
    main()
