// SPDX-License-Identifier: AGPL-3.0-only
// Shows the filter of each list of findings, and hides the entries that it leaves out.
"use strict";
for (const filter of document.querySelectorAll("[data-filter]")) {
  const items = [...document.getElementById(filter.dataset.filter).children];
  const texts = items.map((item) => item.textContent.toLowerCase());
  const words = filter.querySelector("input[type=search]");
  const count = filter.querySelector("output");
  const apply = () => {
    const wanted = words.value.trim().toLowerCase();
    const chosen = new Set([...filter.querySelectorAll(":checked")].map((box) => box.value));
    let shown = 0;
    items.forEach((item, i) => {
      item.hidden = !chosen.has(item.dataset.severity) || !texts[i].includes(wanted);
      shown += item.hidden ? 0 : 1;
    });
    count.textContent = `${shown} of ${items.length} shown`;
  };
  filter.addEventListener("input", apply);
  filter.hidden = false;
  apply();
}
