// style.h - how the page of page.h looks, and what its script adds: the point of a curve under the pointer.
// Copy with: nothing
#pragma once

namespace baretrain {

inline const char* const style = R"(<style>
:root { color-scheme: light dark; --back: #fff; --text: #1f2328; --faint: #d8dee4; --dim: #59636e;
  --c0: #0969da; --c1: #bc4c00; --c2: #1a7f37; --c3: #a0347e; --c4: #7d6400; --c5: #4b5563; }
@media (prefers-color-scheme: dark) {
  :root { --back: #0d1117; --text: #e6edf3; --faint: #30363d; --dim: #9198a1;
    --c0: #58a6ff; --c1: #ff9248; --c2: #3fd07f; --c3: #f29fd0; --c4: #f0e442; --c5: #c9d1d9; }
}
body { background: var(--back); color: var(--text); font: clamp(15px, 0.55vw + 9px, 20px)/1.5 system-ui, sans-serif;
  max-width: 88em; margin: 1.5em auto; padding: 0 1em; overflow-wrap: anywhere; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin: 1.8em 0 0.5em; }
small, .tiles td:first-child { color: var(--dim); } small { white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28em), 1fr)); gap: 0 2.5em; }
figure { margin: 1em 0; min-width: 0; } figure:first-child { grid-column: 1 / -1; } figcaption { font-weight: 600; }
figcaption span { font-weight: 400; margin-left: 1em; display: inline-block; }
.plot { position: relative; height: 13em; margin: 0.7em 1.4em 1.8em 3.4em; }
figure:first-child .plot { height: 19em; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 12px; }
path { vector-effect: non-scaling-stroke; }
.plot svg { height: 100%; overflow: visible; } .trace { overflow-x: auto; } .trace svg { min-width: 40em; }
.plot i { position: absolute; font: 0.8em/1 system-ui, sans-serif; color: var(--dim); white-space: nowrap; }
.plot i.y { right: calc(100% + 0.6em); transform: translateY(-50%); }
.plot i.x { top: calc(100% + 0.6em); transform: translateX(-50%); }
.plot output { position: absolute; background: var(--back); border: 1px solid; border-radius: 4px; padding: 0 0.4em;
  font-size: 0.85em; white-space: nowrap; pointer-events: none; transform: translate(-50%, -130%); }
.plot output:empty { display: none; }
.grid { stroke: var(--faint); } .axis { stroke: var(--dim); fill: none; }
.curve { fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linecap: round; stroke-linejoin: round; }
.curve.bold { stroke-width: 2.6; } .curve.thin { stroke-width: 1; opacity: 0.6; }
.curve.dashed { stroke-dasharray: 7 5; }
.color-0 { color: var(--c0); } .color-1 { color: var(--c1); } .color-2 { color: var(--c2); }
.color-3 { color: var(--c3); } .color-4 { color: var(--c4); } .color-5 { color: var(--c5); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; }
.pairs { columns: 30em; display: block; } .pairs tr { break-inside: avoid; }
td, th { text-align: left; border-bottom: 1px solid var(--faint); padding: 0.15em 1.5em 0.15em 0; min-width: 6em; }
.tiles tbody { display: flex; flex-wrap: wrap; gap: 0.6em 2.2em; } .tiles td { display: block; border: 0; padding: 0; }
.tiles td:first-child { font-size: 0.85em; } .tiles td:last-child { font-size: 1.3em; font-weight: 600; }
.tiles small { font-size: 0.65em; font-weight: 400; }
.bar { display: block; min-width: 12em; padding: 0 0.4em;
  background: linear-gradient(90deg, var(--faint) var(--part), transparent 0); }
pre { white-space: pre-wrap; border: 1px solid var(--faint); padding: 0.7em; margin: 0.3em 0 1em; }
</style>
)";

// Shows the point of a curve that is nearest to the pointer.
inline const char* const script = R"(<script>
for (const plot of document.querySelectorAll('.plot')) {
  const svg = plot.firstElementChild, tip = plot.appendChild(document.createElement('output'));
  const [x0, x1, y0, y1] = svg.dataset.range.split(' ').map(Number);
  plot.onpointerleave = () => { tip.textContent = ''; };
  plot.onpointermove = event => {
    const box = svg.getBoundingClientRect();
    let best = null;
    for (const curve of svg.querySelectorAll('.curve'))
      for (const [, x, y] of curve.getAttribute('d').matchAll(/[ML]([\d.]+) ([\d.]+)/g)) {
        const far = Math.hypot(x * box.width / 1000 + box.left - event.clientX,
                               y * box.height / 1000 + box.top - event.clientY);
        if (!best || far < best.far) best = {far, x, y, curve};
      }
    if (!best) return;
    tip.textContent = `step ${Math.round(x0 + best.x / 1000 * (x1 - x0))}: ` +
                      `${Number((y1 - best.y / 1000 * (y1 - y0)).toPrecision(4))}`;
    tip.className = best.curve.getAttribute('class').replace('curve', '');
    tip.style.left = best.x / 10 + '%', tip.style.top = best.y / 10 + '%';
  };
}
</script>
)";

}  // namespace baretrain
