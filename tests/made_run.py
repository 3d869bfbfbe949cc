"""The records of a made-up run: three workers, a straggler, a failure, a restart."""

import json
import math
import random
from datetime import UTC, datetime
from pathlib import Path

from phalanx.monitoring.event_log import RecordWriter, launcher_records_path, records_path

BEGAN = 1_790_000_000.0
SHARES = ("input", "compute", "communication", "callbacks", "checkpoint")
VARIABLES = ("cnn/conv/kernel", "cnn/head/kernel")
STEPS_AN_EPOCH = 60
FAILS_AT, RESUMES_AT = 140, 120


class Clock:
    """The time, which passes when it is asked to."""

    def __init__(self, now=BEGAN):
        self.now = now

    def __call__(self):
        return self.now


def make_run(root, name="made", *, workers=3, epochs=4, seed=0, restart=True, ended=True):
    """Write a run's directory and return its path; `ended=False` leaves it in the middle."""
    return _Made(Path(root) / name, workers, epochs, seed).write(restart=restart, ended=ended)


class _Made:
    def __init__(self, path, workers, epochs, seed):
        self.path, self.workers, self.epochs = path, workers, epochs
        self.random = random.Random(seed)
        self.clock = Clock()
        self.launcher = RecordWriter(launcher_records_path(path), clock=self.clock)
        self.writers = [
            RecordWriter(records_path(path, rank), clock=self.clock) for rank in range(workers)
        ]
        self.clipped = self.looked = 0
        self.spent = [{}] * workers

    def write(self, *, restart, ended):
        self.run_file(None)
        self.launcher.write(
            "run_start", name=self.path.name, workers=self.workers, strategy="auto", seed=7,
            argv=["phalanx", "run", "train.py"],
        )  # fmt: skip
        last = STEPS_AN_EPOCH * self.epochs
        if restart:
            self.attempt(0, 1, FAILS_AT, fails=True)
            self.attempt(1, RESUMES_AT + 1, last, ended=ended)
        else:
            self.attempt(0, 1, last, ended=ended)
        if ended:
            self.clock.now += 1.5
            self.launcher.write("run_end", exit_code=0, report=None)
            self.run_file({"exit_code": 0, "ended": iso(self.clock.now), "report": None})
        for writer in (self.launcher, *self.writers):
            writer.close()
        return self.path

    def run_file(self, result):
        document = {
            "schema": 1,
            "name": self.path.name,
            "started": iso(BEGAN),
            "argv": ["phalanx", "run", "--workers", str(self.workers), "train.py"],
            "options": {"target": "train.py", "workers": self.workers, "strategy": "auto"},
            "seed": 7,
            "machine": {"cores": 8, "gpus": []},
            "versions": {"python": "3.12.1", "phalanx": "0.1.0", "keras": "3.12.0"},
            "git": {"commit": "0123abcd", "changed": False},
        }
        if result:
            document["result"] = result
        (self.path / "run.json").write_text(json.dumps(document, indent=2))

    def attempt(self, attempt, first, last, *, fails=False, ended=True):
        self.clock.now += 0.5
        members = [
            {"rank": rank, "pid": 4000 + 10 * attempt + rank, "host": "atlas"}
            for rank in range(self.workers)
        ]
        self.launcher.write("attempt_start", attempt=attempt, workers=members)
        self.clock.now += 3.0
        for rank, writer in enumerate(self.writers):
            self.spent[rank] = {"start": 3.0}
            writer.write(
                "worker_start", attempt=attempt, rank=rank, workers=self.workers,
                pid=members[rank]["pid"], host="atlas", replicas=self.workers,
                devices=["CPU:0"], versions={"tensorflow": "2.20.0"},
            )  # fmt: skip
            writer.write(
                "fit_start", fit=0, epochs=self.epochs,
                initial_epoch=(first - 1) // STEPS_AN_EPOCH, steps=STEPS_AN_EPOCH, model="cnn",
                parameters=9_332_200, optimizer="Adam", step=first - 1,
            )  # fmt: skip
            if rank == 0:
                size = 37_328_800
                writer.write(
                    "reduction_plan", replicas=self.workers, reduce_dtype=None, bytes=size,
                    buckets=[{"dtype": "float32", "bytes": size, "tensors": 6}], sparse=[],
                )  # fmt: skip
            self.heartbeat(rank, first - 1, "compute")
        started = self.clock.now
        for step in range(first, last + 1):
            self.step(step)
        if fails:
            self.fail(attempt)
            return
        if not ended:
            return
        for writer in self.writers:
            self.heartbeat(self.writers.index(writer), last, "compute")
            writer.write(
                "fit_end", fit=0, step=last, epoch=self.epochs - 1, seconds=self.clock.now - started
            )
            writer.write("worker_end", ok=True, error=None)
        for rank in range(self.workers):
            self.launcher.write(
                "worker_exit", attempt=attempt, rank=rank, code=0, signal=None,
                terminated_by_launcher=False, summary=None,
            )  # fmt: skip

    def fail(self, attempt):
        what = "MemoryError: cannot hold another batch"
        self.writers[1].write("worker_end", ok=False, error=what)
        for rank in range(self.workers):
            culprit = rank == 1
            self.launcher.write(
                "worker_exit", attempt=attempt, rank=rank, code=1 if culprit else -15,
                signal=None if culprit else "SIGTERM", terminated_by_launcher=not culprit,
                summary=what if culprit else None,
            )  # fmt: skip
        self.launcher.write("restart", attempt=attempt + 1, rank=1, cause=what, seconds=2.0)
        self.clock.now += 2.0

    def step(self, step):
        slow = self.is_slow(step)
        seconds = self.random.gauss(0.26 if slow else 0.2, 0.01)
        self.clock.now += seconds
        self.spend("compute", 0.95 * seconds)
        self.spend("callbacks", 0.05 * seconds)
        epoch = (step - 1) // STEPS_AN_EPOCH
        chief = self.writers[0]
        if step % 10 == 1:
            for rank in range(self.workers):
                self.heartbeat(rank, step, "compute")
        if step % 5 == 0:
            chief.write(
                "train_metrics", step=step, epoch=epoch, batch=(step - 1) % STEPS_AN_EPOCH,
                logs=self.logs(step, 0.05), learning_rate=self.rate(step),
            )  # fmt: skip
        if step % 20 == 0:
            self.throughput(step, slow)
            self.gradients(step)
        if self.workers > 2 and step in (181, 215):
            chief.write(
                "straggler", step=step, rank=2, since_step=170, factor=1.45, cause="input",
                resolved=step == 215,
            )  # fmt: skip
        if step % STEPS_AN_EPOCH == 0:
            logs = self.logs(step, 0.02) | {
                f"val_{name}": value for name, value in self.logs(step * 0.9, 0.02).items()
            }
            chief.write(
                "epoch_metrics", step=step, epoch=epoch, logs=logs, learning_rate=self.rate(step),
                seconds=STEPS_AN_EPOCH * 0.2,
            )  # fmt: skip
            self.heartbeat(0, step, "checkpoint")
            self.clock.now += 0.1
            self.spend("checkpoint", 0.1)
            chief.write(
                "checkpoint", step=step, epoch=epoch, path=f"checkpoints/{step}", seconds=0.3,
                bytes=1_120_000, blocking_seconds=0.1,
            )  # fmt: skip

    def heartbeat(self, rank, step, phase):
        self.writers[rank].write(
            "heartbeat", phase=phase, phase_seconds=0.1, step=step,
            epoch=max(step - 1, 0) // STEPS_AN_EPOCH, memory_bytes=self.memory(rank, step),
            phase_totals=self.spent[rank],
        )  # fmt: skip

    def spend(self, phase, seconds):
        self.spent = [{**each, phase: each.get(phase, 0.0) + seconds} for each in self.spent]

    def is_slow(self, step):
        return self.workers > 2 and 170 < step < 215

    def memory(self, rank, step):
        return int(6.2e8 + 4e7 * rank + 2e5 * step)

    def rate(self, step):
        return 5e-4 * (1 + math.cos(math.pi * step / (STEPS_AN_EPOCH * self.epochs)))

    def logs(self, step, noise):
        loss = 2.3 * math.exp(-step / 70) + 0.12 + abs(self.random.gauss(0, noise))
        return {"loss": loss, "accuracy": max(0.0, 1 - loss / 2.6)}

    def throughput(self, step, slow):
        for rank, writer in enumerate(self.writers):
            waits = slow and rank == 2
            time_fractions = [0.42 if waits else 0.1, 0.45, 0.2, 0.03, 0.02]
            time_fractions = [share / sum(time_fractions) for share in time_fractions]
            seconds = 20 * (0.26 if slow else 0.2)
            writer.write(
                "throughput", step=step, steps=20, seconds=seconds, samples=20 * 96,
                samples_per_second=20 * 96 / seconds,
                step_seconds={"p50": seconds / 20, "p95": seconds / 16},
                time_fractions=dict(zip(SHARES, time_fractions, strict=True)),
                memory_bytes=self.memory(rank, step),
            )  # fmt: skip

    def gradients(self, step):
        norm = 4 * math.exp(-step / 80) + 0.3
        self.looked += 1
        self.clipped += norm > 1
        for rank, writer in enumerate(self.writers):
            writer.write(
                "gradients", run=f"worker-{rank}", step=step,
                values={
                    "gradients/norm": norm * (1.2 + 0.1 * rank + self.random.gauss(0, 0.03)),
                    "gradients/cosine_similarity": 0.9 - 0.05 * rank,
                    **{f"gradient_norm/{each}": norm for each in VARIABLES},
                },
            )  # fmt: skip
        self.writers[0].write(
            "gradients", run="global", step=step,
            values={
                "gradients/norm": norm,
                "gradients/clipped_norm": min(norm, 1.0),
                "gradients/clip_fraction": self.clipped / self.looked,
                "gradients/noise_scale": 200 + step,
                **{f"gradient_norm/{v}": norm / (1 + i) for i, v in enumerate(VARIABLES)},
            },
        )  # fmt: skip


def iso(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
