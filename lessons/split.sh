#!/bin/bash
# What the ranks of --tp have of a block and what travels, as a picture that stands alone, light and dark: from what `plan`
# and --explain say of these flags; of a model with q, k, v and gate, up apart.     lessons/split.sh FLAG... > FILE.svg
set -euo pipefail
{ ./train_gpt plan "$@"; ./train_gpt --explain "$@"; } | awk '
    function put(format, a, b, c, d, e) { svg = svg sprintf(format "\n", a, b, c, d, e) }
    function text(x, y, what) { put("<text x=\"%.1f\" y=\"%.1f\">%s</text>", x, y, what) }
    function box(x, y, w, h, colour) { put("<path d=\"M%.1f %.1fh%.1fv%.1fH%.1fz\" fill=\"" colour "\"/>", x, y, w, h, x) }
    # rows x cols elements in bands of rows or of columns, one a rank; without bands whole.
    function matrix(x, y, rows, cols, bands, by_rows,   parts, n, i, ends, wide) {
        n = split(bands, parts, / \| /)
        if (!n) box(x, y, cols * scale, rows * scale, "currentColor\" fill-opacity=\"0.25")
        for (i = 1; i <= n; ++i) {
            split(parts[i], ends, "-")
            wide = (ends[2] - ends[1] + 1) * scale - 1
            if (by_rows) box(x, y + ends[1] * scale, cols * scale, wide, colours[i])
            else box(x + ends[1] * scale, y, wide, rows * scale, colours[i])
        }
    }
    function arrow(w) {
        put("<path stroke=\"currentColor\" fill=\"none\" d=\"M%.1f %dh%dm-4 -3l4 3l-4 3\"/>", at + 2, middle, w - 4)
        at += w
    }
    function step(above, below, w, h) {
        text(at + w * scale / 2, 14, above)
        text(at + w * scale / 2, middle + h * scale / 2 + 15, below)
        at += w * scale
    }
    function activations(what, cols, bands, by_rows) {
        matrix(at, middle - N * scale / 2, N, cols, bands, by_rows)
        step(what, N " x " cols, cols, N)
    }
    function weights(what, names,   list, n, i, high) {   # one below the other
        n = split(names, list, " ")
        high = n * rows[list[1]] + (n - 1) * 4 / scale
        for (i = 1; i <= n; ++i)
            matrix(at, middle + (i - 1) * (rows[list[i]] * scale + 4) - high * scale / 2, rows[list[i]], cols[list[i]],
                   bands[list[i]], by[list[i]] == "rows")
        step(what, rows[list[1]] " x " cols[list[1]], cols[list[1]], high)
    }
    function travel(letter, name, forward, backward) {
        put("<circle cx=\"%.1f\" cy=\"%d\" r=\"9\" fill=\"none\" stroke=\"currentColor\"/>", at + 9, middle)
        put("<path stroke=\"currentColor\" stroke-dasharray=\"2 3\" d=\"M%.1f %dV242\"/>", at + 9, middle + 9)
        text(at + 9, middle + 4, letter)
        text(at + 9, 256, name)
        text(at + 9, 272, "&#8594; " (forward ? forward : "nothing"))
        text(at + 9, 288, "&#8592; " (backward ? backward : "nothing"))
        at += 18
    }
    function half(first, names, inner, width, inner_bands, second) {
        arrow(20); travel("f", "enter", ways["gather" 0], ways["scatter" 1] ways["sum" 1])
        arrow(16); weights(first, names)
        arrow(16); activations(inner, width, inner_bands, 0)
        arrow(16); weights(second, second)
        arrow(16); travel("g", "leave", ways["scatter" 0] ways["sum" 0], ways["gather" 1])
        arrow(20); activations("stream", C, parts, 1)
    }
    /^split .*layers\.0\./ {
        name = $2; sub(/.*\.(self_attn|mlp)\./, "", name); sub(/(_proj)?\.weight/, "", name); sub(/^o$/, "out", name)
        rows[name] = $3; cols[name] = $5 + 0; by[name] = $6
        bands[name] = $0; sub(/.*(rows|columns) /, "", bands[name])
    }
    /^A step of rank 0/ { match($0, /of [0-9]+ x [0-9]+ tokens/); $0 = substr($0, RSTART, RLENGTH); N = $2 * $4; next }
    /linear_backward/ { backward = 1 }
    /of the activations on tp/ { ways[$2 backward + 0] = $2; sp += $2 == "gather"; sent[$2] = "a " $2 " " $(NF - 2) " " $(NF - 1) }
    END {
        split("#4c78a8 #f58518 #54a24b #b279a2", colours, " ")
        middle = 122; at = 12; C = cols["q"]; scale = 182 / (2 * rows["gate"])
        tp = split(bands["q"], ignored, / \| /)
        for (i = 0; sp && i < tp; ++i) parts = parts (i ? " | " : "") i * N / tp "-" (i + 1) * N / tp - 1
        activations("stream", C, parts, 1)
        half("q, k, v", "q k v", "heads", rows["q"], bands["q"], "out")
        half("gate, up", "gate up", "hidden units", cols["down"], bands["down"], "down")
        for (i = 1; i <= tp; ++i) legend = legend sprintf("<tspan fill=\"%s\">&#9632;</tspan> rank %d &#160; ", colours[i], i - 1)
        text(at / 2, 312, legend "<tspan fill-opacity=\"0.4\">&#9632;</tspan> every rank has all")
        text(at / 2, 330, "&#8594; forward, &#8592; backward; a rank sends with " (sp ? sent["gather"] ", with " sent["scatter"] : sent["sum"]))
        printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f 338\" fill=\"currentColor\" font-size=\"11\"", at + 12
        printf " text-anchor=\"middle\" role=\"img\" aria-label=\"a block on %d ranks\">\n<style>", tp
        print "svg{color:#24292f;font-family:sans-serif}@media(prefers-color-scheme:dark){svg{color:#d0d7de}}</style>"
        printf "%s</svg>\n", svg
    }'
