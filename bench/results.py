"""The measurements: values by scenario, system and figure, kept as JSON so that the report can be rewritten."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

Key = tuple[str, str, str]


class Results:
    def __init__(self) -> None:
        self.values: dict[Key, list[float]] = defaultdict(list)
        self.about: dict[str, dict[str, Any]] = {}
        """The description of each system: versions, configuration."""
        self.missing: dict[str, str] = {}
        """Systems that could not run, with the reason."""
        self.failed: dict[str, str] = {}
        """Failed scenario/system combinations, with the reason."""
        self.run: dict[str, Any] = {}
        """Machine, versions, command, sizes."""

    def keep(self, scenario: str, system: str, figure: str, value: float) -> None:
        self.values[scenario, system, figure].append(value)

    def median(self, scenario: str, system: str, figure: str) -> float | None:
        values = self.values.get((scenario, system, figure))
        return statistics.median(values) if values else None

    def spread(self, scenario: str, system: str, figure: str) -> tuple[float, float] | None:
        values = self.values.get((scenario, system, figure))
        return (min(values), max(values)) if values and len(values) > 1 else None

    def save(self, path: Path) -> None:
        rows = [[*key, values] for key, values in self.values.items()]
        whole = {
            "values": rows,
            "about": self.about,
            "missing": self.missing,
            "failed": self.failed,
            "run": self.run,
        }
        path.write_text(json.dumps(whole, indent=1))

    @classmethod
    def load(cls, path: Path) -> Results:
        results, whole = cls(), json.loads(path.read_text())
        for scenario, system, figure, values in whole["values"]:
            results.values[scenario, system, figure] = values
        for part in ("about", "missing", "failed", "run"):
            setattr(results, part, whole[part])
        return results
