"use strict";
// The charts by the name of their figure, for inspection from the browser's console.
window.charts = {};
for (const place of document.querySelectorAll(".chart")) {
  const spec = JSON.parse(document.getElementById(place.dataset.spec).textContent);
  vegaEmbed(place, spec, {
    actions: false,
    ast: true, // interprets expressions: the page's policy allows no code made from text
    defaultStyle: false,
    renderer: "svg",
    tooltip: { disableDefaultStyle: true },
  }).then(
    (drawn) => { window.charts[place.parentElement.id] = drawn.view; },
    (error) => { place.textContent = `This chart could not be drawn: ${error.message}`; },
  );
}
