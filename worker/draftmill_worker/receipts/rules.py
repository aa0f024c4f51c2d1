"""The rules of a receipt, by name. They fail closed: what was not recorded counts as wrong.

A receipt that breaks one is kept and fails its job; its numbers prove nothing.
"""

from draftmill.receipts import Receipt, RuleResult
from draftmill_worker.receipts.expected import Expected
from draftmill_worker.receipts.rule import RULES, Case, Rule
from draftmill_worker.receipts.ruleset import draft_head, head, modules, record, run

__all__ = ["RULES", "validate"]

# Importing them registers their rules.
_SETS = (run, modules, head, draft_head, record)


def validate(receipt: Receipt, expected: Expected) -> tuple[RuleResult, ...]:
    """Every rule's verdict, failed ones first."""
    case = Case(receipt, expected)
    results = [_judge(name, rule, case) for name, rule in RULES.items()]
    return tuple(sorted(results, key=lambda result: result.passed))


def _judge(name: str, rule: Rule, case: Case) -> RuleResult:
    found = rule.judge(case)
    passed = not found.offenders
    return RuleResult(rule=name, passed=passed, detail=found.detail, offenders=tuple(found.offenders))
