"""The outcomes of the gauntlet: run everything, write outcomes.csv and the lists in the docs.

python tests/gauntlet/outcomes.py
"""

import csv
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from gauntlet.analyses import ANALYSES, Subject  # noqa: E402
from gauntlet.models import CASES  # noqa: E402

from nnslicer_tf.errors import NNSlicerError, PlausibilityWarning  # noqa: E402

OUTCOMES = HERE / "outcomes.csv"
DOCS = HERE.parents[1] / "docs/kinds-of-models.md"
BEGIN, END = "<!-- gauntlet -->", "<!-- /gauntlet -->"
VERIFIED = "verified"


def outcome(subject: Subject, analysis: str) -> str:
    """Return `VERIFIED`, or the error with which the analysis refuses the model."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlausibilityWarning)  # random models often do
            ANALYSES[analysis](subject)
    except NNSlicerError as error:
        return str(error).replace(f"{HERE.parents[1]}/", "")  # it may name a line of a model
    return VERIFIED


def table(outcomes: Mapping[str, Mapping[str, str]]) -> str:
    """Return the outcomes in Markdown: the models that nothing refuses, and a table of refusals."""
    refusals = {
        name: [analysis for analysis in ANALYSES if row[analysis] != VERIFIED]
        for name, row in outcomes.items()
    }
    everywhere = "; ".join(name for name, refused in refusals.items() if not refused)
    lines = [f"All analyses accept: {everywhere}.", "", "| model | refused by |", "|---|---|"]
    for name, refused in refusals.items():
        accepted = [f"`{analysis}`" for analysis in ANALYSES if analysis not in refused]
        text = ", ".join(f"`{analysis}`" for analysis in refused)
        if len(accepted) <= 1:
            text = "all analyses" + "".join(f" but {analysis}" for analysis in accepted)
        if refused:
            lines.append(f"| {name} | {text} |")
    return "\n".join(lines)


def main() -> None:
    """Run all models and write the files."""
    outcomes = {}
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            subject = Subject(name, Path(folder))
            outcomes[name] = {analysis: outcome(subject, analysis) for analysis in ANALYSES}
        print(name, sum(text == VERIFIED for text in outcomes[name].values()), flush=True)
    with OUTCOMES.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["model", *ANALYSES], lineterminator="\n")
        writer.writeheader()
        for name, row in outcomes.items():
            writer.writerow({"model": name} | {a: " ".join(t.split()) for a, t in row.items()})
    before, rest = DOCS.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    DOCS.write_text(f"{before}{BEGIN}\n\n{table(outcomes)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
