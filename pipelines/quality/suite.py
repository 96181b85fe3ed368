"""The quality rules as a Great Expectations suite for a sample in pandas. The job chooses the sampled rows.

The context is ephemeral and created once; results are BOOLEAN_ONLY. Nothing is sent over the network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from broker_edge.extras import needed
from pipelines.silver.rules import Check, Rule, Rules, matching

# Great Expectations reads this when it is imported.
os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")


class Suite:
    """The suite of one message schema. `judge` may be called for any number of samples, from one thread."""

    def __init__(self, rules: Rules) -> None:
        with needed("the quality job"):
            import great_expectations as gx
        self._rules = rules.rules
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = {"globally": False}
        source = context.data_sources.add_pandas(rules.message)
        self._batch = source.add_dataframe_asset(rules.message).add_batch_definition_whole_dataframe("sample")
        suite = gx.ExpectationSuite(name=rules.message)
        for rule in self._rules:
            suite.add_expectation(expectation(rule))
        self._suite = suite
        self._validation = context.validation_definitions.add(
            gx.ValidationDefinition(name=rules.message, data=self._batch, suite=context.suites.add(suite))
        )

    def judge(self, rows: pa.Table) -> dict[str, bool]:
        """Whether the rows satisfy each rule, by rule name. A rule that could not be evaluated counts as broken."""
        done = self._validation.run(batch_parameters={"dataframe": frame(rows)}, result_format="BOOLEAN_ONLY")
        kept = {rule.name: False for rule in self._rules}
        for result in done.results:
            name = result.expectation_config.meta["rule"]
            kept[name] = bool(result.success) and not _failed(result.exception_info)
        return kept


def frame(rows: pa.Table) -> pd.DataFrame:
    """The rows in pandas, with types in which missing integers and booleans do not turn the others into floats."""
    found: pd.DataFrame = rows.to_pandas(integer_object_nulls=True)
    return found


def expectation(rule: Rule) -> Any:
    """The rule as an expectation of Great Expectations."""
    import great_expectations.expectations as gxe

    meta = {"rule": rule.name}
    match rule.check:
        case Check.NOT_NULL:
            return gxe.ExpectColumnValuesToNotBeNull(column=rule.column, meta=meta)
        case Check.BETWEEN:
            return gxe.ExpectColumnValuesToBeBetween(
                column=rule.column, min_value=rule.min, max_value=rule.max, meta=meta
            )
        case Check.IN_SET:
            return gxe.ExpectColumnValuesToBeInSet(column=rule.column, value_set=rule.values, meta=meta)
        case Check.NOT_IN_SET:
            return gxe.ExpectColumnValuesToNotBeInSet(column=rule.column, value_set=rule.values, meta=meta)
        case Check.MATCHES:
            return gxe.ExpectColumnValuesToMatchRegex(
                column=rule.column, regex=matching(rule.pattern or "", end=r"\Z"), meta=meta
            )
        case Check.LENGTH_BETWEEN:
            return gxe.ExpectColumnValueLengthsToBeBetween(
                column=rule.column, min_value=rule.min, max_value=rule.max, meta=meta
            )
        case Check.AT_MOST_COLUMN:
            return gxe.ExpectColumnPairValuesAToBeGreaterThanB(
                column_A=rule.other,
                column_B=rule.column,
                or_equal=True,
                ignore_row_if="either_value_is_missing",
                meta=meta,
            )


def _failed(info: Mapping[str, Any] | Sequence[Any] | None) -> bool:
    """Whether the expectation raised an exception. The report is a single one, or one for each metric."""
    if not isinstance(info, Mapping):
        return False
    if "raised_exception" in info:
        return bool(info["raised_exception"])
    return any(_failed(one) for one in info.values())
