"use strict";
// Names and verdicts are not to be trusted: textContent for the DOM, labelText for plotly, which reads tags in labels,
// and no name in a template of a hover text, which reads %{…}.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const labelText = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const cut = (text, most) => (text.length <= most ? text : text.slice(0, most / 2 - 1) + "…" + text.slice(-most / 2));
const dark = matchMedia("screen and (prefers-color-scheme: dark)");
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
