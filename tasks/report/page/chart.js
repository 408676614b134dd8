// Shows the values under the pointer. The data are numbers and names in data-chart; they only ever become text.
"use strict";
document.querySelectorAll("svg.chart").forEach(function (svg) {
  var data = JSON.parse(svg.dataset.chart), figure = svg.parentNode, cursor = svg.querySelector(".cursor");
  var left = data.frame[0], right = data.frame[1], x0 = data.frame[2], x1 = data.frame[3], width = data.frame[4];
  var tip = null, shown = -1;
  function place(x) { return left + (x - x0) / (x1 - x0) * (right - left); }
  function text(value) { return data.share ? (value * 100).toFixed(1) + "%" : String(value); }
  function part(tag, words, name) {
    var node = document.createElement(tag);
    node.textContent = words;
    if (name) { node.className = name; }
    return node;
  }
  function hide() {
    if (tip) { tip.remove(); tip = null; }
    cursor.classList.remove("on");
    shown = -1;
  }
  function show(index) {
    if (index === shown) { return; }
    hide();
    shown = index;
    tip = document.createElement("div");
    tip.className = "tip";
    tip.append(part("b", data.xName + " " + data.x[index]));
    data.lines.forEach(function (line) {
      if (line.y[index] !== null) { tip.append(part("span", (line.name ? line.name + " " : "") + text(line.y[index]), line.class)); }
    });
    figure.append(tip);
    var at = place(data.x[index]), box = svg.getBoundingClientRect(), outer = figure.getBoundingClientRect();
    var x = box.left - outer.left + at / width * box.width;
    tip.style.left = Math.max(0, Math.min(outer.width - tip.offsetWidth, x + 12 + tip.offsetWidth > outer.width ? x - 12 - tip.offsetWidth : x + 12)) + "px";
    tip.style.top = box.top - outer.top + 8 + "px";
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    cursor.classList.add("on");
  }
  function nearest(clientX) {
    var box = svg.getBoundingClientRect(), at = (clientX - box.left) / box.width * width, best = 0;
    data.x.forEach(function (x, index) {
      if (Math.abs(place(x) - at) < Math.abs(place(data.x[best]) - at)) { best = index; }
    });
    return best;
  }
  svg.addEventListener("pointermove", function (event) { show(nearest(event.clientX)); });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", function (event) {
    var step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") { hide(); }
    if (step) {
      event.preventDefault();
      show(Math.max(0, Math.min(data.x.length - 1, shown < 0 ? (step > 0 ? 0 : data.x.length - 1) : shown + step)));
    }
  });
});
