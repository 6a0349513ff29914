// A page of the run is one page of paper: made smaller until it fits, for as long as it is printed.

const WIDE = 1058, TALL = 726; // A4 landscape less its margins, in pixels of CSS
const ZOOMS = [1, 0.92, 0.85, 0.78, 0.72, 0.66, 0.6, 0.55, 0.5, 0.45, 0.4];

function fit() {
  const { body, documentElement: root } = document;
  root.classList.add("printing");
  for (const zoom of ZOOMS) {
    body.style.zoom = zoom;
    body.style.width = WIDE / zoom + "px";
    if (body.getBoundingClientRect().height <= TALL) return;
  }
}

function undo() {
  document.documentElement.classList.remove("printing");
  document.body.style.zoom = document.body.style.width = "";
}

addEventListener("beforeprint", fit);
addEventListener("afterprint", undo);
