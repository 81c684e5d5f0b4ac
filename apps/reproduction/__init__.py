"""The papers' experiments: functions from settings to tables and figures, one folder per paper.

    from reproduction.nnslicer.pruning import curves
    from reproduction.nnslicer.settings import CurveSettings

    result = curves(CurveSettings(model="digits_cnn", dataset="digits", samples=10))
    result.table("figure3")  # a DataFrame
    result.write("results")  # CSV, Markdown and PNG files

Settings are dataclasses (`settings`), results are tables and figures (`result`); the scripts in
`apps/` are their command lines (`application`). `catalogue.toml` lists which command makes
which table of a paper, and `report` puts all of them on one page. Nothing in the library imports
this package.
"""
