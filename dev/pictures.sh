#!/bin/bash
# The pictures of the README: three short runs on this repository's own text, the page of one and that of all three,
# and a trace, as headless Chromium shows them. Called by `make pictures`; what it trains lies in build/pictures and is not trained
# again. On a machine that does nothing else, or the speeds mean nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
browser=$(command -v chromium chromium-browser google-chrome | head -1) || { echo "needs Chromium: make deps ALL=1"; exit 1; }
sandbox=$([ "$(id -u)" != 0 ] || echo --no-sandbox)
runs=build/pictures
for lr in 0.016 0.004 0.001; do
    [ -e $runs/lr-$lr/step-000400 ] || ./train_gpt --steps 400 --lr $lr --eval-every 50 --sample-every 200 --save-every 0 --keep 1 --out $runs/lr-$lr | tail -1
done
./train_gpt report $runs/lr-* -o $runs/compare.html

picture() {   # page, width, height, file
    timeout 120 "$browser" --headless $sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
        --window-size="$2,$3" --screenshot="$4" "file://$PWD/$1" 2> /dev/null
    echo "$4: $(stat -c %s "$4") bytes"
}
picture $runs/lr-0.004/run.html 860 1060 dev/pictures/run.png
picture $runs/compare.html 800 690 dev/pictures/compare.png

# One step of three micro-batches, by stated rates: the page with nothing but the trace.
traced=$runs/traced
[ -e $traced/trace.json ] || ./train_gpt --steps 3 --trace 1 --clock virtual --tokens-per-step 3072 --eval-every 0 \
    --sample-every 0 --save-every 0 --out $traced | tail -1
sed 's#</head>#<style>body > :not(.trace) { display: none }</style></head>#' $traced/run.html > $runs/trace.html
picture $runs/trace.html 900 330 dev/pictures/trace.png
