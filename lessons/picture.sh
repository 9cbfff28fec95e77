#!/bin/bash
# Ranks of a run's trace as a picture that stands alone, light and dark:  lessons/picture.sh RUN [RANK...] > FILE.svg
set -euo pipefail
awk -v list="${*:2}" -v RS='<svg' '
    BEGIN { count = split(list ? list : "0", ranks, " "); height = 176 * count }
    NR == 1 {                                          # the legend: squares and words, without their shares of the time
        while (match($0, /color: #[0-9a-f]+">&#9632;<\/span>&nbsp;[a-z ]+/)) {
            colour = substr($0, RSTART + 7, 7); word = substr($0, RSTART, RLENGTH); sub(/.*&nbsp;/, "", word)
            legend = legend "<tspan fill=\"" colour "\" dx=\"10\">&#9632;</tspan> " word
            $0 = substr($0, RSTART + RLENGTH)
        }
        printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 %d\" fill=\"currentColor\" font-size=\"12\"", height + 20
        print " role=\"img\" aria-label=\"ranks by time\">"
    }
    {
        for (i = 1; i <= count && NR > 1; ++i) if (NR == ranks[i] + 2) {
            if (match($0, /rank [0-9]+, [0-9.]+ ms/)) time = substr($0, RSTART, RLENGTH)
            sub(/<\/svg>.*/, ""); gsub(/><title>[^<]*<\/title><\/rect>/, "/>"); sub(/^[^>]*>/, "")
            printf "<g transform=\"translate(0 %d)\">%s<text x=\"708\" y=\"10\" text-anchor=\"end\">%s</text></g>\n", 176 * found++, $0, time
        }
    }
    END {
        print "<text x=\"54\" y=\"" height + 14 "\">" legend "</text>"
        print "<style>svg{color:#24292f;font-family:sans-serif}@media(prefers-color-scheme:dark){svg{color:#d0d7de}}</style></svg>"
        exit found != count
    }' "$1/trace.html"
