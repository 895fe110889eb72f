"""What `rltrain bench article` found, beside what the article says: results, tables, charts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rltrain.bench.figures import Figure, ratio
from rltrain.bench.report import Cell, Chart, Report, Table
from rltrain.bench.trial import Trial

MANY, UNEVEN = "many cheap envs", "uneven slow envs"
TARGET_TEXT = {MANY: "s to return 475", UNEVEN: "s to return 100"}
ARTICLE_FASTER, ARTICLE_BUSY, ARTICLE_CONVERGENCE = "1.3 x", ("45 %", "78 to 80 %"), "1.5 x"


@dataclass
class Result:
    """One side of a scenario and its figures, one value for each turn.

    Args:
        scene: `MANY` or `UNEVEN`.
        label: what it is.
        options: option path -> value.
        num_envs: in all.
        num_threads: of the conventional loop; None for rltrain.
        is_plain: whether that loop does without rltrain's layers and memory.
    """

    scene: str
    label: str
    options: Mapping[str, Any]
    num_envs: int
    num_threads: int | None = None
    is_plain: bool = False
    rate: Figure = field(default_factory=lambda: Figure("env steps/s"))
    busy: Figure = field(default_factory=lambda: Figure("%"))
    learner: Figure = field(default_factory=lambda: Figure("%"))
    idle: Figure = field(default_factory=lambda: Figure("%", note="not apart"))
    fill: Figure = field(default_factory=lambda: Figure("%"))
    waits: Figure = field(default_factory=lambda: Figure("%"))
    restarts: int = 0
    has_gpu: bool = False
    time: Figure = field(default_factory=lambda: Figure("s"))
    missed: int = 0

    @property
    def is_rltrain(self) -> bool:
        """Whether it is rltrain."""
        return self.num_threads is None

    def add_trial(self, trial: Trial) -> float:
        """Take the figures of a run of rltrain; returns env steps/s."""
        self.has_gpu |= trial.has_gpu
        self.learner.values.append(100 * (trial.share("learner", "update") + trial.share("learner", "h2d")))
        self.busy.values.append(100 * trial.device_busy_share)
        self.idle.values.append(100 * trial.learner_idle_share)
        self.idle.note = ""
        self.waits.values.append(100 * trial.share("actor", "wait_action"))
        rows, most = trial.summary.get("batch_size_mean_rows"), self.options.get("pipeline.max_batch_size")
        if rows and most:
            self.fill.values.append(100 * rows / most)
        self.restarts += int(trial.summary.get("restarts") or 0)
        return trial.env_steps_per_s

    def add_loop(self, figures: Mapping[str, float | None]) -> float:
        """Take the figures of the conventional loop; returns env steps/s."""
        self.learner.values.append(100 * (figures["update_share"] or 0.0))
        self.busy.values.append(100 * (figures["busy_share"] or 0.0))
        return figures["env_steps_per_s"] or 0.0

    def add_time(self, seconds: float | None, limit_s: float) -> None:
        """Take the time to the return threshold; None: it was not reached in `limit_s`, which is then what it took."""
        self.missed += seconds is None
        self.time.values.append(limit_s if seconds is None else seconds)
        if self.missed:
            self.time.note = f"or more, {self.missed} not in time"


def report_of(
    results: list[Result], how: str, record: dict[str, Any], target_limit_s: float | None, article_envs: int
) -> Report:
    """Return the report of what is there.

    Args:
        results: all, in order.
        how: how it was measured.
        record: of `bench.record`.
        target_limit_s: longest time to a threshold, in seconds; None: not measured.
        article_envs: how many cheap envs the sides of the first scenario are compared with.
    """
    has_gpu = any(r.has_gpu for r in results)
    device = "device busy (learner and server)" if has_gpu else "device busy (CPU learner and server)"
    many = [r for r in results if r.scene == MANY and r.num_envs == article_envs]
    uneven = [r for r in results if r.scene == UNEVEN]
    sweep = [r for r in results if r.scene == MANY and r.is_rltrain]
    report = Report("rltrain bench article: the article's promise, measured", how, record)
    report.tables = [
        _promises(many, uneven, device),
        *(_sides(scene, sides, device, target_limit_s) for scene, sides in ((MANY, many), (UNEVEN, uneven))),
        _sweep(sweep, article_envs),
    ]
    report.charts = [
        *(_bars(f"{scene}: speed", "env steps/s", {r.label: r.rate for r in sides})
          for scene, sides in ((MANY, many), (UNEVEN, uneven))),
        *(_bars(f"{scene}: {device}", "%", {r.label: r.busy for r in sides},
                {"article, conventional": 45.0, "article, promised": 78.0})
          for scene, sides in ((MANY, many), (UNEVEN, uneven))),
        Chart("one server, many envs", "envs", "env steps/s", {"rltrain": [(r.num_envs, r.rate) for r in sweep]}),
    ]  # fmt: skip
    report.notes = _notes(has_gpu, target_limit_s)
    return report


def best_loop(sides: list[Result]) -> Result | None:
    """Return the fastest conventional loop; None before any was measured."""
    measured = [r for r in sides if not r.is_rltrain and r.rate.values]
    return max(measured, key=lambda r: r.rate.median or 0.0, default=None)


def _side(sides: list[Result], label: str) -> Result | None:
    return next((r for r in sides if r.label == label), None)


def _promises(many: list[Result], uneven: list[Result], device: str) -> Table:
    table = Table("what the article promises", ("", "conventional", "rltrain", "ratio", "article"))
    for scene, sides in ((MANY, many), (UNEVEN, uneven)):
        loop, own = best_loop(sides), _side(sides, "rltrain, overlap")
        if loop is None or own is None:
            continue
        faster, sooner = ratio(own.rate, loop.rate), ratio(loop.time, own.time)
        sooner.note = "or more" if loop.missed and not own.missed else "unknown" if own.missed else ""
        rise = " -> ".join(ARTICLE_BUSY)
        table.rows += [
            (f"{scene}: env steps/s", loop.rate, own.rate, faster, ARTICLE_FASTER),
            (f"{scene}: {device}, %", loop.busy, own.busy, ratio(own.busy, loop.busy), rise),
            (f"{scene}: {TARGET_TEXT[scene]}", loop.time, own.time, sooner, ARTICLE_CONVERGENCE),
        ]
        plain = best_loop([r for r in sides if r.is_plain])
        if plain is not None:
            gain = ratio(own.rate, plain.rate)
            table.rows.append((f"{scene}: env steps/s, beside plain torch", plain.rate, own.rate, gain, ARTICLE_FASTER))
    sync, overlap = _side(uneven, "rltrain, sync"), _side(uneven, "rltrain, overlap")
    if sync is not None and overlap is not None:
        gain = ratio(overlap.rate, sync.rate)
        table.rows.append((f"{UNEVEN}: `overlap` for `sync`, env steps/s", sync.rate, overlap.rate, gain, "-"))
    return table


def _sides(scene: str, sides: list[Result], device: str, target_limit_s: float | None) -> Table:
    columns = ("", "env steps/s", f"{device}, %", "learner's part, %", "learner waits, %", TARGET_TEXT[scene])
    table = Table(f"{scene}: {sides[0].num_envs if sides else 0:,} envs", columns)
    for r in sides:
        time: Cell = "not measured" if target_limit_s is None or not r.time.values else r.time
        table.rows.append((r.label, r.rate, r.busy, r.learner, r.idle, time))
    return table


def _sweep(sweep: list[Result], article_envs: int) -> Table:
    columns = ("envs", "env steps/s", "of the best smaller count", "batch fill, %", "actors wait for actions, %",
               "restarts")  # fmt: skip
    table = Table("one inference server: how many envs it carries", columns)
    for i, r in enumerate(sweep):
        best = max(sweep[:i], key=lambda smaller: smaller.rate.median or 0.0, default=None)
        share: Cell = "-" if best is None else ratio(r.rate, best.rate)
        table.rows.append((f"{r.num_envs:,}", r.rate, share, r.fill, r.waits, str(r.restarts)))
    return table


def _bars(title: str, unit: str, figures: dict[str, Figure], limits: dict[str, float] | None = None) -> Chart:
    return Chart(title, "", unit, {"": list(figures.items())}, limits or {})


def _notes(has_gpu: bool, target_limit_s: float | None) -> list[str]:
    notes = [
        "device busy: share of the time that goes into policy forwards and updates, by the clock; of rltrain at least: "
        "the larger of the learner's and the server's share, as both may work at once",
        "conventional: one process, same envs, network and update, rltrain's fast layers and memory too; parallel envs "
        "are Gymnasium's AsyncVectorEnv",
        "plain torch: the same loop in torch's own operations, as people write it",
        "the article's figures are of its own machine and GPU, which are not known",
        "seconds to a return are from process start, each turn with another seed",
    ]
    if has_gpu:
        notes.append("device busy is not NVML's utilisation: a run's summary keeps no figures of GPUs")
    else:
        notes.append("no GPU here: device busy is of the CPU, and says nothing about the article's GPU utilisation")
    if target_limit_s is None:
        notes.append("--quick measures no time to a return")
    return notes
