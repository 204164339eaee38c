// The interactive drawing of an op-tree: a click on a box shows its shape, value, gradient and op.

function render({ model, el }) {
  const picture = document.createElement("div");
  picture.style.cssText = "overflow: auto; max-height: 640px; flex: 2 1 300px";
  picture.innerHTML = model.get("svg"); // escaped in Python
  const panel = document.createElement("div");
  panel.style.cssText = "overflow: auto; max-height: 640px; flex: 1 1 260px";
  panel.setAttribute("aria-live", "polite");
  el.style.cssText = "display: flex; flex-wrap: wrap; gap: 16px";
  el.replaceChildren(picture, panel);
  const boxes = [...picture.querySelectorAll("svg > g")];

  function show() {
    const selected = model.get("selected");
    boxes.forEach((box, i) => {
      box.setAttribute("aria-pressed", String(i === selected));
      box.querySelector("rect, ellipse").setAttribute("stroke-width", i === selected ? "3.5" : "1");
    });
    const rows = Object.entries(model.get("nodes")[selected] ?? {}).map(([name, text]) => {
      const row = document.createElement("div");
      const title = document.createElement("b");
      title.textContent = name;
      const content = document.createElement("pre");
      content.style.cssText = "margin: 0 0 8px; white-space: pre-wrap; background: none; color: inherit";
      content.textContent = text;
      row.append(title, content);
      return row;
    });
    panel.replaceChildren(...rows);
  }

  boxes.forEach((box, i) => {
    const select = () => {
      model.set("selected", i);
      model.save_changes();
    };
    box.style.cursor = "pointer";
    box.setAttribute("tabindex", "0");
    box.setAttribute("role", "button");
    box.addEventListener("click", select);
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        select();
      }
    });
  });
  model.on("change:selected", show);
  show();
  return () => model.off("change:selected", show);
}

export default { render };
