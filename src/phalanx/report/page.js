"use strict";
(() => {
  const AXES = { steps: "step", seconds: "seconds since the run began" };
  const plots = [...document.querySelectorAll(".plot")];

  const themed = (layout) => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    layout.paper_bgcolor = "rgba(0,0,0,0)";
    layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.font = { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--text") };
    for (const key of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key)))
      Object.assign(layout[key], { gridcolor: colour("--grid"), linecolor: colour("--edge") });
    return layout;
  };

  const draw = (plot) => {
    const source = document.querySelector(`script[data-for="${plot.id}"]`);
    const figure = JSON.parse(source.textContent);
    return Plotly.newPlot(plot, figure.data, themed(figure.layout), {
      displayModeBar: false,
      responsive: true,
    });
  };

  // A line holds its steps in x and its seconds in customdata, or the other way round.
  let axis = "steps";
  const turn = (wanted) => {
    if (wanted === axis) return;
    axis = wanted;
    for (const plot of plots.filter((each) => each.dataset.hasSteps === "yes")) {
      for (const trace of plot.data) [trace.x, trace.customdata] = [trace.customdata, trace.x];
      const titled = Object.keys(plot.layout).filter(
        (key) => /^xaxis\d*$/.test(key) && plot.layout[key].title?.text,
      );
      for (const key of titled) {
        plot.layout[key].title.text = AXES[axis];
        plot.layout[key].autorange = true;
      }
      Plotly.react(plot, plot.data, plot.layout);
    }
  };

  for (const choice of document.querySelectorAll('input[name="axis"]'))
    choice.addEventListener("change", () => turn(choice.value));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => plots.forEach((each) => Plotly.relayout(each, themed(each.layout))));
  Promise.all(plots.map(draw)).then(() => document.body.setAttribute("data-drawn", plots.length));
})();
