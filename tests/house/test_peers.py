"""What `make bench-peers` makes of its figures: orders of rounds, medians, tables, plots, and the page of them."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from itertools import combinations
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.contestants import orders, race
from benchmarks.peers import jars, report
from benchmarks.peers.follow import follow
from benchmarks.peers.pace import PaceReader, paced_rows
from benchmarks.peers.s3_server import Delayed
from benchmarks.peers.stage import Sizes
from benchmarks.peers.systems import DELTA, KAFKA, LEDGER, NAMES, PARQUET, Place, system_at
from benchmarks.peers.work.ageing import Ageing
from benchmarks.peers.work.base import Column, Versus, percentile
from benchmarks.peers.work.bulk import Narrow
from benchmarks.peers.work.kill import lost_and_doubled
from benchmarks.peers.work.table import WORKLOADS
from benchmarks.peers.work.tiny_batches import TinyBatches

# -- rounds ------------------------------------------------------------------------------------------------------


def test_three_contestants_run_in_every_order():
    assert len(set(orders("abc"))) == 6


@pytest.mark.parametrize("names", ["abcd", "abcde"])
def test_more_contestants_are_at_each_place_equally_often_and_each_before_the_other(names):
    turns = orders(names)
    assert {tuple(sorted(turn)) for turn in turns} == {tuple(names)}
    for place in zip(*turns, strict=True):
        assert sorted(place) == sorted(names * 2)
    for one, other in combinations(names, 2):
        assert sum(turn.index(one) < turn.index(other) for turn in turns) == len(turns) // 2


def test_the_warm_up_does_not_count_and_each_round_has_another_order(capsys):
    ran = []

    def measure(_bench, name):
        ran.append(name)
        return {"turn": (len(ran) - 1) // 4}

    results = race(SimpleNamespace(rounds=2), {name: name for name in "abcd"}, measure)
    assert ["".join(ran[turn : turn + 4]) for turn in (0, 4, 8)] == ["abcd", "bcda", "cdab"]
    assert results == {name: [{"turn": 1}, {"turn": 2}] for name in "abcd"}
    once = race(SimpleNamespace(rounds=1), {"a": "a"}, measure, warm_up=False)
    assert len(once["a"]) == 1
    assert "warm-up a" in capsys.readouterr().out


# -- figures -----------------------------------------------------------------------------------------------------


def test_a_cell_has_the_median_of_the_rounds_and_the_spread_if_it_is_asked_for():
    runs = [{"s": 3.0}, {"s": 1.0}, {"s": 1_000.0}]
    assert Column("s", "").cell(runs) == "3.00"
    assert Column("s", "", digits=0, spread=True).cell(runs) == "3 (1 to 1,000)"
    assert Column("other", "").cell(runs) == ""


@pytest.mark.parametrize(("less_is_better", "told"), [(True, "2.00"), (False, "0.50")])
def test_over_one_the_ledger_is_better_and_under_one_worse(less_is_better, told):
    runs = {LEDGER: [{"x": 5.0}], KAFKA: [{"x": 9.0}, {"x": 10.0}, {"x": 100.0}], DELTA: [{}]}
    versus = Versus("x", "", less_is_better)
    assert [versus.cell(runs, name) for name in runs] == ["", told, ""]


def test_percentiles():
    assert [percentile(range(100, 0, -1), share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 51, 100, 100]


def test_lost_and_doubled_are_counted_up_to_the_last_whole_record():
    times = {0: 1, 1: 3, 3: 2, 4: 1, 9: 5}
    assert lost_and_doubled(times, 4) == (1, 3)  # 2 is missing; 1 is there twice more, and 3 once
    assert lost_and_doubled(times, 1) == (0, 2)


def test_the_rest_follows_from_the_rows():
    whole, fewer = Sizes.of(None, False, False), Sizes.of(1_000_000, True, False)
    assert (whole.rows, whole.wide_rows, whole.later_ages) == (10_000_000, 2_000_000, (10_000, 100_000))
    assert (fewer.rows, fewer.wide_rows, fewer.keyed_rows) == (1_000_000, 200_000, 500_000)
    assert fewer.later_ages[-1] == 1_000_000
    assert max(Sizes.of(None, True, True).later_ages) < 1_000


def test_rows_come_at_their_rate_and_are_the_same_when_they_are_made_again():
    rows = paced_rows(10, 14, 1_000.0, 500.0)
    assert rows.column("id").to_pylist() == [10, 11, 12, 13]
    assert [int(text) for text in rows.column("text").to_pylist()] == [1_000_020_000 + 2_000 * n for n in range(4)]
    assert rows.equals(paced_rows(10, 14, 1_000.0, 500.0))
    reader = PaceReader({"rate": "1000", "startedAt": "0", "rows": "25000", "partitions": "2"})
    assert reader.latestOffset() == {"row": 25_000}  # 1970 is long ago
    spans = reader.partitions({"row": 3}, {"row": 24_000})
    read = [number for span in spans for batch in reader.read(span) for number in batch.column("id").to_pylist()]
    assert read == list(range(3, 24_000))


# -- what has become visible -------------------------------------------------------------------------------------


def write_ids(file, *ids):
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), file)


def test_of_parquet_only_what_the_sinks_log_names_is_visible_and_once(tmp_path):
    data = tmp_path / "data"
    for number in range(4):
        write_ids(data / f"part {number}.parquet", number, number + 10)
    log = data / "_spark_metadata"
    log.mkdir()

    def batch(name, *parts):
        lines = [json.dumps({"path": (data / f"part {part}.parquet").as_uri(), "action": "add"}) for part in parts]
        (log / name).write_text("\n".join(["v1", *lines]))

    batch("0", 0)
    with ExitStack() as stack:
        look = follow(system_at(Place(PARQUET, str(tmp_path), "t")), stack)
        assert look() == [0, 10]
        batch("1.compact", 0, 1)
        batch("2", 3)
        assert look() == [1, 11, 3, 13]
        assert look() == []


def test_of_delta_only_what_a_commit_adds_is_visible_and_once(tmp_path):
    data = tmp_path / "data"
    write_ids(data / "a b.parquet", 1)
    write_ids(data / "c.parquet", 2)
    log = data / "_delta_log"
    log.mkdir()
    (log / f"{0:020d}.json").write_text('{"commitInfo": {}}\n{"add": {"path": "a%20b.parquet"}}\n')
    with ExitStack() as stack:
        look = follow(system_at(Place(DELTA, str(tmp_path), "t")), stack)
        assert look() == [1]
        assert look() == []
        (log / f"{1:020d}.json").write_text('{"add": {"path": "c.parquet"}}\n')
        assert look() == [2]


# -- tables, plots and the page ----------------------------------------------------------------------------------

ENVIRONMENT = {
    "taken": "2026-11-19", "commit": "abcdef0", "small": False, "rounds": 3, "cores": 2, "cores_of_the_machine": 2,
    "sizes": {"rows": 10_000_000, "wide_rows": 2_000_000}, "pyspark": "4.2.0", "pyarrow": "26.0.1", "python": "3.11",
    "java": "openjdk 17", "confluent_kafka": "2.16.1", "jars": ["a:b:1"],
}  # fmt: skip
TINY = {
    LEDGER: [{"p50_ms": 250, "p99_ms": 350}, {"p50_ms": 260, "p99_ms": 360}],
    KAFKA: [{"p50_ms": 170, "p99_ms": 300}, {"p50_ms": 180, "p99_ms": 310}],
}
RESULTS = {"tiny": {"environment": ENVIRONMENT, "runs": TINY}}
LATER = {"newest": {"environment": ENVIRONMENT | {"commit": "1234567"}, "runs": {LEDGER: [{"read_s": 1.0}]}}}
PAGE = f"# Benchmarks\n\n{report.BEGIN}\n\nold\n\n{report.END}\n\nthe rest\n"


def test_a_table_tells_what_is_lost_as_plainly_as_what_is_won():
    lines = TinyBatches().table(TINY).splitlines()
    assert lines[0] == "### Micro-batches of 100 rows, from topic to topic: time of a trigger"
    assert lines[-1] == "| kafka | 175 (170 to 180) | 305 (300 to 310) | 0.69 |"


def test_each_age_is_a_row_and_who_has_not_grown_so_old_has_none():
    ours = {"commit_ms@10": 3.0, "start_s@10": 1.0, "producer_ms@100000": 2.0}
    lines = Ageing().table({LEDGER: [ours], KAFKA: [{"commit_ms@10": 4.0}]}).splitlines()
    assert lines[-3:] == [
        "| ledger | 10 | 3.0 |  |  | 1.00 |",
        "| ledger | 100,000 |  | 2.0 |  |  |",
        "| kafka | 10 | 4.0 |  |  |  |",
    ]


def test_writing_and_reading_have_tables_of_their_own():
    run = {"write_mrows": 1.0, "write_batch_mrows": 2.0, "files": 3, "read_mrows": 4.0, "read_batch_mrows": 5.0}
    write, read = Narrow().table({LEDGER: [run], KAFKA: [run | {"read_mrows": 8.0}]}).split("\n\n###")
    assert write.startswith("### Bulk write, records of 128 bytes")
    assert write.splitlines()[-1] == "| kafka | 1.00 | 2.00 |  |  |  | 3 | 1.00 | 1.00 |"
    assert read.splitlines()[-1] == "| kafka | 8.00 | 5.00 |  |  | 0.50 | 1.00 |"


def test_the_page_is_written_between_its_markers_and_nowhere_else():
    page = report.written(PAGE, RESULTS)
    assert page.startswith(
        f"# Benchmarks\n\n{report.BEGIN}\n\nTaken on 2026-11-19 at commit abcdef0: 10,000,000 records"
    )
    assert page.endswith(f"\n\n{report.END}\n\nthe rest\n")
    assert "old" not in page
    assert report.written(page, RESULTS) == page
    for broken in (PAGE.replace(report.END, ""), PAGE.replace(report.BEGIN, "")):
        with pytest.raises(SystemExit, match="markers"):
            report.written(broken, RESULTS)


def test_a_workload_that_was_taken_on_something_else_says_so_itself():
    wide = {"wide": {"environment": ENVIRONMENT, "runs": {LEDGER: [{"write_mrows": 1.0}]}}}
    above, newest = report.written(PAGE, RESULTS | wide | LATER).split("### The newest record")
    assert above.count("at commit abcdef0") == 1
    assert "at commit 1234567" not in above
    assert newest.index("at commit 1234567") < newest.index("| read s")


def test_a_run_of_some_workloads_leaves_the_others_as_they_were(tmp_path, monkeypatch):
    shown, page, run = tmp_path / "shown.json", tmp_path / "page.md", tmp_path / "run.json"
    shown.write_text(json.dumps(RESULTS))
    page.write_text(PAGE)
    run.write_text(json.dumps(LATER))
    for name, value in (("SHOWN", shown), ("PAGE", page), ("PICTURES", tmp_path / "pictures")):
        monkeypatch.setattr(report, name, value)
    monkeypatch.setattr("sys.argv", ["report", str(run)])
    report.main()
    assert json.loads(shown.read_text()) == RESULTS | LATER
    assert page.read_text() == report.written(PAGE, RESULTS | LATER)


def test_plots_are_drawn_from_the_medians_and_shown(tmp_path):
    (page := tmp_path / "page.md").write_text(PAGE)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "of-another-run.svg").touch()
    report.write(RESULTS, page, pictures, tmp_path / "results.json")
    assert [file.name for file in pictures.iterdir()] == ["tiny-p50-ms.svg"]
    assert re.findall(r">([\d.]+)</text>", (pictures / "tiny-p50-ms.svg").read_text()) == ["255", "175"]
    assert "](pictures/peers/tiny-p50-ms.svg)" in page.read_text()
    assert json.loads((tmp_path / "results.json").read_text()) == RESULTS


def test_a_run_that_is_small_is_not_written(tmp_path, monkeypatch, capsys):
    small = tmp_path / "small.json"
    small.write_text(json.dumps({"tiny": {"environment": ENVIRONMENT | {"small": True}, "runs": TINY}}))
    monkeypatch.setattr("sys.argv", ["report", str(small)])
    before = report.PAGE.read_text()
    with pytest.raises(SystemExit):
        report.main()
    assert "--small" in capsys.readouterr().err
    assert report.PAGE.read_text() == before


def test_the_page_shows_what_is_kept_of_the_last_run_and_no_other_plots_lie_about():
    page, drawn = report.PAGE.read_text(), {file.stem: file.read_text() for file in report.PICTURES.glob("*.svg")}
    if report.SHOWN.exists():
        kept = json.loads(report.SHOWN.read_text())
        assert report.written(page, kept) == page
        assert dict(report.plots(kept)) == drawn
    else:
        assert "first full run" in page.partition(report.BEGIN)[2].partition(report.END)[0]
        assert drawn == {}


def test_workloads_have_names_of_their_own_and_every_system_is_known():
    names = [kind.name for kind in WORKLOADS]
    assert len(set(names)) == len(names)
    assert {system_at(Place(name, "/nowhere", "t")).format for name in NAMES} == set(NAMES)


# -- jars, and the S3 server -------------------------------------------------------------------------------------


def test_what_belongs_to_spark_is_taken_without_what_it_depends_on():
    pom = jars.pom(("a:b:1",), ("c:d:2",))
    alone, whole = re.findall(r"<dependency>.*</dependency>", pom)
    assert ("exclusions" in alone, "exclusions" in whole) == (True, False)
    assert "<groupId>c</groupId><artifactId>d</artifactId><version>2</version>" in whole


def test_jars_that_are_there_are_not_fetched_again_and_a_new_list_is(tmp_path, monkeypatch):
    fetched = []

    def copy(place, wanted):
        place.mkdir(exist_ok=True)
        (place / "pom.xml").write_text(wanted)
        (place / "done").touch()
        fetched.append(place.name)

    monkeypatch.setattr(jars, "_copy", copy)
    jars.get(tmp_path)
    jars.get(tmp_path)
    assert fetched == ["spark", "broker"]
    monkeypatch.setattr(jars, "BROKER", ("a:b:2",))
    jars.get(tmp_path)
    assert fetched == ["spark", "broker", "broker"]
    with pytest.raises(SystemExit, match="make bench-peers"):
        jars.jars(tmp_path, "broker")


def test_requests_to_s3_are_counted_by_method_since_the_last_look():
    answers = []
    application = Delayed(lambda environ, start: [environ["PATH_INFO"].encode()], 0)
    for method in ("GET", "HEAD", "GET"):
        answers += application({"PATH_INFO": "/bench/x", "REQUEST_METHOD": method}, lambda *_: None)
    assert answers == [b"/bench/x"] * 3
    ask = {"PATH_INFO": "/requests", "REQUEST_METHOD": "GET"}
    assert [json.loads(b"".join(application(ask, lambda *_: None))) for _ in range(2)] == [{"GET": 2, "HEAD": 1}, {}]
