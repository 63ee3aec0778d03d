"""How the page looks: in light and dark mode, on a laptop, a phone and paper."""

_COLOURS = ("0072b2", "d55e00", "009e73", "cc79a7", "e69f00", "56b4e9", "8c6d31", "7a5195", "999999", "b8b000")
NUM_COLOURS = len(_COLOURS)
OTHERS = _COLOURS.index("999999")
"""Grey, the colour of all classes that have none of their own."""
_CHART_STYLE = (
    """
.chart { display: block; width: 100%; max-width: 36rem; height: auto; font: 12px system-ui, sans-serif; }
.chart text { fill: var(--soft); }
.chart .end { text-anchor: end; }
.chart .middle { text-anchor: middle; }
.chart .grid { stroke: var(--line); stroke-width: 1; }
.chart .axis { stroke: var(--soft); stroke-width: 1; }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.chart .dashed { stroke-dasharray: 5 4; stroke-width: 1.5; }
.chart .mark { stroke: var(--ink); stroke-width: 2; }
.chart .bar { fill: var(--accent); }
.chart .cloud { fill: none; stroke-width: 3.4; stroke-linecap: round; stroke-opacity: 0.75; }
.chart .few { stroke-width: 8; }
"""
    + "".join(f".c{k} {{ stroke: #{colour}; }}\n" for k, colour in enumerate(_COLOURS))
    + "".join(
        f".dot.c{k}, .key.c{k} {{ fill: #{colour}; background: #{colour}; }}\n" for k, colour in enumerate(_COLOURS)
    )
)
_BRIGHTER = {0: "3f9fdd", 6: "b8935a", 7: "a57bc0"}
"""Brighter colours for those that would be too dark in dark mode."""
_LIGHT = "--paper: #ffffff; --card: #f6f7f9; --ink: #16181d; --soft: #5b6270; --line: #dfe2e8; --accent: #0072b2;"
_DARK = "--paper: #14161a; --card: #1d2026; --ink: #e9ebef; --soft: #a3abb8; --line: #343944; --accent: #56b4e9;"
_BRIGHT_STYLE = "".join(
    f".c{k} {{ stroke: #{c}; }} .dot.c{k}, .key.c{k} {{ fill: #{c}; background: #{c}; }}\n"
    for k, c in _BRIGHTER.items()
)
STANDALONE_STYLE = (
    f"svg {{ {_LIGHT} background: var(--paper); }}{_CHART_STYLE}"
    f"@media screen and (prefers-color-scheme: dark) {{\nsvg {{ {_DARK} }}\n{_BRIGHT_STYLE}}}\n"
)

STYLE = (
    f":root {{ color-scheme: light dark; {_LIGHT} }}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}\n"
    + """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 0.25rem; letter-spacing: -0.01em; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 0.25rem; }
h3 { font-size: 1rem; font-weight: 600; margin: 0 0 0.6rem; }
p { margin: 0.25rem 0 0.75rem; max-width: 44rem; }
.soft, figcaption { color: var(--soft); font-size: 0.875rem; }
.flow { display: grid; column-gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr));
  grid-auto-flow: dense; }
.flow > .wide { grid-column: 1 / -1; }
section { min-width: 0; }
.flow > section { display: grid; grid-row: span 3; grid-template-rows: subgrid; }
.cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); }
.flow .cards { grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.card:only-child { max-width: 44rem; }
.flow .card:only-child { max-width: none; }
.stack { display: grid; gap: 1rem; align-content: start; min-width: 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem; margin: 0;
  min-width: 0; break-inside: avoid; }
.card img { display: block; width: 100%; height: auto; border-radius: 4px; }
.card .thumbnail { width: 3.5rem; image-rendering: pixelated; }
.pixels { image-rendering: pixelated; }
figcaption { margin-top: 0.6rem; }
.card .verdict { font-size: 1.125rem; margin: 0 0 1.5rem; }
.classes { display: grid; gap: 1rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.classes > div { display: grid; gap: 0.2rem 1rem; grid-template-columns: 1fr 2fr; min-width: 0; }
.classes > div > span { align-self: end; }
.note { border-left: 3px solid var(--accent); padding-left: 0.75rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 10px; }
.card .scroll { border: 0; border-radius: 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.5rem 0.9rem; border-bottom: 1px solid var(--line); vertical-align: top; }
.card table { font-size: 0.875rem; }
.card th, .card td { min-width: 0; padding: 0.4rem 0.5rem; }
tr:last-child > * { border-bottom: 0; }
thead th { background: var(--card); overflow-wrap: normal; }
tbody th { font-weight: 500; color: var(--soft); min-width: 9.5rem; overflow-wrap: normal; }
td { min-width: 9.5rem; overflow-wrap: normal; }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; margin: 0.6rem 0 0; padding: 0; list-style: none;
  font-size: 0.8125rem; color: var(--soft); }
.legend li { display: flex; align-items: center; gap: 0.4rem; }
.key { display: inline-block; width: 0.75rem; height: 0.75rem; border-radius: 50%; }
.key.line { width: 1.25rem; height: 3px; border-radius: 2px; }
.key.dash { width: 1.25rem; height: 0; border-radius: 0; border-top: 2px dashed var(--accent); background: none; }
.key.tick { width: 2px; border-radius: 0; background: var(--ink); }
.share { display: grid; grid-template-columns: 7.75rem 1fr 5.5rem; gap: 0.6rem; align-items: center;
  font-size: 0.8125rem; line-height: 1.7; }
.share span:last-child { text-align: right; font-variant-numeric: tabular-nums; }
.track { background: var(--line); border-radius: 3px; height: 0.55rem; overflow: hidden; }
.track i { display: block; height: 100%; background: var(--accent); }
code { font: 0.875em ui-monospace, monospace; background: var(--line); padding: 0.1em 0.3em; border-radius: 4px; }
@media (max-width: 30rem) {
  .card .share { grid-template-columns: 1fr auto; row-gap: 0; margin-bottom: 0.4rem; }
  .share .track { grid-column: 1 / -1; order: 1; }
  .card { padding: 0.75rem; }
  th, td { padding: 0.4rem 0.6rem; }
  td, tbody th { min-width: 7.5rem; }
  .card th, .card td { min-width: 0; }
  .card table { font-size: 0.8125rem; }
  .card th, .card td { padding: 0.4rem 0.3rem; }
  .card .thumbnail { width: 2.75rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2 { margin-top: 1.2rem; break-after: avoid; }
  section { break-inside: avoid; }
  .flow, .cards { grid-template-columns: 1fr 1fr; }
  .flow .cards { grid-template-columns: 1fr; }
  .flow > .wide .cards { grid-template-columns: 1fr 1fr; }
  .scroll { overflow: visible; }
}
"""
    + _CHART_STYLE
    + "@media screen and (prefers-color-scheme: dark) {\n"
    + _BRIGHT_STYLE
    + "}\n"
)
