"""Compare explanations of tables with exact Shapley values and with other methods."""

from reproduction.application import experiments

app = experiments(__name__, __doc__, "explanations", ("tables", "TableSettings", "tables:tables"))
