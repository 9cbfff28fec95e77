#!/bin/bash
# One rank of a run's trace as a picture that stands alone, light and dark:  lessons/picture.sh RUN [RANK] > FILE.svg
set -euo pipefail
awk -v rank="${2:-0}" -v RS='<svg' '
    NR == 1 {                                          # the legend: squares and words, without their shares of the time
        while (match($0, /color: #[0-9a-f]+">&#9632;<\/span>&nbsp;[a-z ]+/)) {
            colour = substr($0, RSTART + 7, 7); word = substr($0, RSTART, RLENGTH); sub(/.*&nbsp;/, "", word)
            legend = legend "<tspan fill=\"" colour "\" dx=\"10\">&#9632;</tspan> " word
            $0 = substr($0, RSTART + RLENGTH)
        }
    }
    NR == rank + 2 {
        if (match($0, /rank [0-9]+, [0-9.]+ ms/)) time = substr($0, RSTART, RLENGTH)
        sub(/<\/svg>.*/, ""); gsub(/><title>[^<]*<\/title><\/rect>/, "/>"); sub(/viewBox="0 0 720 176"/, "viewBox=\"0 0 720 196\"")
        print "<svg xmlns=\"http://www.w3.org/2000/svg\"" $0
        print "<text x=\"708\" y=\"10\" text-anchor=\"end\">" time "</text><text x=\"54\" y=\"190\">" legend "</text>"
        print "<style>svg{color:#24292f;font-family:sans-serif}@media(prefers-color-scheme:dark){svg{color:#d0d7de}}</style></svg>"
        found = 1
    }
    END { exit !found }' "$1/trace.html"
