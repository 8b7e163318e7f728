"""Synthetic multiple choice by domain: the task `choice`, scored for each domain by itself as MMLU's is."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from cotune.core.contracts import Row
from cotune.task import Choice
from cotune.task.table import Table
from cotune.task.tabular import Parsed

DOMAIN = "domain"


class Domains(Choice):
    """Questions with four options and a column `domain`, which is the stratum of a test row."""

    kind: ClassVar[str] = "cotune.reproduce.domains:Domains"

    def parse(self, table: Table) -> Parsed:
        """The rows that have a question, with their domain."""
        parsed, domains = super().parse(table), table.cells(DOMAIN, self.data)
        return replace(parsed, rows={i: {**row, DOMAIN: str(domains[i])} for i, row in parsed.rows.items()})

    def cell(self, row: Row) -> str:
        """The domain."""
        return str(row[DOMAIN])
