"""What keeps the project in order agrees with itself: versions, the workflow, the hooks, what is pinned."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import pyspark_ledger
from tests.support import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
MAKEFILE = (REPOSITORY / "Makefile").read_text()
WORKFLOW = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text())
JOBS = WORKFLOW["jobs"]
HOOKS = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())


def recipe(target: str) -> list[str]:
    """The lines of a target of the Makefile, without the tabs."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    return [] if found is None else [line.strip() for line in found[1].splitlines()]


def plain(name: str) -> str:
    """A package's name as the index compares names."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", name)[0]).lower()


# -- the one command ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("core", "spark", "passes"),
    [(0, 0, True), (1, 0, False), (0, 1, False), (5, 1, False)],
)
def test_make_test_passes_if_both_halves_pass_and_fails_if_either_fails(core, spark, passes):
    before = [f"--old-file={each}" for each in ("lint", "prometheus", "browser")]
    halves = [f"CORE_TESTS=sh -c 'echo others; exit {core}'", f"SPARK_TESTS=sh -c 'exit {spark}'"]
    ended = subprocess.run(
        ["make", "test", *before, *halves],
        cwd=REPOSITORY, env=os.environ | {"MAKEFLAGS": ""}, capture_output=True, text=True,
        start_new_session=True,  # a signal to its whole group would end us, too
    )  # fmt: skip
    assert (ended.returncode == 0) == passes, ended.stderr
    assert "The tests that need no Spark:\nothers\n" in ended.stdout


# -- the version, and what is installed --------------------------------------------------------------------------


def test_the_version_has_one_home_and_is_in_the_changelog():
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "pyspark_ledger/__init__.py"
    headings = re.findall(r"^## \[([^]]+)\]", (REPOSITORY / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == "Unreleased"
    version = Version(pyspark_ledger.__version__)
    assert version > Version(headings[1]) if version.is_devrelease else str(version) == headings[1]


def test_everything_that_is_installed_is_pinned():
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [
        *PROJECT["project"]["dependencies"],
        *(name for extra in extras if extra != "proto" for name in extras[extra]),
    ]
    pinned = {name for file in ("", "-fuzz", "-kerberos") for name in locked(f"requirements{file}.lock")}
    assert {plain(name) for name in wanted} - pinned == {"pyspark-ledger"}


LOCKS = sorted(file.name for file in REPOSITORY.glob("requirements*.lock"))


def locked(file: str) -> dict[str, str]:
    """Versions by name."""
    text = (REPOSITORY / file).read_text()
    return {plain(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+) \\$", text, re.M)}


@pytest.mark.parametrize("file", LOCKS)
def test_every_file_that_is_installed_is_known_by_its_hash(file):
    comment, *lines = (REPOSITORY / file).read_text().splitlines()
    assert comment.startswith("# ")
    assert "Written by make lock" in comment
    packages = re.split(r"\n(?! )", "\n".join(lines))
    assert packages
    assert [
        each for each in packages if not re.fullmatch(r"[\w.-]+==[\w.+!]+( \\\n {4}--hash=sha256:[0-9a-f]{64})+", each)
    ] == []
    assert f"-r {file}" in MAKEFILE.replace("$(BUILD_LOCK)", "requirements-build.lock")


def test_what_is_locked_for_several_purposes_has_one_version_and_is_one_that_the_project_takes():
    versions: dict[str, str] = {}
    for file in LOCKS:
        if file == "requirements-peers.lock":
            continue  # an environment of its own, with an older PySpark
        for name, version in locked(file).items():
            assert versions.setdefault(name, version) == version, (file, name)
    texts = [
        *PROJECT["project"]["dependencies"],
        *(text for extra, of in PROJECT["project"]["optional-dependencies"].items() if extra != "proto" for text in of),
    ]
    wanted = [Requirement(text) for text in texts if plain(text) != "pyspark-ledger"]
    refused = [
        str(each) for each in wanted if not each.specifier.contains(versions[plain(each.name)], prereleases=True)
    ]
    assert refused == []


def test_nothing_is_installed_for_development_but_what_is_locked():
    installs = [line for line in MAKEFILE.splitlines() if "pip install" in line and "proto" not in line]
    assert installs == [
        "PIP := $(PY) -m pip install --quiet --disable-pip-version-check",
        "PEERS_PIP := $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation "
        "--no-deps",
        "\t@$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes "
        "-r requirements-audit.lock",
    ]
    assert [line.strip() for line in MAKEFILE.splitlines() if "$(PEERS_PIP)" in line] == [
        "@$(PEERS_PIP) --require-hashes -r $(BUILD_LOCK)",
        "@$(PEERS_PIP) --require-hashes -r requirements-peers.lock",
        "@$(PEERS_PIP) -e .",
    ]
    uses = [line for line in MAKEFILE.splitlines() if "$(PIP)" in line]
    assert uses == [
        "LOCKED := $(PIP) --require-hashes --no-build-isolation --no-deps",
        "THIS := $(PIP) --no-build-isolation --no-deps -e .",
    ]


def test_the_demo_needs_no_test_tools():
    assert recipe("demo") == ["@$(PY) -m examples.demo"]
    assert re.search(r"^demo: java \$\(VENV\)/\.demo ", MAKEFILE, re.M)
    assert "@$(LOCKED) -r requirements-demo.lock" in recipe(r"\$\(VENV\)/\.demo")
    assert "pytest" not in locked("requirements-demo.lock")


@pytest.mark.parametrize("target", ["java", "browser"])
def test_nothing_is_installed_before_it_was_said(target):
    lines = recipe(target)
    said = next(number for number, line in enumerate(lines) if "about to be installed" in line)
    installed = next(number for number, line in enumerate(lines) if line.startswith("apt-get"))
    assert said < installed


# -- the workflow: it cannot be run here, but read -----------------------------------------------------------------


def steps(job: str) -> list[dict]:
    return JOBS[job]["steps"]


def commands(job: str) -> list[str]:
    return [step["run"] for step in steps(job) if "run" in step]


NIGHTLY = ("search", "soak", "kerberos", "simulate", "fuzz", "guards", "audit")


def test_the_workflow_has_the_jobs_that_it_must_have():
    assert JOBS.keys() == {"lint", "docs", "core", "spark", "coverage", "bench-quick", *NIGHTLY}
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert {"push", "pull_request", "schedule"} <= WORKFLOW[True].keys()  # YAML takes the word "on" for true
    assert JOBS["search"]["env"] == {"HYPOTHESIS_PROFILE": "search"}
    assert JOBS["soak"]["env"].keys() == {"SECONDS"}
    assert {job: "== 'schedule'" in JOBS[job]["if"] for job in JOBS} == {job: job in NIGHTLY for job in JOBS}


def test_soak_takes_its_time_and_its_faults_from_the_command_line():
    assert re.search(r"^SECONDS \?= 600$", MAKEFILE, re.M)
    assert re.search(r"^SEED \?=$", MAKEFILE, re.M)
    assert recipe("soak") == [
        "$(PY) -m tests.soak --seconds $(SECONDS) --producers $(PRODUCERS) $(if $(SEED),--seed $(SEED))"
    ]


@pytest.mark.parametrize("job", JOBS)
def test_a_job_does_what_the_makefile_does(job):
    assert commands(job)[-1] == f"make {job}"
    assert recipe(job)
    assert JOBS[job]["timeout-minutes"] <= 240


@pytest.mark.parametrize("job", JOBS)
def test_actions_are_pinned_by_major_version(job):
    used = [step["uses"] for step in steps(job) if "uses" in step]
    assert [re.sub(r"@v\d+$", "", action) for action in used] == [
        "actions/checkout",
        "actions/setup-python",
        "actions/setup-java",
    ]


def test_what_the_workflow_tries_is_what_the_package_claims():
    core, spark = (JOBS[job]["strategy"]["matrix"] for job in ("core", "spark"))
    claimed = [name.rpartition(" ")[2] for name in PROJECT["project"]["classifiers"] if ":: Python :: 3." in name]
    assert core["python"] == claimed
    assert PROJECT["project"]["requires-python"] == f">={claimed[0]}"
    assert [os["os"].partition("-")[0] for os in core["include"]] == ["macos"]
    low, high = re.search(
        r"pyspark>=4\.(\d+),<4\.(\d+)", str(PROJECT["project"]["optional-dependencies"]["spark"])
    ).groups()
    assert spark["spark"] == [f"4.{minor}" for minor in range(int(low), int(high))]


def test_the_hooks_are_the_commands_of_make_lint():
    (local,) = HOOKS["repos"]
    assert local["repo"] == "local"
    assert [hook["entry"] for hook in local["hooks"]] == [line.replace("$(VENV)", ".venv") for line in recipe("lint")]
    assert {hook["pass_filenames"] for hook in local["hooks"]} == {False}
