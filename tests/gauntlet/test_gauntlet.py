"""Every kind of model × every analysis: verified, or refused with a clear error.

`outcomes.csv` holds what is expected; `python tests/gauntlet/outcomes.py` writes it anew, with the
lists in docs/kinds-of-models.md.
"""

import csv
from pathlib import Path

import pytest
from gauntlet.analyses import ANALYSES, Subject
from gauntlet.models import CASES
from gauntlet.outcomes import DOCS, OUTCOMES, VERIFIED, outcome, table

with OUTCOMES.open(encoding="utf-8") as file:
    EXPECTED = {row.pop("model"): row for row in csv.DictReader(file)}


@pytest.mark.parametrize("name", CASES)
def test_every_analysis_is_verified_or_refused(name, tmp_path):
    subject = Subject(name, tmp_path)
    found = {analysis: outcome(subject, analysis) for analysis in ANALYSES}
    verified = {analysis for analysis, text in found.items() if text == VERIFIED}
    assert verified == {a for a, text in EXPECTED[name].items() if text == VERIFIED}, found
    for text in found.values():  # a refusal names a layer, an argument or the model
        assert text == VERIFIED or "'" in text or "=" in text or "`" in text, text


def test_the_docs_list_these_outcomes():
    assert table(EXPECTED) in DOCS.read_text(encoding="utf-8")


def test_there_are_sixty_models():
    assert len(CASES) >= 60 and EXPECTED.keys() == CASES.keys()


def test_the_file_is_in_the_order_of_the_analyses():
    header = OUTCOMES.read_text(encoding="utf-8").splitlines()[0]
    assert next(csv.reader([header])) == ["model", *ANALYSES]
    assert Path(__file__).parent == OUTCOMES.parent
