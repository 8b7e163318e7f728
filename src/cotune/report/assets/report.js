"use strict";
// Pages, choices and themes. Every number was computed when the report was written: this file only picks columns.
(() => {
  const root = document.documentElement;
  const report = JSON.parse(document.getElementById("cotune-data").textContent);
  const chosen = Object.fromEntries(Object.entries(report.choices).map(([name, options]) => [name, options[0].value]));
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: touch ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  // ---- colours: {css: "--run-0", alpha: 0.2} is what the stylesheet says now
  const probe = document.body.appendChild(document.createElement("i"));
  probe.hidden = true;
  const colour = ({ css, alpha = 1 }) => {
    probe.style.color = `var(${css})`;
    const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g);
    return `rgba(${r}, ${g}, ${b}, ${alpha})`;
  };
  const option = (name) => report.choices[name].find(({ value }) => value === chosen[name]);
  const themed = (value) => {
    if (Array.isArray(value)) return value.map(themed);
    if (value === null || typeof value !== "object") return value;
    if ("css" in value) return colour(value);
    if ("choice" in value) return option(value.choice).label;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, themed(inner)]));
  };

  // ---- figures
  const put = (target, path, value) => {
    const keys = path.split(".");
    const last = keys.pop();
    for (const key of keys) target = target[key] ??= {};
    target[last] = value;
  };
  const merged = (target, more) => {
    for (const [key, value] of Object.entries(more)) {
      const plain = value !== null && typeof value === "object" && !Array.isArray(value);
      target[key] = plain ? merged({ ...target[key] }, value) : value;
    }
    return target;
  };
  const column = (key) => report.columns[key.replace(/\{(\w+)\}/g, (_, name) => chosen[name])] ?? [];

  const drawn = ({ bind = {}, points, interval, alone, when = {}, ...trace }) => {
    if (Object.entries(when).some(([name, value]) => chosen[name] !== value)) return null;
    const bound = Object.fromEntries(Object.entries(bind).map(([path, key]) => [path, column(key)]));
    let kept = null;
    if (points) {
      kept = bound.y.flatMap((y, i) => (y === null || (bound.x[i] ?? null) === null ? [] : [i]));
      for (const path in bound) bound[path] = kept.map((i) => bound[path][i]);
    }
    if (interval && kept.length && (!alone || kept.length === 1)) {
      const [low, high] = interval.map(column);
      const array = kept.map((i, place) => (high[i] ?? bound.y[place]) - bound.y[place]);
      const arrayminus = kept.map((i, place) => bound.y[place] - (low[i] ?? bound.y[place]));
      trace.error_y = { type: "data", symmetric: false, array, arrayminus, thickness: 1.4, width: 5 };
    }
    for (const [path, values] of Object.entries(bound)) put(trace, path, values);
    return trace;
  };
  const levels = ({ across, ...trace }, others) => {
    const xs = others.flatMap(({ x }) => x ?? []);
    const [low, high] = xs.reduce(([least, most], x) => [Math.min(least, x), Math.max(most, x)], [Infinity, -Infinity]);
    const margin = low === high ? Math.abs(low) / 2 : 0;
    const found = [...new Set(across.flatMap(column))].filter((level) => level !== null);
    trace.x = found.flatMap(() => [low - margin, high + margin, null]);
    trace.y = found.flatMap((level) => [level, level, null]);
    return trace;
  };
  const holds = (values) => values.some((value) => (Array.isArray(value) ? holds(value) : value !== null));

  const draw = (id) => {
    const plot = report.plots[id];
    const place = document.getElementById(`plot-${id}`);
    const figure = plot.figures[plot.by ? chosen[plot.by] : ""];
    const traces = (figure?.data ?? []).map((trace) => drawn(themed(trace))).filter((trace) => trace);
    traces.forEach((trace, i) => trace.across && (traces[i] = levels(trace, traces)));
    const layout = merged(themed(report.layout), themed(figure?.layout ?? {}));
    for (const name of plot.choices) {
      for (const [path, value] of Object.entries(option(name).layout)) put(layout, path, value);
    }
    const empty = !traces.some(({ x, y, z }) => holds(z ?? []) || (!z && holds(x ?? []) && holds(y ?? [])));
    if (empty) {
      layout.annotations = [{ text: "Nothing was measured here.", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }];
      for (const axis of ["xaxis", "yaxis", "yaxis2"]) if (layout[axis]) layout[axis].visible = false;
      layout.showlegend = false;
      layout.height = 160;
    }
    if (touch) layout.dragmode = false;
    place.style.minHeight = `${layout.height}px`;
    place.dataset.empty = empty;
    return Plotly.react(place, empty ? [] : traces, layout, config);
  };

  // ---- pages
  const panel = (tab) => document.getElementById(tab.getAttribute("aria-controls"));
  const open = () => tabs.find((tab) => tab.getAttribute("aria-selected") === "true");
  const within = (element) => [...element.querySelectorAll(".plot")].map(({ id }) => id.slice("plot-".length));
  const drawPage = () => within(panel(open())).forEach(draw);

  const show = (tab, focus) => {
    for (const other of tabs) {
      other.setAttribute("aria-selected", String(other === tab));
      other.tabIndex = other === tab ? 0 : -1;
      panel(other).hidden = other !== tab;
    }
    if (focus) tab.focus();
    tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    drawPage();
  };
  const addressed = () => tabs.find((tab) => tab.hash === location.hash);
  for (const [i, tab] of tabs.entries()) {
    tab.addEventListener("click", (event) => {
      event.preventDefault();
      history.replaceState(null, "", tab.hash);
      show(tab);
    });
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1 + tabs.length, Home: 0, End: tabs.length - 1 }[event.key];
      if (event.key === " ") tab.click();
      if (to !== undefined) show(tabs[to % tabs.length], true);
      if (event.key === " " || to !== undefined) event.preventDefault();
    });
  }
  addEventListener("hashchange", () => addressed() && show(addressed()));

  // ---- choices
  const apply = () => {
    for (const element of document.querySelectorAll("[data-when]")) {
      element.hidden = [...new URLSearchParams(element.dataset.when)].some(([name, value]) => chosen[name] !== value);
    }
    for (const control of document.querySelectorAll("[data-choice]")) {
      const value = chosen[control.dataset.choice];
      if (control.type === "radio") control.checked = control.value === value;
      else control.value = value;
    }
  };
  document.addEventListener("change", ({ target }) => {
    const name = target.dataset.choice;
    if (!name) return;
    chosen[name] = target.value;
    apply();
    within(panel(open())).filter((id) => [report.plots[id].by, ...report.plots[id].choices].includes(name)).forEach(draw);
  });

  // ---- light and dark
  const toggle = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => toggle.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
  const remembered = (theme) => {
    try {
      return theme ? localStorage.setItem("cotune-theme", theme) : localStorage.getItem("cotune-theme");
    } catch {
      return null; // no storage for this address
    }
  };
  const theme = (value) => {
    if (value) root.dataset.theme = value;
    name();
    drawPage();
  };
  toggle.addEventListener("click", () => {
    const value = dark() ? "light" : "dark";
    remembered(value);
    theme(value);
  });
  system.addEventListener("change", () => theme());

  // ---- paper: every page, one below the other
  addEventListener("beforeprint", () => {
    for (const tab of tabs) panel(tab).hidden = false;
    for (const tab of tabs) within(panel(tab)).forEach(draw);
  });
  addEventListener("afterprint", () => show(open()));

  root.classList.add("scripted");
  if (remembered()) root.dataset.theme = remembered();
  name();
  apply();
  show(addressed() ?? tabs[0]);
})();
