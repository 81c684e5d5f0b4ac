"""The explorer: an interactive view of slices, as a Jupyter widget and as one HTML file.

`explore` packs the data into a document (`packing`, a versioned format), which is put into a
page; its script, `static/explorer.js`, draws everything from the document alone.
"""
