
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
