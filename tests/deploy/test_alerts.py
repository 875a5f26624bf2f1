"""Every alert is quiet while all is well and fires when it should, as promtool evaluates it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.alert_cases import CASES, Case
from tests.support.rules import RULE_FILES, alerts

pytestmark = pytest.mark.needs("promtool")


def as_promtool(case: Case) -> dict[str, Any]:
    """Two looks at one course of events."""
    (rule,) = [one for one in alerts() if one["alert"] == case.alert]
    fired = {
        "exp_labels": {"severity": case.severity, **case.labels},
        "exp_annotations": {"summary": case.summary, "runbook": rule["annotations"]["runbook"]},
    }
    return {
        "name": case.alert,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": case.quiet_at, "alertname": case.alert, "exp_alerts": []},
            {"eval_time": case.fires_at, "alertname": case.alert, "exp_alerts": [fired]},
        ],
    }


def promtool(folder: Path, cases: tuple[Case, ...]) -> tuple[int, str]:
    """Its exit status and what it said."""
    written = {
        "rule_files": [str(path) for path in RULE_FILES],
        "evaluation_interval": "1m",
        "tests": [as_promtool(case) for case in cases],
    }
    (folder / "alerts.yaml").write_text(yaml.safe_dump(written, sort_keys=False), "utf-8")
    words = ("promtool", "test", "rules", str(folder / "alerts.yaml"))
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=110)
    return done.returncode, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong() -> None:
    words = ("promtool", "check", "rules", *map(str, RULE_FILES))
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_quiet_at_first_and_fires_in_time(tmp_path: Path) -> None:
    status, said = promtool(tmp_path, CASES)
    assert status == 0, said


def test_an_alert_that_does_not_fire_is_noticed(tmp_path: Path) -> None:
    (case,) = [case for case in CASES if case.alert == "TandemStoreAway"]
    well = Case(**{**vars(case), "series": dict.fromkeys(case.series, "0x15")})
    status, said = promtool(tmp_path, (well,))
    assert status != 0 and "TandemStoreAway" in said


def test_every_alert_has_a_case() -> None:
    assert sorted(case.alert for case in CASES) == sorted(rule["alert"] for rule in alerts())
