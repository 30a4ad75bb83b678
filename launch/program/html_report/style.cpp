// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/style.h"

namespace lockstep {

// Compute phases have cool colours, waits warm ones. Curves use the palette of Okabe and Ito, which
// colour-blind readers can distinguish, and lighter shades of it on dark screens.
const std::string_view kReportStyle = R"(
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1b2129; --soft: #5b6675; --edge: #dde2e8; --grid: #e6eaef;
  --accent: #0b62b8; --bad: #c43d1b;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #b8578f; --s4: #a87900; --s5: #3d9fd6; --s6: #6f4fb3; --s7: #59636f;
  --p0: #f0a229; --p1: #9dcbf3; --p2: #4d93da; --p3: #dc4a26; --p4: #3fa796; --p5: #c04fa8; --p6: #a99fd8; --p7: #b3bac3; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161b; --card: #1b2128; --text: #e7ebf0; --soft: #9ba7b5; --edge: #303943; --grid: #2b333c;
  --accent: #6db3f5; --bad: #ff8363;
  --s0: #4fa8e8; --s1: #ff8b3d; --s2: #35c896; --s3: #e48abf; --s4: #dfae35; --s5: #8fd0f7; --s6: #b197f0; --s7: #a7b1bd;
  --p0: #f2b04a; --p1: #86c0f3; --p2: #3d83cf; --p3: #f0623e; --p4: #46b5a3; --p5: #d56bbd; --p6: #b3a9e6; --p7: #78828e; } }
.s0 { --c: var(--s0) } .s1 { --c: var(--s1) } .s2 { --c: var(--s2) } .s3 { --c: var(--s3) }
.s4 { --c: var(--s4) } .s5 { --c: var(--s5) } .s6 { --c: var(--s6) } .s7 { --c: var(--s7) }
.p0 { --c: var(--p0) } .p1 { --c: var(--p1) } .p2 { --c: var(--p2) } .p3 { --c: var(--p3) }
.p4 { --c: var(--p4) } .p5 { --c: var(--p5) } .p6 { --c: var(--p6) } .p7 { --c: var(--p7) }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem clamp(.75rem, 2.5vw, 2rem) 3rem; max-width: 82rem; background: var(--page);
  color: var(--text); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .5rem; }
p { margin: .4rem 0; max-width: 60rem; }
code { font: .92em ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace; }
.soft, .note { color: var(--soft); }
.note { font-size: .85rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1.2rem 0 0; }
.card, .panel, figure { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; }
.card { padding: .8rem 1rem; }
.card b { display: block; font-size: 1.7rem; line-height: 1.2; font-weight: 650; font-variant-numeric: tabular-nums; }
.card.lead b { color: var(--accent); }
.card span { display: block; color: var(--soft); font-size: .85rem; }
.panel { padding: 1rem 1.2rem; }
.panel + .panel { margin-top: .75rem; }
.verdict { font-size: 1.1rem; margin: 0 0 .8rem; }
.advice { margin: .6rem 0 0; padding: .6rem .9rem; border-left: 4px solid var(--accent);
  background: color-mix(in srgb, var(--accent) 9%, transparent); border-radius: 0 6px 6px 0; }
.advice p { margin: .15rem 0; }
.panel + .charts { margin-top: .75rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 23rem), 1fr)); gap: .75rem; }
figure { margin: 0; padding: .7rem .8rem .5rem; min-width: 0; }
figcaption { font-weight: 600; font-size: .95rem; display: flex; flex-wrap: wrap; justify-content: space-between; align-items: baseline;
  gap: 0 .6rem; }
figcaption .note { font-weight: 400; font-size: .75rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
svg .e { text-anchor: end } svg .m { text-anchor: middle }
.grid path { stroke: var(--grid); }
.line { fill: none; stroke: var(--c); stroke-width: 1.6; stroke-linejoin: round; }
path.dashed { stroke-dasharray: 5 3; }
.band { fill: var(--c); opacity: .22; }
circle { fill: var(--c); }
[class^="p"][d] { fill: var(--c); }
.places rect { fill: transparent; }
.places rect:hover { fill: var(--text); fill-opacity: .14; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem .9rem; margin: .15rem 0; font-size: .85rem; color: var(--soft); }
.legend span { display: inline-flex; align-items: center; gap: .4em; }
.legend i, .key { flex: none; display: inline-block; width: .8em; height: .8em; border-radius: 2px; background: var(--c); }
.legend i.dashed { height: 0; width: 1.1em; background: none; border-top: 2px dashed var(--c); }
.key { margin-right: .5em; vertical-align: -.05em; }
.account { display: flex; height: 2rem; border-radius: 6px; overflow: hidden; background: var(--grid); }
.account span { background: var(--c); color: #10161d; font-size: .8rem; font-weight: 600; line-height: 2rem;
  text-align: center; white-space: nowrap; overflow: hidden; box-shadow: inset -1px 0 var(--card); }
td .account { height: 1.1rem; min-width: 12rem; } td .account span { line-height: 1.1rem; font-size: .7rem; }
.bar { display: inline-block; width: 5.5rem; height: .7em; margin-left: .6em; background: var(--grid); border-radius: 3px; overflow: hidden; }
.bar span { display: block; height: 100%; background: var(--c); }
.scroll { overflow: auto; max-width: 100%; max-height: 36rem; }
table { border-collapse: collapse; font-size: .9rem; min-width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .32rem .9rem .32rem 0; border-bottom: 1px solid var(--edge); overflow-wrap: normal; }
td { max-width: 34rem; overflow-wrap: break-word; }
tbody tr:last-child td { border-bottom: 0; }
th { color: var(--soft); font-weight: 600; font-size: .82rem; white-space: nowrap; position: sticky; top: 0; background: var(--card); }
td .wide { display: inline-block; min-width: 17rem; }
.n { text-align: right; white-space: nowrap; }
.pair { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: 0 .75rem; align-items: start; }
.pair > div { min-width: 0; } .pair h3:first-child { margin-top: .9rem; }
.heat { min-width: 0; border-collapse: separate; border-spacing: 1px; }
.heat td { --c: var(--accent); background: color-mix(in srgb, var(--c) var(--h, 0%), var(--card)); text-align: right; padding: .25rem .5rem;
  border: 0; border-radius: 3px; white-space: nowrap; min-width: 2.6rem; }
.heat td.o { --c: var(--s1); }
.heat th { background: var(--card); border: 0; padding: .25rem .6rem .25rem .3rem; white-space: normal; min-width: 2.6rem; overflow-wrap: anywhere; }
.heat thead th { text-align: right; vertical-align: bottom; padding-right: .5rem; }
.heat thead th:first-child { text-align: left; overflow-wrap: normal; }
.heat tbody th { position: sticky; left: 0; top: auto; z-index: 1; min-width: 4.5rem; max-width: 12rem; font-weight: 400; color: var(--text); }
.heat.small td { min-width: .7rem; width: .7rem; height: .7rem; padding: 0; } .heat.small thead th { min-width: 0; padding: 0; }
.heat.small thead th:first-child { white-space: nowrap; } .heat.small tbody th { padding-top: 0; padding-bottom: 0; font-size: .7rem; line-height: 1; white-space: nowrap; }
details { margin-top: .75rem; } summary { cursor: pointer; font-weight: 600; padding: .2rem 0; }
summary:hover { color: var(--accent); }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .85rem; }
@media print { .scroll { max-height: none; } }
)";

}  // namespace lockstep
