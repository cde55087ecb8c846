// Set the formulas that pymdownx.arithmatex marked, by the KaTeX that lies beside this file; an error goes to the console.
for (const formula of document.querySelectorAll(".arithmatex"))
  renderMathInElement(formula, {
    delimiters: [
      { left: "\\(", right: "\\)", display: false },
      { left: "\\[", right: "\\]", display: true },
    ],
  });
