"""The page around a packed document: one HTML file, or the module of a widget.

The libraries d3 (ISC) and dagre (MIT) are embedded; the page loads nothing.
"""

import base64
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

_STATIC = Path(__file__).parent / "static"

_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>
html, body {{ margin: 0; height: 100%; }}
{style}</style>
</head>
<body>
<main id="explorer"></main>
<noscript>This page needs JavaScript; everything that it needs is inside it.</noscript>
<script id="data" type="application/octet-stream">{data}</script>
<script type="module">
{script}
const text = document.getElementById("data").textContent;
const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
explore(document.getElementById("explorer"), bytes, () => undefined);
</script>
</body>
</html>
"""

_WIDGET = """
async function render({ model, el }) {
  const root = document.createElement("div");
  el.append(root);
  const view = model.get("data");
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  await explore(root, bytes, (selection) => {
    model.set("selection", selection);
    model.save_changes();
  });
}
export default { render };
"""


def html(title: str, data: bytes) -> str:
    """Return a complete page; its title is plain text, its data the packed document."""
    return _HTML.format(
        title=escape(title),
        style=_read("explorer.css"),
        script=script(),
        data=base64.b64encode(data).decode(),
    )


@cache
def script() -> str:
    """Return a JavaScript module that defines `explore(root, bytes, selected)`."""
    # Each library becomes an expression whose value it is, whatever module loader is present.
    libraries = "\n".join(
        f"const {name} = (function () {{ /* The licence is in {name}.LICENSE of the package. */ "
        "const module = { exports: {} }; const exports = module.exports; let define;\n"
        f"{_read(f'{name}.min.js')}\nreturn {value}; }})();"
        for name, value in (("d3", "module.exports"), ("dagre", "dagre"))
    )
    # In a page, a script ends at the first "</script", even inside a string.
    return f"{libraries}\n{_read('explorer.js')}".replace("</script", "<\\/script")


def widget(data: bytes) -> Any:
    """Return an anywidget whose `data` is the packed document; ImportError without anywidget."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ImportError(
            "The widget needs anywidget: pip install anywidget. Without it, write a page that any "
            "browser opens: view.save('slices.html')."
        ) from error

    class ExplorerWidget(anywidget.AnyWidget):
        _esm = script() + _WIDGET
        _css = _read("explorer.css")
        data = traitlets.Bytes().tag(sync=True)
        selection = traitlets.Dict().tag(sync=True)

    return ExplorerWidget(data=data)


@cache
def _read(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")
